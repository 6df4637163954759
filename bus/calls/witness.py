"""The witness: what became of each call, as a record for the audit (SEC-6).

The callee writes of what it was asked, the caller of what never reached anybody who could.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from bus.calls.draft import CallDraft
from bus.calls.taken import Taken
from bus.envelope import Envelope
from bus.errors import BusError, ErrorInfo
from bus.trust.audit import Audit
from bus.trust.call_record import DENIED, OK, CallRecord, canonical, digest_of, kept
from bus.trust.delegation import ON_BEHALF_OF, chain_of


class Witness:
    """Writes into an audit, or nothing when that is switched off. No method waits or fails."""

    __slots__ = ("_audit", "_name")

    def __init__(self, audit: Audit | None, name: str) -> None:
        self._audit = audit
        self._name = name

    def answered(self, taken: Taken, meta: Mapping[str, Any], data: Any = None) -> None:
        """A call to this agent came to `taken.failure`, or else to `data`; `meta` is that of its result."""
        if self._audit is None:
            return
        envelope, asked, failure = taken.envelope, taken.asked, taken.failure
        outcome = OK if failure is None else failure.code
        keeps = self._audit.keeps_payloads
        # What cannot be read still came from somebody for something: its subject says so.
        tokens = taken.message.subject.split(".", 5)
        self._audit.add(
            CallRecord(
                None if asked is None else asked.tool_call_id,
                tokens[4] if len(tokens) == 6 else "",
                self._name,
                tokens[5] if len(tokens) == 6 else "",
                DENIED if taken.denied else outcome,
                time.time(),
                meta.get("elapsed_ms", 0.0),
                digest_of(taken.arguments),
                None if envelope is None else envelope.workflow_id,
                None if envelope is None else envelope.trace_id,
                () if envelope is None else tuple(envelope.extensions.get(ON_BEHALF_OF, ())),
                is_replayed,
                taken.denied,
                kept(taken.arguments) if keeps else None,
                kept(canonical(data)) if keeps and failure is None else None,
            )
        )

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
        if self._audit is None:
            return
        info = problem.info if isinstance(problem, BusError) else problem
        arguments = canonical(draft.to_json())
        self._audit.add(
            CallRecord(
                call_id,
                self._name,
                agent or draft.agent,
                draft.capability,
                DENIED if denied else info.code,
                time.time(),
                0.0,
                digest_of(arguments),
                draft.workflow_id or (None if cause is None else cause.workflow_id),
                trace_id or (None if cause is None else cause.trace_id),
                () if cause is None else tuple(chain_of(cause)),
                reason=denied,
                arguments=kept(arguments) if self._audit.keeps_payloads else None,
            )
        )
