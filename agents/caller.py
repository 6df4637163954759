"""A caller of alice and bob: finds what they offer, calls both at once, and shows what a refusal looks like.

python -m agents.caller
"""

from __future__ import annotations

import asyncio

from bus import Bus, CallDraft, Rejected


async def call_both() -> None:
    """Calls, prints, and ends. Raises BusError where alice or bob is not there."""
    async with Bus.connect("caller") as bus:
        for offer in await bus.capabilities.find():
            print(f"{offer.agent} offers {offer.card.name} {offer.card.version}: {offer.card.description}")
        results = await bus.call_many(
            [
                CallDraft("calculator.add", {"a": 1, "b": 2}, id="sum"),
                CallDraft("echo.repeat", {"text": "hi", "times": 3}, id="echo"),
            ]
        )
        for name, result in results.items():
            print(f"{name}: {result.unwrap()} after {result.meta['elapsed_ms']} ms of work")
        spelt = bus.stream("echo.spell", {"text": "bus", "pause_s": 0})
        print("spelt:", [character async for character in spelt])
        try:
            await bus.call("echo.repeat", {"txt": "hi"})
        except Rejected as refused:
            print(f"refused: {refused.info.details['instruction']}")


if __name__ == "__main__":
    asyncio.run(call_both())
