"""Control over handlers: what people have decided about a workflow stands between a message and its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType

from bus.delivery.handler import CallNext, HandlerMiddleware
from bus.delivery.message import Message
from bus.envelope import Envelope
from bus.trust.confirmations import Confirmations
from bus.workflow.control import ControlWatch

SetAside = Callable[[Envelope], Awaitable[None]]


def controlled(
    controls: ControlWatch, confirmations: Confirmations, *, set_aside: Mapping[str, SetAside] | None = None
) -> HandlerMiddleware:
    """The outermost middleware of every handler: sets messages aside that must not be handled (any more).

    It lends `confirmations` to `Message.confirm`. `set_aside` are awaited, by message type, for what has to be undone
    then, as often as the message comes.
    """
    undo = set_aside or {}

    async def run(message: Message, call_next: CallNext) -> None:
        message.set_aside = controls.verdict(message.envelope)
        message.confirmations = confirmations
        if message.set_aside is None:
            with _Watched(message, controls):
                await call_next(message)
        if message.set_aside is not None and message.type in undo:
            await undo[message.type](message.envelope)

    return run


class _Watched(AbstractContextManager["_Watched"]):
    """A handler that runs. When its message is set aside meanwhile, neither its end nor its failure counts."""

    __slots__ = ("_controls", "_message")

    def __init__(self, message: Message, controls: ControlWatch) -> None:
        self._message = message
        self._controls = controls

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._message.set_aside = self._controls.verdict(self._message.envelope)
        # What fails because it was cut off is neither tried again nor a dead letter. A cancellation goes on.
        return self._message.set_aside is not None and isinstance(problem, Exception)
