"""Keeping what a call was answered, for a replay of its workflow (WF-8)."""

from __future__ import annotations

import logging

from bus.broker.connection import Connection
from bus.broker.store import store
from bus.calls.asked import Asked
from bus.contracts.result import Result
from bus.envelope import Envelope, dedupe_header
from bus.errors import BusError
from bus.workflow.recording import call_recorded

log = logging.getLogger("bus.calls")

STORE_S = 5.0


async def keep(connection: Connection, caller: str, cause: Envelope, asked: Asked, result: Result) -> None:
    """Stores one call that `cause` made and its result; a broker that cannot store it fails no call."""
    said = call_recorded(cause, caller, asked.tool_name, asked.arguments, result.to_payload())
    subject = connection.subjects.event(caller, cause.workflow_id, said.type)
    headers = {"Nats-Msg-Id": dedupe_header(said.sender, said.message_id)}
    try:
        await store(connection, subject, said.encode(), headers, timeout_s=STORE_S)
    except BusError as problem:
        log.warning("a call of %s is not recorded for replays: %s", asked.tool_name, problem.info.message)
