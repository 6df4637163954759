"""The calling half of a client: calls, batches, streams, notifications."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Unpack

from pydantic import BaseModel

from bus.calls.asked import MAX_REPAIRS
from bus.calls.caller import Caller
from bus.calls.draft import CallDraft
from bus.calls.progress import OnProgress
from bus.calls.stream import Stream
from bus.calls.streams import StreamOptions
from bus.contracts.result import Result


class CallingClient:
    """What `Bus` offers about calls; `capabilities` are those that can be called."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.capabilities = caller.capabilities

    def call(
        self,
        capability: str,
        arguments: BaseModel | dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        agent: str | None = None,
        version: str | None = None,
        idempotency_key: str | None = None,
        retries: int = 2,
        repairs_left: int = MAX_REPAIRS,
        max_result_bytes: int | None = None,
        validate: bool = False,
        on_progress: OnProgress | None = None,
        workflow_id: str | None = None,
        session_id: str | None = None,
    ) -> Coroutine[Any, Any, Result]:
        """Calls a capability and returns its result, whose `data` is what it came to.

        It ends within `timeout_s`, by default the card's, or `call_timeout_s` where that is longer. `agent` names who
        shall answer, `version` (`1`, `1.2`, `1.2.3`) what it must be compatible with. Calls that nobody began go to
        another agent; what may have run is tried again, up to `retries` times, only where the capability is idempotent
        or the call has an `idempotency_key`, under which the result is stored and given again. `validate` checks the
        arguments before they are sent; the callee does in any case. A result of more than `max_result_bytes` is cut,
        `result.meta["whole"]` says where all of it is. After a `tool.validation_failed` pass on its
        `details["repairs_left"]` with the mended arguments. `on_progress(fraction, message)`, plain or async, hears
        what the capability tells with `Call.progress`.

        Raises RegistryError (nobody offers it, no common version), ToolError (busy, unavailable, timeout, failed),
        Rejected (`tool.validation_failed` with every path, the schema, and an instruction for a model) and BrokerError.
        """
        return self._caller.result(
            CallDraft(
                capability,
                arguments,
                timeout_s=timeout_s,
                agent=agent,
                version=version,
                idempotency_key=idempotency_key,
                retries=retries,
                repairs_left=repairs_left,
                max_result_bytes=max_result_bytes,
                validate=validate,
                workflow_id=workflow_id,
                session_id=session_id,
            ),
            on_progress=on_progress,
        )

    def stream(
        self, capability: str, arguments: BaseModel | dict[str, Any] | None = None, **options: Unpack[StreamOptions]
    ) -> Stream:
        """Calls a capability whose result comes in chunks: `async for chunk in bus.stream("report.write", {...})`.

        The work runs ahead of the reader by at most `window` chunks (64, and 4 MiB). What a plain capability returns is
        one chunk. `timeout_s` holds for the whole stream. Leaving the loop early cancels the work. Options and errors
        as `call`, raised where the chunks are read; see `Stream` for how it ends, and for going on elsewhere.
        """
        return self._caller.stream(capability, arguments, **options)

    def resume(self, call_id: str, *, after: int = 0, timeout_s: float | None = None) -> Stream:
        """Goes on reading a stream that a client of this name began, from the chunk after `after` on.

        Chunks are kept for 10 minutes; the work ends when nobody has read for the setting `reader_timeout_s`.
        """
        return self._caller.streams.resume(call_id, after=after, timeout_s=timeout_s)

    async def call_many(self, drafts: Sequence[CallDraft], *, in_flight: int = 64) -> dict[str, Result]:
        """Makes several calls at once, `in_flight` at a time; every one has a result, also when it failed.

        The results are in the order of the drafts, by the draft's `id`, or its index as text. Raises ValueError for two
        drafts with one id; never a failure of a call.
        """
        return await self._caller.ask_many(drafts, in_flight=in_flight)

    async def notify(
        self, capability: str, arguments: BaseModel | dict[str, Any] | None = None, *, agent: str | None = None
    ) -> str:
        """Calls without waiting for a result, and nobody tells whether it arrived; returns the id of the call.

        Raises RegistryError when nobody offers the capability. For work that must not be lost, use `send`.
        """
        return await self._caller.notify(CallDraft(capability, arguments, agent=agent))
