"""`bus schema` as people and CI run it (SCH-1, SCH-2, SCH-5, TOOL-7): the README's story, recipes, what goes wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.e2e.conftest import ROOT

Run = Callable[..., "subprocess.CompletedProcess[str]"]

STORY = re.search(r"^## Changing a message\n(.*?)^## ", (ROOT / "README.md").read_text("utf-8"), flags=re.M | re.S)
FENCE = re.compile(r"^```(py|sh|diff)\n(.*?)^```$", flags=re.M | re.S)
# What each command of the story says, in order; all but one end with 0.
SAID = [
    ("schemas/order_placed/1.0.json: written", 0), ("released order_placed@1.0", 0),
    ("schemas/order_placed/1.1.json: written", 0), ("1 contract, nothing to say", 0), ("nothing to say", 0),
    ("released order_placed@1.1", 0),
    ("schemas/order_placed/1.2.json: written", 0), ("readers of the old version cannot read the new one", 1),
    ("schemas/order_placed/2.0.json: written", 0), ("a new major", 0), ("released order_placed@2.0", 0),
    ("build/contracts/asyncapi.json", 0),
]  # fmt: skip
NOTE = {
    "description": "Somebody to anybody: a text.",
    "type": "object",
    "properties": {"text": {"type": "string", "description": "What it says."}},
    "required": ["text"],
    "examples": [{"text": "hi"}],
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder under git, on the branch main, with nothing in it."""
    found = tmp_path / "project"
    found.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main", str(found)], check=True, timeout=20)
    return found


@pytest.fixture
def run(project: Path) -> Run:
    """Runs one command of a shell there; `bus` is ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BUS_", "GIT_"))}
    git = {f"GIT_{who}_{what}": "ci@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = kept | git | {"PYTHONPATH": str(ROOT), "GIT_CONFIG_GLOBAL": os.devnull, "COLUMNS": "200"}

    def command(line: str, **extra: str) -> subprocess.CompletedProcess[str]:
        words = [extra.get(word.removeprefix("$"), word) for word in shlex.split(line, comments=True)]
        if words[0] == "bus":
            words = [sys.executable, "-m", *words]
        return subprocess.run(
            words, cwd=project, env=environment, capture_output=True, text=True, timeout=25, check=False
        )

    return command


def write(project: Path, **versions: object) -> None:
    """`write(project, note_1_0=schema)` writes schemas/note/1.0.json."""
    for name, schema in versions.items():
        type, major, minor = name.rsplit("_", 2)
        path = project / "schemas" / type / f"{major}.{minor}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(schema if isinstance(schema, str) else json.dumps(schema))


def changed(text: str, diff: str) -> str:
    """A file after a diff without line numbers: context and removed lines become context and added lines."""
    lines = diff.splitlines()
    old = "\n".join(line[1:] for line in lines if line[:1] in (" ", "-"))
    new = "\n".join(line[1:] for line in lines if line[:1] in (" ", "+"))
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.mark.timeout(120)
def test_the_story_of_the_readme(project: Path, run: Run) -> None:
    assert STORY is not None
    said = iter(SAID)
    for language, block in FENCE.findall(STORY[1]):
        shop = project / "shop.py"
        if language == "py":
            shop.write_text(block)
        elif language == "diff":
            shop.write_text(changed(shop.read_text(), block))
        else:
            for line in block.splitlines():
                done = run(line)
                words, code = next(said) if line.startswith("bus ") else ("", 0)
                assert done.returncode == code, (line, done.stdout, done.stderr)
                assert words in done.stdout, (line, done.stdout)
    assert list(said) == []
    reserved = json.loads((project / "schemas/lock.json").read_text())["contracts"]["order_placed"]["reserved"]
    assert reserved == {"pieces": "removed in 2.0"}


def workflow_commands() -> list[str]:
    text = (ROOT / "ops/ci/contracts.yml").read_text("utf-8")
    return [line for line in re.findall(r"^ +run: (.*)$", text, flags=re.M) if line.startswith("bus ")]


def hook_commands() -> list[str]:
    text = (ROOT / "ops/ci/pre-commit-config.yaml").read_text("utf-8")
    return re.findall(r"^ +entry: (.*)$", text, flags=re.M)


@pytest.mark.timeout(120)
def test_the_recipes_pass_a_good_change_and_stop_a_bad_one(project: Path, run: Run) -> None:
    assert [len(workflow_commands()), len(hook_commands())] == [4, 3]
    (project / "desk.py").write_text(
        "from pydantic import BaseModel, Field\n\n\nclass Note(BaseModel):\n"
        '    """Somebody to anybody: a text."""\n\n'
        '    model_config = {"json_schema_extra": {"examples": [{"text": "hi"}]}}\n'
        '    text: str = Field(description="What it says.")\n'
    )
    for line in ("bus schema generate note=desk:Note", "bus schema release note --owner desk"):
        assert run(line).returncode == 0
    run("git add -A")
    assert run("git commit -qm first").returncode == 0
    for line in dict.fromkeys([*workflow_commands(), *hook_commands()]):
        done = run(line, SINCE="main")
        assert done.returncode == 0, (line, done.stdout, done.stderr)
    (project / "schemas/note/1.0.json").write_text(json.dumps(NOTE | {"required": []}))
    done = run(workflow_commands()[0], SINCE="main")
    assert done.returncode == 1
    assert "::error file=schemas/note/1.0.json,line=1,title=released-changed::" in done.stdout
    assert run(hook_commands()[0]).returncode == 1
    assert run(hook_commands()[2]).returncode == 1


def test_every_format_says_the_same(project: Path, run: Run) -> None:
    write(project, note_1_0=NOTE, note_1_1=NOTE | {"required": ["text", "author"]})
    told = json.loads(run("bus schema check --format json").stdout)
    assert not told["ok"]
    assert {(one["rule"], one["file"]) for one in told["findings"] if one["severity"] == "error"} == {
        ("breaks-new-readers", "schemas/note/1.1.json"),
        ("two-working-versions", "schemas/note/1.1.json"),
    }
    suite = ElementTree.fromstring(run("bus schema check --format junit").stdout)[0]
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("1", "1")
    assert "::error file=schemas/note/1.1.json" in run("bus schema check --format github").stdout
    done = run("bus schema check")
    assert (done.returncode, "mend: " in done.stdout) == (1, True)


@pytest.mark.parametrize(
    ("mode", "code"), [("backward", 1), ("forward", 0), ("full", 1), ("full_transitive", 1), ("sideways", 2)]
)
def test_modes_of_a_diff(project: Path, run: Run, mode: str, code: int) -> None:
    write(project, note_1_0=NOTE, note_1_1=NOTE | {"required": []})
    done = run(f"bus schema diff schemas/note/1.1.json schemas/note/1.0.json --mode {mode}")
    assert done.returncode == code, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("bus schema check --catalogue nowhere", "nowhere is not a folder"),
        ("bus schema check ../note", "has no contract '../note'"),
        ("bus schema check --since no-such-branch", "no revision 'no-such-branch'"),
        ("bus schema check --since --output=x", "no revision '--output=x'"),
        ("bus schema check --mode sideways", "--mode 'sideways' is none of"),
        ("bus schema diff nowhere.json schemas/note/1.0.json", "nowhere.json cannot be read"),
        ("bus schema diff broken.json schemas/note/1.0.json", "broken.json: not JSON"),
        ("bus schema lint nothing", "has no contract 'nothing'"),
        ("bus schema generate ../x=json:Note", "not a message type"),
        ("bus schema generate", "no contract has a model yet"),
        ("bus schema release note", "--owner TEAM"),
        ("bus schema release nothing --owner desk", "has no contract 'nothing'"),
        ("bus schema docs --out broken.json", "broken.json cannot be written"),
    ],
)
def test_wrong_use_is_one_line_and_the_code_2(project: Path, run: Run, command: str, says: str) -> None:
    write(project, note_1_0=NOTE)
    (project / "broken.json").write_text("{")
    done = run(command)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_broken_file_is_a_finding_beside_the_others(project: Path, run: Run) -> None:
    write(project, note_1_0="{", order_1_0=NOTE)
    done = run("bus schema check")
    assert done.returncode == 1
    assert "schemas/note/1.0.json: not JSON" in done.stdout
    assert "order" in done.stdout


def test_a_folder_without_git_cannot_tell_a_change(project: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "loose").mkdir()
    done = run(f"bus schema check --since main --catalogue {tmp_path / 'loose'}")
    assert done.returncode == 2
    assert "git rev-parse failed" in done.stderr


def test_a_breaking_release_needs_a_reason_and_keeps_it(project: Path, run: Run) -> None:
    write(project, note_1_0=NOTE)
    assert run("bus schema release note --owner desk").returncode == 0
    write(project, note_1_1=NOTE | {"required": ["text", "author"], "examples": [{"text": "a", "author": "b"}]})
    assert run("bus schema release note").returncode == 1
    done = run("bus schema release note --accept-breaking 'nobody reads it yet'")
    assert (done.returncode, "released note@1.1" in done.stdout) == (0, True)
    done = run("bus schema check")
    assert done.returncode == 0
    assert "accepted: nobody reads it yet" in done.stdout


def test_our_own_contracts_pass() -> None:
    for line in ("check", "lint --strict", "generate --check"):
        done = subprocess.run(
            [sys.executable, "-m", "bus", "schema", *line.split()],
            cwd=ROOT, capture_output=True, text=True, timeout=25, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_the_rules_of_the_linter_are_listed(run: Run) -> None:
    assert "snake-case" in run("bus schema lint --rules").stdout


def test_a_type_is_chosen_by_its_name_and_not_by_a_part_of_a_path(project: Path, run: Run) -> None:
    """A broken neighbour is not this contract's, a link in its place is, and the catalogue's folder is no type."""
    for name, text in (("note", json.dumps(NOTE)), ("note_pad", "{")):
        (project / "schemas" / name).mkdir(parents=True)
        (project / "schemas" / name / "1.0.json").write_text(text)
    (project / "schemas" / "linked").symlink_to("note")
    for command in ("lint", "check"):
        assert run(f"bus schema {command} note").returncode == 0
        for broken in ("note_pad", "linked"):
            done = run(f"bus schema {command} {broken}")
            assert (done.returncode, done.stderr) == (1, ""), done.stderr
            assert f"schemas/{broken}" in done.stdout
        assert run(f"bus schema {command} schemas").returncode == 2


def test_generate_says_that_the_lock_cannot_be_read(project: Path, run: Run) -> None:
    (project / "schemas").mkdir()
    (project / "schemas" / "lock.json").write_text("{")
    done = run("bus schema generate")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: schemas/lock.json: not JSON")
