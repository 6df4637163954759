"""The envelope as Python sees it (ENV-1, ENV-2, ENV-4)."""

import copy
import pickle
import re
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from bus.envelope import Envelope, is_timestamp
from bus.errors import Rejected

NAMES = [
    "version",
    "message_id",
    "trace_id",
    "session_id",
    "workflow_id",
    "sender",
    "to",
    "role",
    "type",
    "phase",
    "status",
    "timestamp",
    "extensions",
    "payload",
]
MINIMAL = {"version": "1.2", "message_id": "m1", "trace_id": "t1", "from": "a", "to": "b", "type": "note"}
FULL = MINIMAL | {
    "session_id": "s1",
    "workflow_id": "w1",
    "role": "tool",
    "phase": "review",
    "status": "success",
    "timestamp": "2026-01-31T09:30:00Z",
    "extensions": {"hops": 2, "x_color": "teal"},
    "payload": {"n": 1},
    "importance": 9,
}


def test_a_new_envelope_is_complete() -> None:
    """ENV-1, ENV-2: what is optional on reading is filled on writing."""
    made = Envelope(sender="planner", to="writer", type="draft_request")
    written = orjson.loads(made.encode())
    assert list(written) == [
        "version",
        "message_id",
        "trace_id",
        "session_id",
        "workflow_id",
        "from",
        "to",
        "type",
        "timestamp",
        "extensions",
        "payload",
    ]
    assert written["version"] == "1.2"
    assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", written["message_id"])
    assert re.fullmatch("[0-9a-f]{32}", written["trace_id"])
    assert is_timestamp(written["timestamp"])
    assert written["timestamp"].endswith("Z")
    assert (written["session_id"], written["workflow_id"]) == (None, None)
    assert (written["extensions"], written["payload"]) == ({}, {})


def test_fields_with_a_meaning_are_written_when_given() -> None:
    """ENV-2: role, phase and status."""
    made = Envelope(sender="a", to="b", type="note", role="user", phase="plan", status="error")
    written = orjson.loads(made.encode())
    assert (written["role"], written["phase"], written["status"]) == ("user", "plan", "error")


def test_a_foreign_minimal_message_is_read_and_completed() -> None:
    """ENV-2."""
    read = Envelope.decode(orjson.dumps(MINIMAL))
    assert {name: getattr(read, name) for name in NAMES} == {
        "version": "1.2",
        "message_id": "m1",
        "trace_id": "t1",
        "session_id": None,
        "workflow_id": None,
        "sender": "a",
        "to": "b",
        "role": None,
        "type": "note",
        "phase": None,
        "status": None,
        "timestamp": None,
        "extensions": {},
        "payload": {},
    }
    written = orjson.loads(read.encode())
    assert is_timestamp(written.pop("timestamp"))
    assert written == MINIMAL | {"session_id": None, "workflow_id": None, "extensions": {}, "payload": {}}
    assert read.timestamp is None


def test_a_full_message_is_read_as_it_stands() -> None:
    """ENV-1."""
    read = Envelope.decode(orjson.dumps(FULL))
    assert read.fields == FULL
    assert orjson.loads(read.encode()) == FULL
    assert (read.sender, read.role, read.phase, read.status) == ("a", "tool", "review", "success")
    assert (read.session_id, read.workflow_id, read.timestamp) == ("s1", "w1", "2026-01-31T09:30:00Z")
    assert read.payload == {"n": 1}


def test_unknown_fields_and_extensions_are_kept_through_a_relay() -> None:
    """ENV-4."""
    foreign = MINIMAL | {
        "importance": 9,
        "sender": {"team": "x"},
        "extensions": {"x": [1, None]},
        "payload": {"new": 1},
    }
    relayed = Envelope.decode(Envelope.decode(orjson.dumps(foreign)).replace(to="c").encode())
    assert relayed.unknown == {"importance": 9, "sender": {"team": "x"}}
    assert relayed.extensions == {"x": [1, None]}
    assert relayed.payload == {"new": 1}
    assert relayed.sender == "a"


@pytest.mark.parametrize("name", [*NAMES, "hops", "unknown", "fields", "new_attribute", "_fields"])
def test_an_envelope_is_frozen(name: str) -> None:
    """ENV-1."""
    read = Envelope.decode(orjson.dumps(FULL))
    with pytest.raises(AttributeError, match="frozen"):
        setattr(read, name, "x")
    with pytest.raises(AttributeError, match="frozen"):
        delattr(read, name)
    assert read.fields == FULL


def test_the_views_are_read_only() -> None:
    """ENV-1."""
    read: Any = Envelope.decode(orjson.dumps(FULL))
    with pytest.raises(TypeError):
        read.fields["to"] = "c"
    with pytest.raises(TypeError):
        read.extensions["hops"] = 9
    read.unknown["importance"] = 1
    assert read.fields == FULL


def test_what_was_passed_in_can_change_without_harm() -> None:
    """ENV-1."""
    extensions, fields = {"hops": 1}, dict(MINIMAL)
    made, read = Envelope(sender="a", to="b", type="note", extensions=extensions), Envelope.from_fields(fields)
    extensions["hops"], fields["to"] = 2, "c"
    assert (made.hops, read.to) == (1, "b")


def test_replace_makes_a_checked_copy() -> None:
    """ENV-1, ENV-4."""
    read = Envelope.decode(orjson.dumps(FULL))
    other = read.replace(sender="c", phase="execute", extensions={**read.extensions, "hops": 3}, payload=[1])
    assert other.fields == FULL | {
        "from": "c",
        "phase": "execute",
        "extensions": {"hops": 3, "x_color": "teal"},
        "payload": [1],
    }
    assert read.fields == FULL
    assert read.replace() == read
    assert read.replace(extensions=read.extensions).encode() == read.encode()


def test_replace_takes_away_what_has_no_meaning() -> None:
    """ENV-2."""
    plain = Envelope.decode(orjson.dumps(FULL)).replace(role=None, phase=None, status=None, timestamp=None)
    assert plain.fields.keys() == FULL.keys() - {"role", "phase", "status", "timestamp"}
    assert plain.replace(workflow_id=None).fields["workflow_id"] is None


def test_replace_refuses_what_an_envelope_does_not_have_or_allow() -> None:
    """ENV-1, ENV-3."""
    read = Envelope.decode(orjson.dumps(MINIMAL))
    with pytest.raises(TypeError, match=r"'from'.*sender"):
        read.replace(**{"from": "c"})
    with pytest.raises(TypeError, match="importance"):
        read.replace(importance=1)
    for change in ({"sender": None}, {"to": "c d"}, {"extensions": None}, {"status": "done"}, {"message_id": ""}):
        with pytest.raises(Rejected):
            read.replace(**change)
    with pytest.raises(Rejected, match="unsupported_version"):
        read.replace(version="2.0")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"sender": "*"}, "from"),
        ({"to": "a.b"}, "to"),
        ({"type": "Note"}, "type"),
        ({"message_id": "x" * 129}, "message_id"),
        ({"role": "robot"}, "role"),
        ({"timestamp": "now"}, "timestamp"),
        ({"extensions": {"priority": 1}}, "extensions.priority"),
    ],
)
def test_a_made_envelope_obeys_the_same_rules(change: dict[str, Any], path: str) -> None:
    """ENV-1: nobody can send what nobody can read."""
    with pytest.raises(Rejected) as caught:
        Envelope(**({"sender": "a", "to": "b", "type": "note"} | change))
    assert caught.value.info.details["path"] == path


def test_convenience_reads_of_extensions() -> None:
    """ENV-5: registered names have a reader."""
    made = Envelope(
        sender="a",
        to="b",
        type="note",
        extensions={
            "causation_id": "m0",
            "correlation_id": "c0",
            "schema": "note@1.0",
            "expires_at": "2026-01-31T10:30:00+01:00",
            "hops": 3,
        },
    )
    assert (made.causation_id, made.correlation_id, made.schema, made.hops) == ("m0", "c0", "note@1.0", 3)
    assert made.expires_at == datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    plain = Envelope(sender="a", to="b", type="note")
    assert (plain.causation_id, plain.correlation_id, plain.schema, plain.expires_at, plain.hops) == (
        None,
        None,
        None,
        None,
        0,
    )
    assert repr(plain.replace(extensions={"hops": 2.0}).hops) == "2"


def test_equality_and_hash() -> None:
    """ENV-1."""
    one, same = Envelope.decode(orjson.dumps(FULL)), Envelope.from_fields(FULL)
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same, one.replace(message_id="m2")}) == 2
    assert one != one.replace(to="c")
    assert one != FULL


def test_the_repr_is_short_and_without_the_payload() -> None:
    """OBS-4: an envelope in a log line does not spill its content."""
    made = Envelope(sender="a", to="b", type="note", message_id="m1", payload={"secret": "x" * 1000})
    assert repr(made) == "<Envelope note a -> b m1>"


def test_copies_and_pickles_are_equal() -> None:
    """ENV-1."""
    read = Envelope.decode(orjson.dumps(FULL))
    assert copy.copy(read) == copy.deepcopy(read) == pickle.loads(pickle.dumps(read)) == read


def test_the_options_are_keyword_only() -> None:
    """ENV-1: from and to cannot be swapped by accident."""
    positional: Any = Envelope
    with pytest.raises(TypeError):
        positional("a", "b", "note")
