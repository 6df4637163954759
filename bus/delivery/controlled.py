"""Control over handlers: what people have decided about a workflow stands between a message and its handler."""

from __future__ import annotations

from bus.delivery.handler import CallNext, HandlerMiddleware
from bus.delivery.message import Message
from bus.errors import BusError
from bus.workflow.control import ControlWatch


def controlled(controls: ControlWatch) -> HandlerMiddleware:
    """The outermost middleware of every handler: sets messages aside that must not be handled (any more)."""

    async def run(message: Message, call_next: CallNext) -> None:
        message.set_aside = controls.verdict(message.envelope)
        if message.set_aside is not None:
            return
        try:
            await call_next(message)
        except BusError:
            # What fails because it was cut off in the middle is neither tried again nor a dead letter.
            message.set_aside = controls.verdict(message.envelope)
            if message.set_aside is None:
                raise

    return run
