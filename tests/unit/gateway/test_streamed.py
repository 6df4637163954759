"""Streams of tool calls put together; shapes as the providers' SDKs have them, and slips seen in the field (TOOL-4)."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from bus.gateway.streamed import StreamedResponse
from bus.gateway.tool_use import read_tool_calls
from tests.unit.gateway.tools import card

CARDS = [card(), card("echo.repeat", input_schema={"type": "object"})]
A, B = '{"a": 1, "b": 2}', '{"text": "hi"}'


def delta(index: int | None, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    """One delta of a tool call; what is None is not there."""
    function = {"name": name, "arguments": arguments}
    whole = {"index": index, "id": id, "function": {key: one for key, one in function.items() if one is not None}}
    return {key: one for key, one in whole.items() if one is not None}


def chunk(*deltas: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """A chunk of a chat completion."""
    choice = {"index": 0, "delta": {"tool_calls": list(deltas)}, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def put_together(chunks: list[Any]) -> list[tuple[str, str, Any]]:
    """The calls that a stream makes."""
    streamed = StreamedResponse()
    for one in chunks:
        streamed.add(one)
    turn = read_tool_calls(streamed.response, CARDS)
    return [(call.id, call.name, call.arguments) for call in turn.calls]


WANTED = [("call_a", "calculator-add", {"a": 1, "b": 2}), ("call_b", "echo-repeat", {"text": "hi"})]
STREAMS = {
    "as specified": [
        chunk(delta(0, "call_a", "calculator-add", "")), chunk(delta(0, None, None, A[:5])),
        chunk(delta(0, None, None, A[5:])), chunk(delta(1, "call_b", "echo-repeat", "")),
        chunk(delta(1, None, None, B), ), chunk(finish_reason="tool_calls"),
    ],
    "interleaved": [
        chunk(delta(0, "call_a", "calculator-add", ""), delta(1, "call_b", "echo-repeat", "")),
        chunk(delta(1, None, None, B[:4]), delta(0, None, None, A[:4])),
        chunk(delta(0, None, None, A[4:]), delta(1, None, None, B[4:])),
    ],
    "one index for all, whole calls": [
        chunk(delta(0, "call_a", "calculator-add", A)), chunk(delta(0, "call_b", "echo-repeat", B)),
    ],
    "one index for all, interleaved by id": [
        chunk(delta(0, "call_a", "calculator-add", A[:5])), chunk(delta(0, "call_b", "echo-repeat", B[:5])),
        chunk(delta(0, "call_a", None, A[5:])), chunk(delta(0, "call_b", None, B[5:])),
    ],
    "id and name with every delta": [
        chunk(delta(0, "call_a", "calculator-add", A[:5])), chunk(delta(0, "call_a", "calculator-add", A[5:])),
        chunk(delta(1, "call_b", "echo-repeat", B[:5])), chunk(delta(1, "call_b", "echo-repeat", B[5:])),
    ],
    "no index": [
        chunk(delta(None, "call_a", "calculator-add", A[:5])), chunk(delta(None, None, None, A[5:])),
        chunk(delta(None, "call_b", "echo-repeat", B)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", STREAMS)
def test_chat_chunks_are_merged_by_id(form: str) -> None:
    """TOOL-4: providers repeat `index`."""
    assert put_together(STREAMS[form]) == WANTED


@pytest.mark.parametrize("form", ["as specified", "interleaved"])
def test_chunks_of_the_sdk(form: str) -> None:
    """TOOL-4."""
    assert put_together([ChatCompletionChunk.model_validate(one) for one in STREAMS[form]]) == WANTED


def test_calls_without_ids_are_told_apart_by_being_whole() -> None:
    """TOOL-4: seen in the field: no ids, one index, the name with every delta."""
    chunks = [
        chunk(delta(0, None, "calculator-add", A[:6])), chunk(delta(0, None, "calculator-add", A[6:])),
        chunk(delta(0, None, "echo-repeat", B)),
    ]  # fmt: skip
    assert put_together(chunks) == [("", name, arguments) for _, name, arguments in WANTED]


def test_a_new_id_with_every_delta_is_one_call_while_no_name_comes() -> None:
    """TOOL-4: seen in the field."""
    chunks = [chunk(delta(0, "call_a", "calculator-add", A[:6])), chunk(delta(0, "call_x", None, A[6:]))]
    assert put_together(chunks) == WANTED[:1]


def test_text_stays_beside_the_calls() -> None:
    """TOOL-4: the response is what is appended to the conversation."""
    streamed = StreamedResponse()
    for text in ("Let me ", "see."):
        streamed.add({"choices": [{"index": 0, "delta": {"content": text}}]})
    streamed.add(STREAMS["one index for all, whole calls"][0])
    message = streamed.response["choices"][0]["message"]
    assert (message["content"], message["tool_calls"][0]["function"]["arguments"]) == ("Let me see.", A)


def responses_events() -> list[dict[str, Any]]:
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_a", "name": "calculator-add", "arguments": ""}
    other = {"type": "function_call", "id": "fc_2", "call_id": "call_b", "name": "echo-repeat", "arguments": ""}
    place, second = {"item_id": "fc_1", "output_index": 0}, {"item_id": "fc_2", "output_index": 1}
    events: list[dict[str, Any]] = [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.function_call_arguments.delta", "delta": A[:5], **place},
        {"type": "response.output_item.added", "output_index": 1, "item": other},
        {"type": "response.function_call_arguments.delta", "delta": B, **second},
        {"type": "response.function_call_arguments.delta", "delta": A[5:], **place},
        {"type": "response.function_call_arguments.done", "arguments": A, "name": "calculator-add", **place},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "arguments": A}},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def messages_events() -> list[dict[str, Any]]:
    def block(index: int, id: str, name: str) -> dict[str, Any]:
        content = {"type": "tool_use", "id": id, "name": name, "input": {}}
        return {"type": "content_block_start", "index": index, "content_block": content}

    def part(index: int, text: str) -> dict[str, Any]:
        return {
            "type": "content_block_delta",
            "index": index,
            "delta": {"type": "input_json_delta", "partial_json": text},
        }

    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": list[Any](),
               "stop_reason": None, "stop_sequence": None, "usage": usage}  # fmt: skip
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me see."}},
        {"type": "content_block_stop", "index": 0},
        block(1, "call_a", "calculator-add"), part(1, ""), part(1, A[:5]), part(1, A[5:]),
        {"type": "content_block_stop", "index": 1},
        block(2, "call_b", "echo-repeat"), part(2, B),
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
         "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]  # fmt: skip


@pytest.mark.parametrize("as_object", [False, True], ids=["dict", "sdk"])
def test_events_of_the_responses_api(as_object: bool) -> None:
    """TOOL-4."""
    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    events = responses_events()
    assert put_together([adapter.validate_python(one) for one in events] if as_object else events) == WANTED


@pytest.mark.parametrize("as_object", [False, True], ids=["dict", "sdk"])
def test_events_of_the_messages_api(as_object: bool) -> None:
    """TOOL-4."""
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    events = messages_events()
    assert put_together([adapter.validate_python(one) for one in events] if as_object else events) == WANTED


@pytest.mark.parametrize("stream", ["chat", "responses", "messages"])
def test_a_stream_that_breaks_off_runs_no_half_call(stream: str) -> None:
    """TOOL-4: bad JSON is a tool error, nothing runs."""
    events = {"chat": STREAMS["as specified"][:2], "responses": responses_events()[:2],
              "messages": messages_events()[:7]}[stream]  # fmt: skip
    streamed = StreamedResponse()
    for one in events:
        streamed.add(one)
    turn = read_tool_calls(streamed.response, CARDS)
    assert (len(turn.calls), len(turn.drafts)) == (1, 0)
    assert "not JSON" in str(turn.answer({}))


def test_nothing_streamed_is_no_response() -> None:
    """TOOL-4."""
    streamed = StreamedResponse()
    streamed.add({"type": "ping"})
    with pytest.raises(ValueError, match="nothing was streamed"):
        _ = streamed.response
