"""Bytes to fields and back: size, depth, JSON, and what a field allows (ENV-1, ENV-2, SEC-7)."""

import copy
import math
from collections import OrderedDict
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.envelope import MAX_BYTES, MAX_DEPTH, Envelope, codec
from bus.errors import Rejected

HEAD = b'"version":"1.2","message_id":"m1","trace_id":"t1","from":"a","to":"b","type":"note"'

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def message(**changes: Any) -> dict[str, Any]:
    fields = {"version": "1.2", "message_id": "m1", "trace_id": "t1", "from": "a", "to": "b", "type": "note"}
    return fields | changes


def refusal(data: bytes, **limits: int) -> Rejected:
    with pytest.raises(Rejected) as caught:
        codec.parse(data, **limits)
    return caught.value


def verdict(data: bytes) -> Rejected | None:
    try:
        Envelope.decode(data)
    except Rejected as rejected:
        return rejected
    return None


def sized(size: int) -> bytes:
    """A message of exactly this many bytes."""
    start, end = b"{" + HEAD + b',"payload":"', b'"}'
    return start + b"x" * (size - len(start) - len(end)) + end


def nested(depth: int) -> bytes:
    """A message of exactly this depth."""
    return b"{" + HEAD + b',"payload":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_the_largest_message_is_one_mebibyte() -> None:
    """SEC-7: both sides of the limit."""
    assert Envelope.decode(sized(MAX_BYTES)).message_id == "m1"
    rejected = refusal(sized(MAX_BYTES + 1))
    assert rejected.info.code == "protocol.too_large"
    assert rejected.info.details == {"limit": 1_048_576, "size": 1_048_577}


def test_the_size_limit_can_be_set() -> None:
    """SEC-7."""
    assert codec.parse(sized(200), max_bytes=200)
    assert refusal(sized(201), max_bytes=200).info.details == {"limit": 200, "size": 201}


def test_too_large_bytes_are_not_even_parsed() -> None:
    """SEC-7: the size is told, not that they are no JSON."""
    assert refusal(b"x" * (MAX_BYTES + 1)).info.code == "protocol.too_large"


def test_the_deepest_message_has_64_levels() -> None:
    """SEC-7: both sides of the limit, the message itself being level 1."""
    assert Envelope.decode(nested(MAX_DEPTH)).message_id == "m1"
    info = refusal(nested(MAX_DEPTH + 1)).info
    assert (info.code, info.details["path"], info.details["limit"]) == ("protocol.malformed", "payload", 64)


@pytest.mark.parametrize("depth", [500, 1024, 1025, 5000, 400_000])
def test_absurd_depth_is_refused_quietly(depth: int) -> None:
    """SEC-7: no RecursionError, no crash."""
    assert refusal(nested(depth)).info.code == "protocol.malformed"


def test_the_depth_limit_can_be_set() -> None:
    """SEC-7."""
    assert codec.parse(nested(3), max_depth=3)
    assert refusal(nested(4), max_depth=3).info.details["limit"] == 3


@given(json_values, st.integers(1, 6))
def test_depth_is_counted_exactly(payload: Any, limit: int) -> None:
    """SEC-7: whatever the shape, and whatever brackets stand in strings."""

    def depth(value: Any) -> int:
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    fields = message(payload=payload)
    data = orjson.dumps(fields)
    if depth(fields) > limit:
        assert refusal(data, max_depth=limit).info.code == "protocol.malformed"
    else:
        assert codec.parse(data, max_depth=limit) == fields


@pytest.mark.parametrize("data", [b"", b"{", b"hello", b"{'a': 1}", b'{"a": NaN}', b'"\xff"', b"{}{}"])
def test_what_is_not_json_is_told_apart(data: bytes) -> None:
    """DEL-4, EDGE-1: JSON-RPC has an own code for it."""
    info = refusal(data).info
    assert (info.code, info.details["path"], info.json_rpc) == ("protocol.malformed", "$", -32700)


@pytest.mark.parametrize("data", [b"[]", b"null", b'"text"', b"1", b"true"])
def test_json_that_is_no_object_is_malformed(data: bytes) -> None:
    """DEL-4."""
    info = refusal(data).info
    assert (info.code, info.details["path"], info.json_rpc) == ("protocol.malformed", "$", -32600)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_rejected(data: bytes) -> None:
    """DEL-4: never another exception."""
    rejected = verdict(data)
    assert rejected is None or "\n" not in rejected.info.message


@given(st.binary(max_size=30), st.integers(0, len(HEAD) + 2), st.integers(0, 30))
def test_damaged_messages_are_read_or_rejected(junk: bytes, start: int, cut: int) -> None:
    """DEL-4: never another exception."""
    whole = b"{" + HEAD + b"}"
    rejected = verdict(whole[:start] + junk + whole[start + cut :])
    assert rejected is None or rejected.info.code in {"protocol.malformed", "protocol.unsupported_version"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("message_id", 1),
        ("trace_id", ""),
        ("session_id", "x" * 129),
        ("workflow_id", False),
        ("from", "a b"),
        ("to", {"agent": "b"}),
        ("role", ["user"]),
        ("type", "Note"),
        ("phase", {}),
        ("status", "ok"),
        ("timestamp", "yesterday"),
        ("extensions", "none"),
    ],
)
def test_a_breach_names_its_field_and_the_rule(field: str, value: Any) -> None:
    """ENV-1, DEL-4."""
    with pytest.raises(Rejected) as caught:
        codec.check_fields(message(**{field: value}))
    info = caught.value.info
    assert (info.code, info.details["path"]) == ("protocol.malformed", field)
    assert info.details["problem"].startswith("must be ")
    assert info.message.startswith(f"`{field}` must be ")
    orjson.dumps(info.to_wire())


@pytest.mark.parametrize("field", ["message_id", "trace_id", "from", "to", "type"])
def test_a_missing_field_is_called_missing(field: str) -> None:
    """ENV-2."""
    fields = message()
    del fields[field]
    with pytest.raises(Rejected, match=rf"`{field}` must be .*; it is missing$") as caught:
        codec.check_fields(fields)
    assert caught.value.info.details["path"] == field


def test_a_refusal_repeats_no_long_text_and_no_line_ends() -> None:
    """OBS-4: what a stranger sends does not flood or forge logs."""
    for value in ("x" * 100_000, "a\nb\x1b[31m\u202e"):
        with pytest.raises(Rejected) as caught:
            codec.check_fields(message(**{"from": value}))
        assert len(caught.value.info.message) < 200
        assert caught.value.info.message.isprintable()


def test_what_was_refused_once_is_refused_again() -> None:
    """SEC-7: a remembered check remembers only what passed."""
    for _ in range(3):
        codec.check_fields(message())
        with pytest.raises(Rejected):
            codec.check_fields(message(to="b" * 65))


@given(json_values)
def test_what_is_written_is_read_back_the_same(payload: Any) -> None:
    """ENV-1."""
    made = Envelope(sender="a", to="b", type="note", payload={"value": payload})
    assert Envelope.decode(made.encode()) == made


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: {"a": None, "b": [1, (n,)]}, lambda n: [None] * 9 + [n]])
def test_a_number_that_json_does_not_have_is_refused(number: float, wrap: Any) -> None:
    """ENV-1: it would silently arrive as null."""
    with pytest.raises(Rejected, match="NaN and infinity") as caught:
        Envelope(sender="a", to="b", type="note", payload=wrap(number)).encode()
    assert caught.value.info.details["path"] == "payload"
    with pytest.raises(Rejected, match="NaN and infinity"):
        Envelope.from_fields(message(later=wrap(number), role=None)).encode()


@pytest.mark.parametrize("payload", [None, {"a": None}, [None, "null", 1.5], "null", {"null": {"null": []}}])
def test_null_itself_can_be_written(payload: Any) -> None:
    """ENV-1."""
    made = Envelope.from_fields(message(payload=payload, status=None))
    assert Envelope.decode(made.encode()).payload == payload


@pytest.mark.parametrize("odd", [2**64, -(2**63) - 1, "\ud800", {1: 2}, {1, 2}, object(), b"bytes"])
def test_what_json_cannot_say_is_refused(odd: Any) -> None:
    """ENV-1: as a Rejected, before anything is sent."""
    with pytest.raises(Rejected) as caught:
        Envelope(sender="a", to="b", type="note", payload={"odd": odd}).encode()
    assert caught.value.info.code == "protocol.malformed"
    orjson.dumps(caught.value.info.to_wire())


def test_a_payload_that_contains_itself_is_refused() -> None:
    """ENV-1."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(Rejected):
        Envelope(sender="a", to="b", type="note", payload=loop).encode()


def test_other_containers_of_python_are_written_as_json() -> None:
    """ENV-1."""
    made = Envelope(sender="a", to="b", type="note", payload=OrderedDict(pair=(1, 2)))
    assert Envelope.decode(made.encode()).payload == {"pair": [1, 2]}


def test_checking_changes_nothing() -> None:
    """ENV-4."""
    fields = message(extensions={"hops": 2.0, "x": [1]}, later={"a": 1})
    before = copy.deepcopy(fields)
    codec.check_fields(fields)
    assert fields == before
