"""Reading a model's tool calls and answering each, held against the types of the providers' SDKs (TOOL-3, TOOL-4)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import MessageParam
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionToolMessageParam
from openai.types.responses import Response, ResponseFunctionToolCall
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import TypeAdapter

from bus import Result
from bus.errors import error
from bus.gateway.answers import answer_text
from bus.gateway.streamed import StreamedResponse
from bus.gateway.tool_use import MAX_CALLS, ToolTurn, ToolUse, read_tool_calls
from tests.unit.gateway.tools import SUM, card

CARDS = [card(), card("echo.repeat", input_schema={"type": "object"})]


def chat(*calls: tuple[str, str, Any], finish_reason: str = "tool_calls") -> dict[str, Any]:
    """A chat completion that calls."""
    tool_calls = [{"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
                  for id, name, arguments in calls]  # fmt: skip
    message = {"role": "assistant", "content": None, "tool_calls": tool_calls}
    return {
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": message, "logprobs": None}],
    }  # fmt: skip


def responses(*calls: tuple[str, str, Any]) -> dict[str, Any]:
    """A response of the Responses API that calls."""
    items = [{"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": arguments}
             for id, name, arguments in calls]  # fmt: skip
    return {
        "id": "r", "object": "response", "created_at": 1.0, "model": "m", "status": "completed", "tools": [],
        "output": [{"type": "reasoning", "id": "rs", "summary": []}, *items], "tool_choice": "auto",
        "parallel_tool_calls": True,
    }  # fmt: skip


def messages(*calls: tuple[str, str, Any]) -> dict[str, Any]:
    """A message of Anthropic's that calls."""
    blocks = [{"type": "tool_use", "id": id, "name": name, "input": arguments} for id, name, arguments in calls]
    return {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
        "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [{"type": "text", "text": "Let me see."}, *blocks],
    }  # fmt: skip


CALLS = (("call_0123456789abcdef", "calculator-add", '{"a": 1, "b": 2}'), ("call_0", "echo-repeat", "{}"))
IN_PARTS = tuple((id, name, json.loads(arguments)) for id, name, arguments in CALLS)
FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "chat": (chat(*CALLS), ChatCompletion),
    "responses": (responses(*CALLS), Response),
    "messages": (messages(*IN_PARTS), AnthropicMessage),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("as_object", [False, True], ids=["dict", "sdk"])
def test_calls_become_drafts(form: str, as_object: bool) -> None:
    """TOOL-4: dicts, and the objects of the SDKs; `arguments` are parsed once."""
    response, model = FORMS[form]
    turn = read_tool_calls(model.model_validate(response) if as_object else response, CARDS, timeout_s=3)
    first, second = turn.drafts.values()
    assert (first.capability, first.arguments, first.timeout_s, first.version) == (
        "calculator.add", {"a": 1, "b": 2}, 3, "1.0.0",
    )  # fmt: skip
    assert first.id == "call_0123456789abcdef"
    assert second.id is not None
    assert second.id.startswith("call_0.")  # an id that every response has again is no id on a bus
    assert turn.refused == {}


def test_a_message_alone_is_read_as_well() -> None:
    """TOOL-4."""
    response: Any = chat(*CALLS)
    assert len(read_tool_calls(response["choices"][0]["message"], CARDS).drafts) == 2
    completion = ChatCompletion.model_validate(response)
    assert len(read_tool_calls(completion.choices[0].message, CARDS).drafts) == 2


@pytest.mark.parametrize("form", ["chat", "responses", "messages"])
def test_every_call_is_answered_once_whatever_became_of_it(form: str) -> None:
    """TOOL-4: good, failed, cancelled, unknown and malformed ones; all at once and in their order."""
    make = {"chat": chat, "responses": responses, "messages": messages}[form]
    turn = read_tool_calls(
        make(
            ("call_good", "calculator-add", '{"a": 1, "b": 2}'),
            ("call_failed", "calculator-add", '{"a": 1, "b": 3}'),
            ("call_cancelled", "calculator-add", '{"a": 1, "b": 4}'),
            ("call_unknown", "calculator_add", "{}"),
            ("call_malformed", "calculator-add", '{"a": 1,'),
        ),
        CARDS,
    )
    assert list(turn.drafts) == ["0", "1", "2"]
    failed = Result.of_error(error("tool.timeout", "too slow").info)
    answers = turn.answer({"0": Result(True, {"sum": 3}), "1": failed})
    if form == "messages":
        TypeAdapter(list[MessageParam]).validate_python(answers)
        (message,) = answers
        assert message["role"] == "user"
        blocks = message["content"]
        assert {block["type"] for block in blocks} == {"tool_result"}
        assert [block.get("is_error", False) for block in blocks] == [False, True, True, True, True]
        pairs = [(block["tool_use_id"], block["content"]) for block in blocks]
    elif form == "chat":
        TypeAdapter(list[ChatCompletionToolMessageParam]).validate_python(answers)
        pairs = [(message["tool_call_id"], message["content"]) for message in answers]
    else:
        TypeAdapter(list[FunctionCallOutput]).validate_python(answers)
        pairs = [(item["call_id"], item["output"]) for item in answers]
    assert [id for id, _ in pairs] == ["call_good", "call_failed", "call_cancelled", "call_unknown", "call_malformed"]
    assert pairs[0][1] == '{"sum":3}'
    codes = [json.loads(text)["error"]["code"] for _, text in pairs[1:]]
    assert codes == ["tool.timeout", "tool.cancelled", "tool.unknown_capability", "tool.validation_failed"]
    assert json.loads(pairs[3][1])["error"]["nearest"] == ["calculator-add"]
    malformed = json.loads(pairs[4][1])["error"]
    assert "are not JSON" in malformed["instruction"]
    assert malformed["schema"] == SUM
    assert malformed["repairs_left"] == 2


@pytest.mark.parametrize(
    "arguments", ["[1]", '"x"', "1", "{'a': 1}", '{"a": NaN}', '{"a": "\\ud800"}', "{" * 9999, 7, [1]]
)
def test_what_is_no_object_of_json_does_not_run(arguments: Any) -> None:
    """TOOL-4: a tool error for the model; nothing is repaired into a call that the model did not make."""
    turn = read_tool_calls(chat(("call_1", "calculator-add", arguments)), CARDS)
    assert not turn.drafts
    assert turn.refused["0"].error is not None
    assert turn.refused["0"].error.code == "tool.validation_failed"
    json.loads(turn.answer({})[0]["content"])


@pytest.mark.parametrize("arguments", ["", None, "{}"])
def test_a_call_that_passes_nothing(arguments: Any) -> None:
    """TOOL-4: providers write it in several ways."""
    assert read_tool_calls(chat(("call_1", "echo-repeat", arguments)), CARDS).drafts["0"].arguments == {}


def test_a_response_at_its_token_limit_says_so() -> None:
    """TOOL-4: half the arguments are not guessed."""
    turn = read_tool_calls(chat(("call_1", "calculator-add", '{"a": 1, "b'), finish_reason="length"), CARDS)
    assert "token limit" in turn.answer({})[0]["content"]


def test_an_equal_id_twice_is_two_calls() -> None:
    """TOOL-4: what some providers do; results must not be told apart by it."""
    turn = read_tool_calls(chat(*[CALLS[0]] * 2), CARDS)
    ids = [draft.id for draft in turn.drafts.values()]
    assert len(set(ids)) == 2
    contents = [one["content"] for one in turn.answer({"0": Result(True, 1), "1": Result(True, 2)})]
    assert contents == ["1", "2"]


def test_no_response_makes_thousands_of_calls() -> None:
    """SEC-7."""
    turn = read_tool_calls(chat(*[("call_1", "echo-repeat", "{}")] * (MAX_CALLS + 5)), CARDS)
    assert len(turn.drafts) == MAX_CALLS
    assert len(turn.answer({})) == MAX_CALLS + 5


def test_custom_tools_are_answered_as_unknown() -> None:
    """TOOL-4: a call that is not answered makes the next request fail."""
    call = {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    answers = read_tool_calls({"role": "assistant", "content": None, "tool_calls": [call]}, CARDS).answer({})
    assert (answers[0]["tool_call_id"], "no tool" in answers[0]["content"]) == ("call_1", True)
    item = {"type": "custom_tool_call", "call_id": "call_2", "name": "sql", "input": "select 1"}
    (output,) = read_tool_calls({"output": [item]}, CARDS).answer({})
    assert (output["type"], output["call_id"]) == ("custom_tool_call_output", "call_2")


@pytest.mark.parametrize("response", [
    {"role": "assistant", "content": "Hello."},
    {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]},
    {"output": []},
    {"choices": []},
    {"choices": [{"message": {"content": "Hello."}}]},
])  # fmt: skip
def test_a_response_without_calls_has_no_answers(response: dict[str, Any]) -> None:
    """TOOL-4."""
    assert read_tool_calls(response, CARDS).answer({}) == []


@pytest.mark.parametrize("response", [{}, {"error": {"message": "overloaded"}}, object(), ResponseFunctionToolCall])
def test_anything_else_is_refused(response: Any) -> None:
    """TOOL-4."""
    with pytest.raises((ValueError, TypeError), match=r"neither|missing"):
        read_tool_calls(response, CARDS)


@pytest.mark.parametrize("response", [
    {"choices": [None]}, {"choices": [{"message": {"tool_calls": [None, 7, {"function": []}]}}]}, {"output": [None, 7]},
    {"content": [None, {"type": "tool_use"}]},
])  # fmt: skip
def test_malformed_responses_do_not_crash(response: dict[str, Any]) -> None:
    """SEC-7."""
    read_tool_calls(response, CARDS).answer({})


parts = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9)
    | st.sampled_from(["function", "custom", "tool_use", "function_call", "assistant", "calculator-add", "{}", "{"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(
        st.sampled_from(["id", "type", "function", "name", "arguments", "input", "custom", "call_id", "tool_calls",
                         "content", "message", "index", "delta"]), below, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["choices", "output", "content", "tool_calls", "role"]), parts, min_size=1))
def test_no_response_crashes_the_reader(response: dict[str, Any]) -> None:
    """SEC-7: whatever a provider sends, it is read, or refused as no response."""
    try:
        turn = read_tool_calls(response, CARDS)
    except ValueError as refused:
        if "neither" not in str(refused):
            raise
        return
    json.dumps(turn.answer({}))


EVENTS = ["response.output_item.added", "response.function_call_arguments.delta", "response.completed",
          "response.output_item.done", "content_block_start", "content_block_delta", "message_delta"]  # fmt: skip


@given(
    st.lists(
        st.fixed_dictionaries(
            {"type": st.sampled_from(EVENTS)},
            optional=dict.fromkeys(
                ["choices", "index", "delta", "content_block", "item", "output_index", "item_id", "response"], parts
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_no_stream_crashes_the_reader(events: list[dict[str, Any]]) -> None:
    """SEC-7."""
    streamed = StreamedResponse()
    for event in events:
        streamed.add(event)
    json.dumps(read_tool_calls(streamed.response, CARDS).answer({}))


def test_repairs_are_bounded_over_a_conversation() -> None:
    """TOOL-3: a bounded number of repairs, and a good call gives them back."""
    use = ToolUse(repairs=2)
    refused = Result.of_error(error("tool.validation_failed", "wrong").info)
    assert turn_of(use).drafts["0"].repairs_left == 2
    use.note([("calculator-add", refused), ("calculator-add", refused)])
    assert turn_of(use).drafts["0"].repairs_left == 1
    use.note([("calculator-add", Result(True, 3))])
    assert turn_of(use).drafts["0"].repairs_left == 2
    for _ in range(2):
        use.note([("calculator-add", refused)])
    assert use.exhausted == ["calculator-add"]
    turn = turn_of(use)
    assert not turn.drafts
    assert "refused too often" in turn.answer({})[0]["content"]


def turn_of(use: ToolUse) -> ToolTurn:
    return read_tool_calls(chat(("call_1", "calculator-add", '{"a": 1, "b": 2}')), CARDS, use=use)


@pytest.mark.parametrize(
    "data", [{"rows": ["x" * 100] * 1000}, "é" * 100_000, ["y"] * 100_000, {str(n): n for n in range(9999)}]
)
@pytest.mark.parametrize("limit", [256, 1000, 32_768])
def test_no_answer_is_longer_than_it_may_be(data: Any, limit: int) -> None:
    """TOOL-6: cut, with the reference to the whole."""
    whole = {"sha256": "0" * 64, "size_bytes": 99_999}
    text = answer_text(Result(True, data, None, {"whole": whole}), limit)
    assert len(text.encode()) <= limit
    assert json.loads(text)["cut"] is True
    assert json.loads(text)["whole"] == whole


@pytest.mark.parametrize("limit", [256, 1000, 32_768])
def test_no_error_is_longer_than_it_may_be(limit: int) -> None:
    """TOOL-6: the instruction stays longest."""
    errors = [{"path": f"arguments.{n}", "problem": "x" * 100} for n in range(50)]
    info = error("tool.validation_failed", "wrong " * 40, errors=errors, schema={"x": "y" * 40_000}, repairs_left=1,
                 instruction="Do it again. " * 4, private="secret").info  # fmt: skip
    text = answer_text(Result.of_error(info), limit)
    assert len(text.encode()) <= limit
    told = json.loads(text)["error"]
    assert told["code"] == "tool.validation_failed"
    assert "private" not in told
    assert ("instruction" in told) is (limit > 256)
