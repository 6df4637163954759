"""The wire specification says what the code does: its examples are read by it, its tables name what it knows."""

import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from bus.broker.records import Record
from bus.broker.subjects import LANES, Subjects, token
from bus.contracts.accepts import Accepts
from bus.delivery.settlement import Verdict
from bus.envelope import MAX_BYTES, MAX_DEPTH, SUPPORTED, Envelope, codec, extensions
from bus.errors import Advice, ErrorInfo
from bus.registry.answers import Answers
from bus.workflow import completions
from bus.workflow.checkpoints import Checkpoint
from bus.workflow.control import NOTHING
from bus.workflow.record import WorkflowRecord

TEXT = (Path(__file__).parents[2] / "schemas" / "README.md").read_text(encoding="utf-8")
EXAMPLES: list[Any] = [orjson.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
ENVELOPES = [example for example in EXAMPLES if "version" in example]


class ReviewRequest(BaseModel):
    index: int


def first_cells(heading: str) -> list[str]:
    """The names in the first column of the first table under a heading."""
    section = re.split(r"\n#{2,3} ", TEXT.split(f"# {heading}\n", 1)[1])[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("example", ENVELOPES)
def test_the_example_messages_are_accepted(example: dict[str, Any]) -> None:
    """EDGE-5: who copies an example is understood."""
    assert Envelope.decode(orjson.dumps(example)).fields.items() >= example.items()


def test_the_example_error_is_what_the_codec_says() -> None:
    """REG-6."""
    (example,) = [example for example in EXAMPLES if "code" in example]
    with pytest.raises(Exception, match="hops") as caught:
        extensions.check({"hops": "3"})
    assert caught.value.info.to_wire() == example  # type: ignore[attr-defined]


def test_the_example_error_message_holds_an_error_of_the_table() -> None:
    """DEL-4."""
    (example,) = [example for example in ENVELOPES if example["type"] == "error"]
    assert ErrorInfo.from_wire(example["payload"]["error"]).to_wire() == example["payload"]["error"]


def test_the_example_completions_are_read() -> None:
    """DEL-2."""
    (example,) = [example for example in EXAMPLES if example.get("completed") and "failed" not in example]
    (one,) = completions.decode(orjson.dumps(example))
    assert orjson.loads(completions.encode([one])) == example


def test_the_example_lease_is_read() -> None:
    """REG-9."""
    (example,) = [example for example in EXAMPLES if "accepts" in example]
    accepts = Accepts.from_wire(example["accepts"])
    assert accepts.to_wire() == example["accepts"]
    assert [accepts.takes("review_request", major) for major in (1, 2, 3)] == [True, True, False]
    assert accepts.takes("note", 9) is True


def test_the_example_answer_is_what_a_replica_says() -> None:
    """SCH-5."""
    (example,) = [example for example in EXAMPLES if "json_schema" in example]
    accepts = Accepts(frozenset(), {"review_request": frozenset({1, 2})}, {"review_request": "review_request@2.0"})
    answers = Answers("reviewer", example["replica"], accepts, {"review_request": ReviewRequest}, max_bytes=10_000)
    answer = orjson.loads(answers.to(orjson.dumps({"type": "review_request"})))
    said = answer.pop("json_schema")
    assert answer == {name: value for name, value in example.items() if name != "json_schema"}
    assert said["required"] == example["json_schema"]["required"]
    assert "handles" in orjson.loads(answers.to(b'{"type": "note"}'))


def test_the_tables_name_every_field_and_extension() -> None:
    """ENV-1, ENV-5."""
    assert first_cells("Envelope") == list(codec.FIELDS)
    assert first_cells("Extensions") == list(extensions.REGISTERED)


def test_versions_limits_and_words_are_the_codes_own() -> None:
    """ENV-3, SEC-7, OBS-1."""
    assert f'The set is `["{", ".join(SUPPORTED)}"]` now' in TEXT
    assert f"| bytes of a message | {MAX_BYTES:,} |" in TEXT
    assert f"| levels of objects and arrays | {MAX_DEPTH} |" in TEXT
    assert all(f"| `{advice}` |" in TEXT for advice in Advice)
    assert all(f"`{verdict.value}`" in TEXT for verdict in Verdict)


def test_the_subjects_are_the_codes_own() -> None:
    """DEL-1, DEL-4, DEL-10."""
    subjects = Subjects("bus")
    assert first_cells("Subjects") == [
        subjects.work("<to>", "<lane>", "<from>", "<type>"),
        subjects.work("<to>", "<lane>", "<from>", "<type>").replace(".work.", ".history."),
        subjects.later("<to>", "<from>", "<type>", "m").rpartition(".")[0] + ".<id>",
        subjects.due("<to>", "<from>", "<type>"),
        "bus.v1.event.<from>.<workflow>.<type>",
        subjects.stream("<from>", "call").replace(".call", ".<call>"),
        subjects.dead("<agent>", "<reason>"),
        subjects.done("<agent>"),
        subjects.task("id").replace(".id", ".<id>"),
        subjects.audit("<writer>"),
        subjects.rules_status,
        subjects.claims("<agent>"),
        subjects.contracts("<agent>"),
    ]
    assert subjects.event("a", "w", "t") == "bus.v1.event.a.w.t"
    assert set(LANES) == {"high", "normal", "low"}
    assert f"`wf 09` is `{token('wf 09')}`" in TEXT


def test_the_examples_of_workflows_are_read() -> None:
    """EDGE-5, WF-2, WF-3: the record, the checkpoint and the decision stand as the code reads and writes them."""
    (record,) = [example for example in EXAMPLES if "changes_before" in example]
    read = WorkflowRecord.from_wire(orjson.dumps(record), 1)
    assert orjson.loads(read.to_wire()) == record
    (checkpoint,) = [example for example in EXAMPLES if "positions" in example]
    assert Checkpoint.of(Record(orjson.dumps(checkpoint), 7)).revision == 7
    (decision,) = [example for example in EXAMPLES if "is_complete" in example]
    assert NOTHING.with_document("branch", decision).branch == 1
