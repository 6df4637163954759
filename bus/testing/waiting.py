"""Waiting until a whole cascade has settled: the messages, what their handlers sent, and so on to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from bus.broker.survey import agent_queues, agents_with_consumer, waiting_counts
from bus.client import Bus
from bus.errors import BusError

FIRST_LOOK_S = 0.005
SLOWEST_LOOK_S = 0.1
ORPHANS_S = 1.0


async def settled(bus: Bus, timeout_s: float = 30.0, *, agents: Collection[str] | None = None) -> None:
    """Returns once no message waits for an agent or is being handled, and nothing that they caused is left.

    It counts the agents that a replica has run for, or those in `agents`; messages to a name that nobody ever ran
    (a client) wait for nobody. A message that is tried again later counts as waiting. A broker that is away is
    waited for. Raises TimeoutError after `timeout_s`, with who has how many messages left.
    """
    loop = asyncio.get_running_loop()
    orphans, orphans_since = dict[str, int](), 0.0
    deadline, pause_s, left = loop.time() + timeout_s, FIRST_LOOK_S, "unknown, for the broker did not answer"
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                # Counted last: an agent that starts in between is in neither look, and its messages in the next.
                known = frozenset(agents) if agents is not None else await agents_with_consumer(bus.connection)
                counts = await waiting_counts(bus.connection)
                waiting = {agent: count for agent, count in sorted(counts.items()) if agent in known}
                if not waiting:
                    return
                # A broker that was killed may keep messages that it has recorded as settled; nobody gets them any more.
                queues = [queue for queue in await agent_queues(bus.connection) if queue.agent in waiting]
                if any(queue.replicas is None or queue.waiting or queue.in_flight for queue in queues):
                    orphans = {}
                elif waiting != orphans:
                    orphans, orphans_since = waiting, loop.time()
                elif loop.time() - orphans_since > ORPHANS_S:
                    return
                left = ", ".join(f"{agent}: {count}" for agent, count in waiting.items())
        except BusError as problem:
            left = str(problem)
        except TimeoutError:
            raise _late(timeout_s, left) from None
        if loop.time() >= deadline:
            raise _late(timeout_s, left)
        await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
        pause_s = min(SLOWEST_LOOK_S, pause_s * 1.5)


def _late(timeout_s: float, left: str) -> TimeoutError:
    return TimeoutError(f"not settled within {timeout_s:g} s; messages left: {left}")
