"""What a streamed call is made of, without a broker: signatures, requests, words, records (REG-7, EDGE-2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from bus.broker.pull import Delivery
from bus.calls.asked import REQUEST_TYPE, Asked, Window
from bus.calls.capability import Capability
from bus.calls.control import Verb, Word
from bus.calls.records import Told, read_record
from bus.envelope import Envelope
from bus.errors import Rejected
from bus.workflow.artifacts import Artifacts

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 53), 1 << 53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


class Line(BaseModel):
    number: int


def capability(function: Any) -> Capability:
    return Capability("report.write", function, lenient=False, fields={"description": "Writes."})


def test_a_generator_streams_and_its_item_is_the_output_schema() -> None:
    async def iterator() -> AsyncIterator[Line]:
        yield Line(number=1)

    async def generator() -> AsyncGenerator[Line, None]:
        yield Line(number=1)

    async def untyped():  # type: ignore[no-untyped-def]
        yield 1

    async def plain() -> Line:
        return Line(number=1)

    for function in (iterator, generator):
        card = capability(function).card
        assert card.streaming
        assert card.output_schema is not None
        assert card.output_schema["required"] == ["number"]
    assert capability(untyped).card.streaming
    assert capability(untyped).card.output_schema is None
    assert not capability(plain).card.streaming


def test_signatures_that_cannot_stream_are_refused_in_words() -> None:
    def threaded() -> Iterator[int]:
        yield 1

    async def never() -> AsyncIterator[int]:
        raise NotImplementedError

    async def mistyped() -> list[int]:  # type: ignore[misc]
        yield 1

    for function, says in ((threaded, "async def"), (never, "never yields"), (mistyped, r"AsyncIterator\[Item\]")):
        with pytest.raises(TypeError, match=says):
            capability(function)


@pytest.mark.parametrize(
    ("observe", "window"),
    [(None, None), ({}, Window()), ({"chunks": 2, "bytes": 9}, Window(2, 9)), ({"chunks": 2}, Window(2, 1 << 30))],
)
def test_what_a_request_asks_to_observe(observe: Any, window: Window | None) -> None:
    asked = read({"observe": observe} if observe is not None else {})
    assert asked.observe == window
    assert asked.streams is bool(window and window.chunks)
    assert read(asked.to_payload()) == asked


@pytest.mark.parametrize("observe", [1, [], "x", {"chunks": -1}, {"chunks": True}, {"chunks": 1, "bytes": 0}])
def test_another_wish_is_malformed(observe: Any) -> None:
    with pytest.raises(Rejected, match=r"payload\.observe"):
        read({"observe": observe})


def read(members: Any) -> Asked:
    payload = {"tool_call_id": "c", "tool_name": "report.write", "arguments": {}, **members}
    return Asked.of(Envelope(sender="me", to="writer", type=REQUEST_TYPE, payload=payload))


@given(st.sampled_from(Verb), st.text(max_size=128), st.integers(0, 1 << 40))
def test_a_word_says_what_it_was_made_of(verb: Verb, call_id: str, taken: int) -> None:
    call_id = call_id.encode("utf-8", "ignore").decode()
    said = Word.decode(Word(verb, call_id, taken).encode())
    assert said == Word(verb, call_id, taken if verb is Verb.CREDIT else 0)


@given(st.binary(max_size=64) | JSON.map(orjson.dumps) | st.builds(lambda read: orjson.dumps({
    "verb": "credit", "tool_call_id": "c", "read": read}), JSON))  # fmt: skip
def test_a_word_that_is_none_is_passed_over(data: bytes) -> None:
    said = Word.decode(data)
    assert said is None or isinstance(said.read, int)


def delivered(data: bytes, subject: str = "bus.v1.stream.writer.c1") -> Delivery:
    return Delivery(subject, data, {}, "", 1, 1, 0, 0)


def record(told: str, **members: Any) -> bytes:
    payload = {"tool_call_id": "c1", "number": 1, "instance": "i", **members}
    return Envelope(sender="writer", to="me", type=told, payload=payload).encode()


NO_ARTIFACTS = cast("Artifacts", None)


def test_a_record_is_read() -> None:
    data = record("chunk", number=4, chunk=2, data={"a": 1})
    found = asyncio.run(read_record(delivered(data), NO_ARTIFACTS))
    assert found is not None
    assert (found.number, found.told, found.chunk, found.agent, found.caller) == (4, Told.CHUNK, 2, "writer", "me")
    assert found.size_bytes == len(data)


@given(
    st.binary(max_size=64)
    | JSON.map(orjson.dumps)
    | st.builds(
        lambda told, members: record(told, **members),
        st.sampled_from([*Told, "note"]),
        st.dictionaries(st.sampled_from(["number", "instance", "chunk", "data", "chunks", "window"]), JSON),
    )
)
def test_what_is_no_record_is_passed_over_and_never_raises(data: bytes) -> None:
    """Anybody may publish there."""
    found = asyncio.run(read_record(delivered(data), NO_ARTIFACTS))
    if found is not None:
        assert isinstance(found.number, int)
        assert isinstance(found.instance, str)
        assert isinstance(found.chunk, int)


def test_a_record_under_a_foreign_name_is_none() -> None:
    """SEC-1: the sender is in the subject."""
    forged = delivered(record("chunk", chunk=1, data=1), subject="bus.v1.stream.mallory.c1")
    assert asyncio.run(read_record(forged, NO_ARTIFACTS)) is None
