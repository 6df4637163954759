"""SCH-1: working versions come from models, releases freeze them, and what is frozen stays."""

from __future__ import annotations

import json
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from bus.contracts.catalogue import Catalogue, CatalogueError
from bus.contracts.check import check
from bus.contracts.lock import LockError
from bus.contracts.models import ModelError
from bus.contracts.release import Step, generate, release
from tests.unit.contracts.conftest import Written, note

DAY = date(2026, 1, 31)
MODEL = '''
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Literal
from pydantic import AliasChoices, BaseModel, Field, computed_field, field_serializer
OPEN = {{"x-open-enum": True}}

class Mood(StrEnum):
    GOOD = "good"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value): return cls.OTHER

class Inner(BaseModel):
    read_as: int = Field(default=1, serialization_alias="sent_as")

class Note(BaseModel):
    """Somebody to anybody: a text."""

    {contract}
    model_config = {{"json_schema_extra": {{"examples": [{{"text": "hi"}}]}}}}
    text: str = Field(description="What it says.")
    {more}
'''


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`model(contract="note@1.0", more=...)` writes the module and returns its reference."""
    count = iter(range(100))
    monkeypatch.chdir(tmp_path)
    # Whatever load_model puts on the path goes with the test.
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(contract: str | None = None, more: str = "") -> str:
        name = f"{tmp_path.name.replace('-', '_')}_{next(count)}"
        said = f'__contract__ = "{contract}"' if contract else ""
        (tmp_path / f"{name}.py").write_text(MODEL.format(contract=said, more=more))
        return f"{name}:Note"

    return write


def made(folder: Path, reference: str | None, *, write: bool = True) -> tuple[str, Step]:
    found = generate(Catalogue.read(folder), folder, "note", reference, write=write)
    return found.file.rpartition("/")[2], found.step


def freeze(folder: Path, **options: Any) -> tuple[list[str], list[str]]:
    released, findings = release(Catalogue.read(folder), folder, "note", day=DAY, **{"owner": "desk"} | options)
    return released, [one.rule for one in findings]


AUTHOR = 'author: str = Field(default="", description="Who wrote it.")'


def test_the_story_of_a_model(folder: Path, model: Any) -> None:
    first = model()
    assert made(folder, first) == ("1.0.json", Step.WRITTEN)
    assert made(folder, first) == ("1.0.json", Step.SAME)
    assert made(folder, None) == ("1.0.json", Step.SAME)
    assert freeze(folder) == (["note@1.0"], [])
    second = model(more=AUTHOR)
    assert made(folder, second, write=False) == ("1.1.json", Step.WRITTEN)
    assert not (folder / "note" / "1.1.json").exists()
    assert made(folder, second) == ("1.1.json", Step.WRITTEN)
    assert freeze(folder, note="the author") == (["note@1.1"], [])
    catalogue = Catalogue.read(folder)
    assert check(catalogue) == []
    entry = catalogue.contracts["note"].entry
    assert (entry.model, entry.owner, entry.versions[1, 1].note) == (second, "desk", "the author")


def test_a_model_that_says_a_released_version_is_refused(folder: Path, model: Any) -> None:
    made(folder, model("note@1.0"))
    freeze(folder)
    before = (folder / "note" / "1.0.json").read_bytes()
    with pytest.raises(CatalogueError) as refused:
        made(folder, model("note@1.0", AUTHOR))
    for word in ("note/1.0.json", "2026-01-31", "note@1.1"):
        assert word in str(refused.value)
    assert (folder / "note" / "1.0.json").read_bytes() == before


def test_the_model_decides_the_version(folder: Path, model: Any) -> None:
    assert made(folder, model("note@1.0"))[0] == "1.0.json"
    freeze(folder)
    assert made(folder, model("note@2.0", AUTHOR))[0] == "2.0.json"
    assert freeze(folder) == (["note@2.0"], ["major-bump"])


@pytest.mark.parametrize("contract", ["order@1.0", "note@1", "note", "note@1.0.0", "../note@1.0"])
def test_a_model_that_says_something_else_is_refused(folder: Path, model: Any, contract: str) -> None:
    with pytest.raises(ModelError, match="it must be note@major"):
        made(folder, model(contract))


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("no_such_module_here:Note", "cannot be imported"),
        ("json:JSONDecoder", "has no pydantic model"),
        ("json:nothing", "has no pydantic model"),
        ("json", "say module:Name"),
        ("../json:Note", "say module:Name"),
        (":Note", "say module:Name"),
    ],
)
def test_a_model_that_is_none_is_refused(folder: Path, model: Any, reference: str, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        made(folder, reference)


def test_a_type_without_a_model_and_a_type_that_is_none(folder: Path, model: Any) -> None:
    with pytest.raises(CatalogueError, match="note has no model"):
        made(folder, None)
    with pytest.raises(CatalogueError, match="not a message type"):
        generate(Catalogue.read(folder), folder, "../note", model(), write=True)


def test_a_plain_schema_is_released_like_any_other(written: Written, folder: Path) -> None:
    written({"note/1.0.json": note()})
    assert freeze(folder, senders=["alice"], receivers=["*"]) == (["note@1.0"], [])
    lock = json.loads((folder / "lock.json").read_text())["contracts"]["note"]
    assert (lock["owner"], lock["senders"], lock["receivers"]) == ("desk", ["alice"], ["*"])
    assert lock["versions"]["1.0"]["released"] == "2026-01-31"
    assert "model" not in lock
    assert [one.name for one in folder.iterdir() if one.name.startswith(".")] == []


def test_nothing_to_release_says_what_to_do(written: Written, folder: Path) -> None:
    written({"note/1.0.json": note()}, released=["note/1.0.json"])
    with pytest.raises(CatalogueError, match=r"note@1\.0 is the newest version, released on 2026-01-31.*1\.1\.json"):
        freeze(folder)


def test_nobody_owns_it(written: Written, folder: Path) -> None:
    written({"note/1.0.json": note()})
    with pytest.raises(CatalogueError, match="--owner TEAM"):
        freeze(folder, owner=None)


def test_what_lint_refuses_is_not_frozen(written: Written, folder: Path) -> None:
    written({"note/1.0.json": note(badName={"type": "string", "description": "x"})})
    assert freeze(folder) == ([], ["snake-case"])
    assert not (folder / "lock.json").exists()


def test_a_model_that_moved_on_is_not_frozen(folder: Path, model: Any) -> None:
    made(folder, model())
    lock = json.loads((folder / "lock.json").read_text())
    lock["contracts"]["note"]["model"] = model(more=AUTHOR)
    (folder / "lock.json").write_text(json.dumps(lock))
    assert freeze(folder) == ([], ["model-differs"])


def test_a_release_retires_the_names_that_are_gone(written: Written, folder: Path) -> None:
    author = {"type": "string", "description": "Who wrote it."}
    written({"note/1.0.json": note(author=author), "note/2.0.json": note()}, released=["note/1.0.json"])
    assert freeze(folder) == (["note@2.0"], ["major-bump"])
    assert Catalogue.read(folder).contracts["note"].entry.reserved == {"author": "removed in 2.0"}
    written_again = folder / "note" / "2.1.json"
    written_again.write_text(json.dumps(note(author=author)))
    assert freeze(folder) == ([], ["name-reserved"])


def test_an_agent_name_that_is_none_writes_nothing(written: Written, folder: Path) -> None:
    written({"note/1.0.json": note()})
    with pytest.raises(LockError, match="not an agent name"):
        freeze(folder, senders=["a b"])
    assert not (folder / "lock.json").exists()


def test_beside_a_broken_lock_nothing_is_written(written: Written, folder: Path) -> None:
    written({"note/1.0.json": note()})
    (folder / "lock.json").write_text("<<<<<<< HEAD")
    with pytest.raises(CatalogueError, match=r"lock\.json: not JSON"):
        freeze(folder)


def test_a_linked_folder_is_not_written_through(folder: Path, tmp_path: Path, model: Any) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "note").symlink_to(outside)
    with pytest.raises(CatalogueError, match="symbolic link"):
        made(folder, model())
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            'other: int = Field(default=1, description="x", serialization_alias="sent_as")',
            "reads other and does not write",
        ),
        (
            'other: int = Field(default=1, description="x", validation_alias="read_as")',
            "writes other and does not read",
        ),
        ('other: int = Field(default=1, description="x", exclude=True)', "reads other and does not write"),
        ("other: list[Inner] = []", "reads other[].read_as and does not write it"),
        ("@computed_field\n    @property\n    def size(self) -> int: return 1", "writes size and does not read it"),
        ('@field_serializer("text")\n    def number(self, text) -> int: return 1', "what it writes at text"),
    ],
)
def test_a_model_that_writes_something_else_than_it_reads_is_no_contract(
    model: Any, folder: Path, more: str, said: str
) -> None:
    """SCH-2: the file would promise what its writer does not send, and every verdict about it would be wrong."""
    with pytest.raises(ModelError, match=re.escape(said)):
        made(folder, model("note@1.0", more=more))
    assert not (folder / "note").exists()


@pytest.mark.parametrize(
    "more",
    [
        'other: int = Field(default=1, description="x", alias="both_ways")',
        'when: datetime = Field()\n    @field_serializer("when")\n    def said(self, at): return str(at)',
        "price: Decimal = Decimal(1)\n    wait: timedelta = timedelta(1)\n    seen: set[int] = set()",
        "notes: 'list[Note] | None' = None\n    more: dict[int, tuple[int, str]] = {}",
    ],
)
def test_ordinary_models_write_what_they_read(model: Any, folder: Path, more: str) -> None:
    assert made(folder, model("note@1.0", more=more)) == ("1.0.json", Step.WRITTEN)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('mood: Literal["good", "bad"] = Field(default="bad", json_schema_extra=OPEN)', "x-open-enum"),
        ('mood: str = Field(json_schema_extra={"enum": ["good", "bad"], **OPEN})', None),
        ("mood: Mood = Field(json_schema_extra=OPEN)", None),
        ('other: str = Field(json_schema_extra={"x-aliases": ["before"]})', "x-aliases before"),
        (
            'other: str = Field(validation_alias=AliasChoices("other", "before"), '
            'json_schema_extra={"x-aliases": ["before"]})',
            None,
        ),
    ],
)
def test_a_model_must_take_what_its_contract_claims(model: Any, folder: Path, more: str, said: str | None) -> None:
    """SCH-2: with the claim alone, an added word or a new name is called compatible, and every reader refuses it."""
    reference = model("note@1.0", more=more)
    if said is None:
        assert made(folder, reference) == ("1.0.json", Step.WRITTEN)
        assert b"x-model" not in (folder / "note" / "1.0.json").read_bytes()
    else:
        with pytest.raises(ModelError, match=said):
            made(folder, reference)
