"""The witness: what became of each call, as a record for the audit (SEC-6).

The callee writes of what it was asked, the caller of what never reached anybody who could.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bus.calls.draft import CallDraft
from bus.calls.taken import Taken
from bus.envelope import Envelope
from bus.errors import BusError, ErrorInfo
from bus.trust.audit import Audit
from bus.trust.call_record import DENIED, OK, canonical, kept, written
from bus.trust.delegation import ON_BEHALF_OF, chain_of


class Witness:
    """Writes into an audit, or nothing when that is switched off. No method waits or fails."""

    __slots__ = ("_audit", "_name")

    def __init__(self, audit: Audit | None, name: str) -> None:
        self._audit = audit
        self._name = name

    def answered(self, taken: Taken, meta: Mapping[str, Any], data: Any = None) -> None:
        """A call to this agent came to `taken.failure`, or else to `data`; `meta` is that of its result."""
        audit = self._audit
        if audit is None:
            return
        envelope, asked, failure = taken.envelope, taken.asked, taken.failure
        # What cannot be read still came from somebody for something: its subject says so.
        tokens = taken.message.subject.split(".", 5)
        wire = written(
            None if asked is None else asked.tool_call_id,
            tokens[4] if len(tokens) == 6 else "",
            self._name,
            tokens[5] if len(tokens) == 6 else "",
            DENIED if taken.denied else OK if failure is None else failure.code,
            meta.get("elapsed_ms", 0.0),
            taken.arguments,
            envelope,
        )
        if envelope is not None and ON_BEHALF_OF in envelope.extensions:
            wire["on_behalf_of"] = envelope.extensions[ON_BEHALF_OF]
        if "replayed" in meta:
            wire["replayed"] = True
        if (task_id := taken.task_id or meta.get("task_id")) is not None:
            wire["task_id"] = task_id
        if taken.denied:
            wire["reason"] = taken.denied
        if audit.keeps_payloads:
            wire["arguments"] = kept(taken.arguments)
            wire["result"] = kept(canonical(data)) if failure is None else None
        audit.add(wire)

    def unsent(
        self,
        draft: CallDraft,
        call_id: str,
        problem: BusError | ErrorInfo,
        *,
        agent: str | None = None,
        cause: Envelope | None = None,
        trace_id: str | None = None,
        denied: str = "",
    ) -> None:
        """A call of this caller ended before anybody had taken it, or with nobody left who had."""
        audit = self._audit
        if audit is None:
            return
        info = problem.info if isinstance(problem, BusError) else problem
        arguments = canonical(draft.to_json())
        outcome = DENIED if denied else info.code
        wire = written(call_id, self._name, agent or draft.agent, draft.capability, outcome, 0.0, arguments, cause)
        if draft.workflow_id is not None:
            wire["workflow_id"] = draft.workflow_id
        if trace_id is not None:
            wire["trace_id"] = trace_id
        if cause is not None:
            wire["on_behalf_of"] = chain_of(cause)
        if denied:
            wire["reason"] = denied
        if audit.keeps_payloads:
            wire["arguments"] = kept(arguments)
        audit.add(wire)
