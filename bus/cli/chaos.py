"""The command that breaks messages on purpose."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Annotated

import orjson
import typer

from bus.chaos import Finding, break_messages
from bus.cli.operate import load_agent, log_to_stderr, read_payload
from bus.cli.render import table
from bus.cli.usage import UsageError
from bus.config import Settings


def chaos(
    agent: Annotated[str, typer.Argument(metavar="MODULE:AGENT", help="The agent to send broken messages to.")],
    type: Annotated[str, typer.Option("--type", help="A message type that it handles.")],
    payload: Annotated[str, typer.Option("--payload", metavar="JSON|@FILE|-", help="A payload that it takes.")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Send an agent broken messages on a private broker, and show what it does with each.

    The agent's handlers really run, a dozen times. Exit code 0 when it did what it should every time.

    Example: bus chaos agents.writer:writer --type draft_request --payload @draft.json
    """
    log_to_stderr("error")
    # What fails here is meant to; the table says it.
    logging.getLogger("bus").setLevel(logging.CRITICAL)
    value, loaded = read_payload(payload), load_agent(agent)
    if type not in loaded.handles:
        raise UsageError(
            f"{loaded.name} has no handler for {type!r}; it handles {', '.join(loaded.handles) or 'nothing'}"
        )
    findings = asyncio.run(break_messages(loaded, type, value, nats_server=Settings.load().nats_server))
    if as_json:
        print(orjson.dumps([_as_json(one) for one in findings], option=orjson.OPT_INDENT_2).decode())
    else:
        rows = [(one.name, one.sent, one.did, _verdict(one)) for one in findings]
        print("\n".join(table(("message", "what was sent", "what the agent did", "verdict"), rows)))
    sys.exit(0 if all(one.is_good for one in findings) else 1)


def _verdict(finding: Finding) -> str:
    return "good" if finding.is_good else f"BAD: should be {finding.expected}"


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "message": finding.name,
        "sent": finding.sent,
        "expected": finding.expected,
        "did": finding.did,
        "good": finding.is_good,
    }
