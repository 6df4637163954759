"""The spans of a whole workflow: a short root when it begins, a summary when its end is known, none open between."""

from __future__ import annotations

import time

from bus.delivery.attributes import Attributes
from bus.telemetry.context import TraceContext
from bus.telemetry.spans import SpanKind, Telemetry

STATUSES = ("success", "error", "cancelled")


class WorkflowTrace:
    """The root and the summary of one workflow, or of one part of it that goes on `after` an earlier span.

    A span leaves only when it ends, and is lost when its process dies: one that is open for hours would be missing
    for hours, and everything below it an orphan.
    """

    __slots__ = (
        "_after",
        "_began_ns",
        "_is_finished",
        "_name",
        "_root",
        "_session_id",
        "_telemetry",
        "_trace_id",
        "_workflow_id",
    )

    def __init__(
        self,
        telemetry: Telemetry,
        name: str,
        *,
        workflow_id: str,
        trace_id: str,
        session_id: str | None,
        after: str | None,
    ) -> None:
        self._telemetry = telemetry
        self._name = name
        self._workflow_id = workflow_id
        self._trace_id = trace_id
        self._session_id = session_id
        self._after = TraceContext.from_headers({"traceparent": after}) if after is not None else None
        self._began_ns = time.time_ns()
        self._root: TraceContext | None = None
        self._is_finished = False

    def begun(self) -> TraceContext | None:
        """The context of the root, which is made and ended at the first call."""
        if self._root is None:
            self._root = self._begin()
        return self._root

    def finish(self, status: str, *, error: str | None) -> None:
        """Makes the summary span, once and only below a root. Raises ValueError for a status that is none."""
        if status not in STATUSES:
            raise ValueError(f"{status!r} is not the status of a workflow: {', '.join(STATUSES)}")
        if self._is_finished or self._root is None:
            return
        self._is_finished = True
        summary = self._telemetry.start(
            lambda: f"workflow {self._name}",
            SpanKind.INTERNAL,
            trace_id=self._trace_id,
            parent=self._root,
            sampling_key=self._workflow_id,
            start_ns=self._began_ns,
            attributes=lambda: {**self._attributes(), "bus.workflow.status": status},
        )
        if status == "error":
            code = error or "internal.error"
            summary.fail(code, f"the workflow failed: {code}")
        summary.end()

    def _begin(self) -> TraceContext | None:
        if self._after is not None:
            return self._telemetry.continued(
                self._after, self._trace_id, name=self._name, workflow_id=self._workflow_id
            )
        root = self._telemetry.start(
            lambda: f"invoke_workflow {self._name}",
            SpanKind.INTERNAL,
            trace_id=self._trace_id,
            parent=None,
            sampling_key=self._workflow_id,
            start_ns=self._began_ns,
            attributes=self._attributes,
        )
        root.end()
        return root.context

    def _attributes(self) -> Attributes:
        attributes: Attributes = {
            "bus.workflow_id": self._workflow_id,
            "bus.workflow.name": self._name,
            "messaging.message.conversation_id": self._workflow_id,
        }
        if self._session_id is not None:
            attributes["bus.session_id"] = self._session_id
        return attributes
