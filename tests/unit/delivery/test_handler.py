"""Handlers read their function's signature."""

import re
from typing import Any

import pytest
from pydantic import BaseModel

from bus import Agent, Message
from bus.delivery.handler import Handler


class Order(BaseModel):
    number: int


def test_signatures_that_fit() -> None:
    async def both(order: Order, message: Message) -> None: ...
    def payload_only(order: dict[str, Any]) -> None: ...

    read = Handler.of("order", both)
    assert (read.model, read.takes_message, read.is_coroutine) == (Order, True, True)
    read = Handler.of("order", payload_only)
    assert (read.model, read.takes_message, read.is_coroutine) == (None, False, False)


def test_signatures_that_do_not_fit_are_refused_by_name() -> None:
    def nothing() -> None: ...
    def three(a: Any, b: Any, c: Any) -> None: ...

    for function in (nothing, three):
        with pytest.raises(TypeError, match=re.escape(function.__qualname__)):
            Handler.of("order", function)


def test_an_annotation_that_cannot_be_found_is_told() -> None:
    async def handle(order: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(TypeError, match="Missing"):
        Handler.of("order", handle)


def test_an_agent_refuses_what_it_could_not_run() -> None:
    agent = Agent("worker")
    agent.on("order")(lambda payload: None)
    with pytest.raises(ValueError, match="already has a handler"):
        agent.on("order")(lambda payload: None)
    with pytest.raises(ValueError, match="snake_case"):
        agent.on("Order")(lambda payload: None)
    with pytest.raises(ValueError, match="agent name"):
        Agent("a.b")
    with pytest.raises(ValueError, match="concurrency"):
        Agent("a", concurrency=0)
    assert agent.handles == ["order"]
