"""Branches: a rollback begins a new one, and everything of a workflow belongs to one of them.

Branch 0 is the first. Each has its own documents, so what is late from an old branch can harm nothing. Messages name
theirs in the extension `branch`, and what names an older one than the newest is set aside.
"""

from __future__ import annotations

import orjson

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.broker.subjects import token
from bus.envelope import Envelope, derive_message_id
from bus.envelope.grammar import MAX_ID_CHARS

BRANCH = "branch"


def branch_of(envelope: Envelope) -> int:
    """The branch that a message belongs to."""
    return int(envelope.extensions.get(BRANCH, 0))


def document_key(workflow: str, branch: int, name: str) -> str:
    """The key of a document. The arguments are tokens, `name` may be several."""
    return f"{workflow}.{BRANCH}.{branch}.{name}" if branch else f"{workflow}.{name}"


def branch_key(workflow_id: str) -> str:
    """The key of the control document that says which branch is the newest."""
    return f"{token(workflow_id)}.control.{BRANCH}"


async def branch_now(records: Records, workflow_id: str) -> int:
    """The newest branch of a workflow. Raises BrokerError."""
    value = (await records.read(branch_key(workflow_id))).value
    return 0 if value is None else int(orjson.loads(value)[BRANCH])


async def newest_branch(connection: Connection, workflow_id: str) -> int:
    """As `branch_now`, for who has no bucket at hand."""
    return await branch_now(Records(connection, StreamNames.of(connection.settings.namespace).workflows), workflow_id)


def in_this_branch(cause: Envelope, message_id: str | None) -> str | None:
    """The id that a handler chose itself, as it is in the branch of the message that it handles."""
    if message_id is None or BRANCH not in cause.extensions:
        return message_id
    return id_in_branch(message_id, branch_of(cause))


def id_in_branch(message_id: str, branch: int, *, of: int = 0) -> str:
    """The id that a message with an id of its own has in a branch, when `message_id` is the one in branch `of`.

    `X~1` is X in branch 1: the same id in another branch is another message, and whoever sends it means the same one.
    """
    if branch == 0:
        return message_id
    original = message_id.removesuffix(f"~{of}") if of else message_id
    here = f"{original}~{branch}"
    return here if len(here) <= MAX_ID_CHARS else derive_message_id(BRANCH, str(branch), original)
