"""Control over calls: what people have decided about a workflow holds for its calls, and for what these send."""

from __future__ import annotations

from typing import Any

from bus.calls.asked import Asked
from bus.calls.call import Publish
from bus.calls.card import Card
from bus.calls.execution import Check
from bus.envelope import Envelope
from bus.workflow.control import ControlWatch


def not_cancelled(controls: ControlWatch) -> Check:
    """The check of every call: raises ToolError `tool.cancelled` in a workflow that was cancelled."""

    async def check(_: Asked, envelope: Envelope, card: Card) -> None:
        controls.check(envelope)

    return check


def publishing(controls: ControlWatch, publish: Publish) -> Publish:
    """How a call sends messages: not any more once it is cancelled."""

    async def checked(envelope: Envelope, **options: Any) -> Envelope:
        controls.check(envelope)
        return await publish(envelope, **options)

    return checked
