"""A new link or consumer: no delivery's word is taken for being the first (DEL-2)."""

from __future__ import annotations

from datetime import UTC, datetime

from bus import Bus
from bus.broker.store import store
from bus.delivery.dedupe import Claim, Dedupe, digest
from bus.workflow import completions
from bus.workflow.completions import Completion

COUNT = 100


async def test_copies_are_recognised_the_moment_they_are_recorded(bus: Bus) -> None:
    """What another replica recorded a moment ago is known to each claim, not only to the first after the break."""
    dedupe = Dedupe(bus.connection, "worker")
    await dedupe.start()
    dedupe.suspect_copies()
    subject = bus.connection.subjects.done("worker")
    claims = []
    for n in range(COUNT):
        done = Completion("tester", f"m{n}", None, 1, datetime.now(UTC), 1.0)
        await store(bus.connection, subject, completions.encode([done]), {}, timeout_s=5)
        claims.append(await dedupe.claim(digest("tester", f"m{n}"), redelivered=False))
    await dedupe.stop()
    assert claims == [Claim.COMPLETED] * COUNT
