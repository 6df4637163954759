"""Running a model's tool calls on the bus, and the messages that answer them (TOOL-3, TOOL-4, TOOL-6)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from bus.calls.asked import MAX_CALL_ID_CHARS, MAX_REPAIRS
from bus.calls.call import Call
from bus.calls.card import Card
from bus.calls.cut import cut
from bus.calls.draft import CallDraft
from bus.calls.index import Offer
from bus.client import Bus
from bus.contracts.result import Result
from bus.delivery.message import Message
from bus.envelope import new_message_id
from bus.errors import BrokerError, BusError, ErrorInfo, error
from bus.gateway.answers import answer_text
from bus.gateway.anthropic import Messages
from bus.gateway.openai import Chat, Responses
from bus.gateway.tool_call import Provider, ToolAnswer, ToolCall
from bus.gateway.toolbox import Toolbox, wanted_version
from bus.workflow.artifacts import Artifacts

log = logging.getLogger("bus.gateway")

MAX_RESULT_BYTES = 32 * 1024
MAX_CALLS = 128
IN_FLIGHT = 16
# Some providers number the calls of every response from 0; such an id says nothing on a bus.
MIN_UNIQUE_CHARS = 16

_REFUSALS = ("tool.validation_failed", "tool.unknown_capability")
_PROVIDERS: tuple[Provider, ...] = (Chat(), Responses(), Messages())


class ToolUse:
    """What one conversation with a model has used up: pass the same one with every response of it.

    A tool whose arguments were refused `repairs` times in a row is not called any more, so that no loop goes on for
    ever; a good call gives it all its repairs back. `exhausted` says which tools have none left.
    """

    def __init__(self, *, repairs: int = MAX_REPAIRS) -> None:
        self._repairs = repairs
        self._refused: Counter[str] = Counter()
        self._made: Counter[str] = Counter()

    @property
    def exhausted(self) -> list[str]:
        """The tools that are not called any more, by name."""
        return sorted(name for name in self._refused if not self.left(name))

    def left(self, name: str) -> int:
        """How often the arguments of a tool may still be refused before it is not called any more."""
        return max(0, self._repairs - self._refused[name])

    def note(self, results: Iterable[tuple[str, Result]]) -> None:
        """Takes in what the calls of one response came to, by tool; many refused at once count as one."""
        by_tool: dict[str, list[Result]] = {}
        for name, result in results:
            by_tool.setdefault(name, []).append(result)
        for name, ones in by_tool.items():
            if any(one.ok for one in ones):
                self._refused.pop(name, None)
            elif any(one.error is not None and one.error.code in _REFUSALS for one in ones):
                self._refused[name] += 1

    def turn_of(self, call: str) -> int:
        """How often an equal call was made before this one."""
        self._made[call] += 1
        return self._made[call]


@dataclass(frozen=True, slots=True)
class ToolTurn:
    """The tool calls of one response: `drafts` are those that can be made, the others are refused already.

    `results` are by the position of the call, as text; so are the ids that `drafts` are found under.
    """

    calls: tuple[ToolCall, ...]
    drafts: Mapping[str, CallDraft] = field(hash=False)
    refused: Mapping[str, Result] = field(hash=False)
    provider: Provider = field(hash=False)

    def answer(self, results: Mapping[str, Result], *, max_bytes: int = MAX_RESULT_BYTES) -> list[dict[str, Any]]:
        """The messages to append: every call has exactly one answer, also one that has no result, as cancelled."""
        answers = []
        for place, call in enumerate(self.calls):
            result = self.refused.get(str(place)) or results.get(str(place)) or _cancelled(call)
            answers.append(ToolAnswer(call, answer_text(result, max_bytes), not result.ok))
        return self.provider.messages(answers)


def read_tool_calls(
    response: Any,
    tools: Toolbox | Iterable[Card | Offer],
    *,
    use: ToolUse | None = None,
    timeout_s: float | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
) -> ToolTurn:
    """The tool calls of a model's response, as drafts for `bus.call_many`; runs nothing.

    The response is a chat completion or its message, a response of the Responses API, or a message of Anthropic's,
    as a dict or as an object of their SDKs. Raises ValueError for anything else.
    """
    toolbox, use = Toolbox.of(tools), use or ToolUse()
    mapping = response if isinstance(response, Mapping) else _dumped(response)
    provider = next((one for one in _PROVIDERS if one.reads(mapping)), None)
    if provider is None:
        raise ValueError(
            f"a response with {', '.join(map(str, list(mapping)[:8])) or 'nothing'} is neither OpenAI's nor Anthropic's"
        )
    calls = provider.calls(mapping)
    drafts: dict[str, CallDraft] = {}
    refused: dict[str, Result] = {}
    ids: set[str] = set()
    for place, call in enumerate(calls):
        info = _refusal(call, place, toolbox, use)
        if info is not None:
            refused[str(place)] = Result.of_error(info, tool_call_id=call.id)
            continue
        card = toolbox.cards[call.name]
        draft_id = _draft_id(call.id, ids)
        ids.add(draft_id)
        drafts[str(place)] = CallDraft(
            card.name,
            call.arguments,
            id=draft_id,
            timeout_s=timeout_s,
            version=wanted_version(card),
            repairs_left=use.left(call.name),
            max_result_bytes=max_result_bytes,
        )
    return ToolTurn(tuple(calls), drafts, refused, provider)


async def run_tool_calls(
    bus: Bus | Message | Call,
    response: Any,
    tools: Toolbox | Iterable[Card | Offer],
    *,
    use: ToolUse | None = None,
    timeout_s: float | None = None,
    max_result_bytes: int = MAX_RESULT_BYTES,
    in_flight: int = IN_FLIGHT,
) -> list[dict[str, Any]]:
    """Runs every tool call of a model's response at once, and returns the messages to append behind the response.

    Every call is answered exactly once, also one that is unknown, malformed or failed: the failure is for the model.
    Results over `max_result_bytes` are cut, with a reference to the whole. In a handler pass its `Message` or `Call`
    as `bus`: the calls then share its deadline, and a handler that runs again gets the stored results of equal calls.
    Empty when the response calls nothing. Cancelled, it cancels the calls. Raises ValueError as `read_tool_calls`.
    """
    use = use or ToolUse()
    turn = read_tool_calls(response, tools, use=use, timeout_s=timeout_s, max_result_bytes=max_result_bytes)
    results: dict[str, Result] = dict(turn.refused)
    waiting = iter(turn.drafts.items())

    async def work() -> None:
        for place, draft in waiting:
            results[place] = await _bounded(await _ask(bus, draft, use), max_result_bytes, bus.artifacts)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(in_flight, len(turn.drafts))):
            group.create_task(work())
    use.note((call.name, results[str(place)]) for place, call in enumerate(turn.calls))
    return turn.answer(results, max_bytes=max_result_bytes)


async def _bounded(result: Result, max_bytes: int, artifacts: Artifacts) -> Result:
    """A result that is cut, also when its callee did not do that."""
    if not result.ok or "whole" in result.meta:
        return result
    try:
        data, whole = await cut(result.data, max_bytes, artifacts)
    except BrokerError as problem:
        log.warning("a result of %d bytes or more is cut without a reference: %s", max_bytes, problem.info.message)
        return result
    return result if whole is None else Result(True, data, None, {**result.meta, "whole": whole}, result.tool_call_id)


async def _ask(bus: Bus | Message | Call, draft: CallDraft, use: ToolUse) -> Result:
    if isinstance(bus, Bus):
        (result,) = (await bus.call_many([draft])).values()
        return result
    options: dict[str, Any] = {
        "id": draft.id,
        "version": draft.version,
        "repairs_left": draft.repairs_left,
        "max_result_bytes": draft.max_result_bytes,
        "timeout_s": draft.timeout_s,
    }
    if isinstance(bus, Message):
        equal = hashlib.sha256(
            orjson.dumps([draft.capability, draft.arguments], option=orjson.OPT_SORT_KEYS)
        ).hexdigest()
        options["key"] = f"{equal}:{use.turn_of(equal)}"
    try:
        return await bus.call(draft.capability, draft.arguments, **options)
    except BusError as problem:
        return Result.of_error(problem.info, tool_call_id=draft.id or "")


def _refusal(call: ToolCall, place: int, toolbox: Toolbox, use: ToolUse) -> ErrorInfo | None:
    """Why a call is not made at all."""
    if place >= MAX_CALLS:
        return error("tool.cancelled", f"not called: at most {MAX_CALLS} calls in one response; ask for less").info
    if not use.left(call.name):
        return error(
            "tool.validation_failed",
            f"not called: {call.name[:128]} was refused too often; say what is missing, or use another tool",
            repairs_left=0,
            started=False,
        ).info
    if call.is_custom or call.name not in toolbox.cards:
        near = toolbox.nearest(call.name)
        return error(
            "tool.unknown_capability",
            f"there is no tool {call.name[:128]!r}"
            + (f"; did you mean {' or '.join(near)}?" if near else f"; there are {_some(toolbox)}"),
            nearest=near,
        ).info
    if call.problem is not None:
        left = max(0, use.left(call.name) - 1)
        card = toolbox.cards[call.name]
        details = {**call.problem.details, "schema": dict(card.input_schema), "repairs_left": left}
        return ErrorInfo(call.problem.code, call.problem.message, details, retryable=False)
    return None


def _some(toolbox: Toolbox) -> str:
    names = list(toolbox.cards)
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") or "none"


def _cancelled(call: ToolCall) -> Result:
    info = error("tool.cancelled", "the call was cancelled; it may have run").info
    return Result.of_error(info, tool_call_id=call.id)


def _draft_id(given: str, taken: set[str]) -> str:
    """The id on the bus: the model's own where that is one of its kind."""
    if MIN_UNIQUE_CHARS <= len(given) <= MAX_CALL_ID_CHARS and given.isprintable() and given not in taken:
        return given
    return f"{given[:64]}.{new_message_id()}" if given.isprintable() and given else new_message_id()


def _dumped(response: Any) -> Mapping[str, Any]:
    dump = getattr(response, "model_dump", None)
    found = dump(mode="json", by_alias=True) if callable(dump) else None
    if not isinstance(found, Mapping):
        raise ValueError(f"a response of the type {type(response).__name__} is neither OpenAI's nor Anthropic's")
    return found
