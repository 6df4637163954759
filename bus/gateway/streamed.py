"""A streamed response of a model, put together to the one that would have come without streaming (TOOL-4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bus.gateway.model_json import strict_json
from bus.gateway.tool_call import as_object, as_objects, as_text


class StreamedResponse:
    """Takes the chunks or events of one stream, in their order, of whichever API; dicts or objects of the SDKs.

    `response` is what they come to so far. A stream that breaks off leaves calls whose arguments are no JSON: they are
    answered as that, and do not run.
    """

    def __init__(self) -> None:
        self._chat = _Chat()
        self._blocks: dict[Any, _Block] = {}
        self._items: dict[Any, dict[str, Any]] = {}
        self._stop_reason: str | None = None
        self._completed: Mapping[str, Any] | None = None
        self._api = ""

    def add(self, chunk: Any) -> None:
        """Takes the next chunk; those of kinds that it does not know change nothing."""
        event = chunk if isinstance(chunk, Mapping) else as_object(chunk.model_dump(mode="json", by_alias=True))
        kind = event.get("type")
        if "choices" in event:
            self._api = "chat"
            self._chat.add(event)
        elif isinstance(kind, str) and kind.startswith("response."):
            self._api = "responses"
            self._add_item(kind, event)
        elif isinstance(kind, str) and kind.startswith(("message_", "content_block_")):
            self._api = "messages"
            self._add_block(kind, event)

    @property
    def response(self) -> dict[str, Any]:
        """The whole response so far, in the shape of its API. Raises ValueError before the first chunk."""
        if self._api == "chat":
            return self._chat.response()
        if self._api == "responses":
            if self._completed is not None and as_objects(self._completed.get("output")):
                return dict(self._completed)
            status = "incomplete" if self._completed is None else self._completed.get("status")
            return {"object": "response", "status": status, "output": list(self._items.values())}
        if self._api == "messages":
            blocks = [block.content() for block in self._blocks.values()]
            return {"type": "message", "role": "assistant", "content": blocks, "stop_reason": self._stop_reason}
        raise ValueError("nothing was streamed that is OpenAI's or Anthropic's")

    # -- the Responses API --

    def _add_item(self, kind: str, event: Mapping[str, Any]) -> None:
        place = _place(event.get("output_index", event.get("item_id")))
        if kind in ("response.output_item.added", "response.output_item.done"):
            self._items[place] = dict(as_object(event.get("item")))
        elif kind == "response.function_call_arguments.delta" and place in self._items:
            item = self._items[place]
            item["arguments"] = as_text(item.get("arguments")) + as_text(event.get("delta"))
        elif kind == "response.function_call_arguments.done" and place in self._items:
            self._items[place]["arguments"] = event.get("arguments")
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._completed = as_object(event.get("response"))

    # -- the Messages API --

    def _add_block(self, kind: str, event: Mapping[str, Any]) -> None:
        place = _place(event.get("index"))
        if kind == "content_block_start":
            self._blocks[place] = _Block(dict(as_object(event.get("content_block"))))
        elif kind == "content_block_delta" and place in self._blocks:
            self._blocks[place].add(as_object(event.get("delta")))
        elif kind == "message_delta":
            self._stop_reason = as_object(event.get("delta")).get("stop_reason") or self._stop_reason


@dataclass(slots=True)
class _Block:
    """One block of a message of Anthropic's."""

    start: dict[str, Any]
    parts: list[str] = field(default_factory=list)

    def add(self, delta: Mapping[str, Any]) -> None:
        if delta.get("type") == "input_json_delta":
            self.parts.append(as_text(delta.get("partial_json")))
            return
        for name in ("text", "thinking", "signature"):
            if isinstance(delta.get(name), str):
                self.start[name] = as_text(self.start.get(name)) + delta[name]

    def content(self) -> dict[str, Any]:
        written = "".join(self.parts)
        if not written:
            return dict(self.start)
        # What is no JSON stays a string, and is told to the model as that when the call is read.
        return {**self.start, "input": written if not _is_whole(written) else strict_json(written)}


@dataclass(slots=True)
class _Slot:
    """One tool call of a chat completion, while it comes in."""

    id: str | None
    kind: str
    name: str = ""
    parts: list[str] = field(default_factory=list)

    def take(self, delta: Mapping[str, Any]) -> None:
        body = as_object(delta.get("custom" if self.kind == "custom" else "function"))
        # Not joined: there are providers that send the whole name with every delta.
        self.name = self.name or as_text(body.get("name"))
        self.parts.append(as_text(body.get("arguments")) or as_text(body.get("input")))

    def whole(self) -> dict[str, Any]:
        body = {"name": self.name, "input" if self.kind == "custom" else "arguments": "".join(self.parts)}
        return {"id": self.id, "type": self.kind, self.kind: body}


class _Chat:
    """A chat completion. Deltas belong together by their id; `index` is repeated by providers for different calls."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._slots: list[_Slot] = []
        self._by_id: dict[str, _Slot] = {}
        self._by_index: dict[Any, _Slot] = {}
        self._finish_reason: str | None = None

    def add(self, chunk: Mapping[str, Any]) -> None:
        for choice in as_objects(chunk["choices"]):
            if choice.get("index", 0) != 0:
                continue
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            delta = as_object(choice.get("delta"))
            self._text.append(as_text(delta.get("content")))
            for call in as_objects(delta.get("tool_calls")):
                self._slot(call).take(call)

    def response(self) -> dict[str, Any]:
        text = "".join(self._text)
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if self._slots:
            message["tool_calls"] = [slot.whole() for slot in self._slots]
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        return {"object": "chat.completion", "choices": [choice]}

    def _slot(self, delta: Mapping[str, Any]) -> _Slot:
        id, index = as_text(delta.get("id")) or None, _place(delta.get("index"))
        name = as_object(delta.get("custom" if delta.get("type") == "custom" else "function")).get("name")
        before = self._by_index.get(index, self._slots[-1] if self._slots and index is None else None)
        if id is not None and id in self._by_id:
            slot = self._by_id[id]
        elif before is not None and not (name and self._begins(before, id)):
            slot = before
        else:
            slot = _Slot(id, "custom" if delta.get("type") == "custom" else "function")
            self._slots.append(slot)
        if id is not None:
            slot.id = slot.id or id
            self._by_id[id] = slot
        self._by_index[index] = slot
        return slot

    def _begins(self, before: _Slot, id: str | None) -> bool:
        """Whether a delta with a name is another call: by its id, else when the one before is whole."""
        return before.id != id if id is not None else _is_whole("".join(before.parts))


def _place(value: object) -> int | str | None:
    """What keys the parts of one thing: a number or a text."""
    return value if isinstance(value, int | str) else None


def _is_whole(written: str) -> bool:
    try:
        strict_json(written)
    except ValueError:
        return False
    return True
