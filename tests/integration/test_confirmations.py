"""Confirmations: a person decides, once, about exact arguments (SEC-3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bus import Agent, Bus, BusError, Call, Message, Settings
from bus.testing import settled
from bus.trust.confirmation import Confirmation
from bus.trust.confirmations import Confirmations


async def asked(bus: Bus) -> Confirmation:
    """The only thing that waits for a person, once it does."""
    while not (found := await Confirmations(bus.connection).pending()):
        await asyncio.sleep(0.02)
    (one,) = found
    return one


async def codes(bus: Bus) -> list[str]:
    return [dead.code async for dead in bus.dead_letters.list()]


def publisher(done: list[Any]) -> Agent:
    agent = Agent("publisher")

    @agent.on("publish")
    async def publish(payload: Any, message: Message) -> None:
        by = await message.confirm("Publish the brief?", arguments=payload)
        done.append((payload, by, message.attempt))

    return agent


async def test_a_message_waits_for_a_person_and_goes_on_once(bus: Bus, settings: Settings) -> None:
    """SEC-3: over a restart of the agent; the approval counts once, and costs no attempt."""
    done: list[Any] = []
    async with publisher(done).running(settings):
        await bus.workflow("w").send("publisher", "publish", {"text": "hello"})
        one = await asked(bus)
        assert (one.asker, one.text, one.arguments, one.on_behalf_of) == (
            "publisher", "Publish the brief?", {"text": "hello"}, "tester",
        )  # fmt: skip
    assert done == []
    confirmations = Confirmations(bus.connection)
    first, second = await asyncio.gather(
        confirmations.answer(one.id, approve=True, by="Ada"), confirmations.answer(one.id, approve=False, by="Bob")
    )
    assert first is not None
    assert second is not None
    assert [first.is_ours, second.is_ours].count(True) == 1
    async with publisher(done).running(settings), publisher(done).running(settings):
        await settled(bus, 20)
        while not done and not await codes(bus):
            await asyncio.sleep(0.02)
    if first.is_ours:
        assert [(payload, by) for payload, by, _ in done] == [({"text": "hello"}, "Ada")]
    else:
        assert (done, await codes(bus)) == ([], ["auth.permission_denied"])
    assert await confirmations.pending() == []
    late = await confirmations.answer(one.id, approve=True, by="Eve")
    assert late is not None
    assert not late.is_ours


@pytest.mark.parametrize("approve", [True, False])
async def test_a_capability_deep_in_a_chain_asks_a_person(approve: bool, bus: Bus, settings: Settings) -> None:
    """SEC-3: handler, capability, capability; the message is parked, and asks again under the same key."""
    bank, desk, clerk = Agent("bank"), Agent("desk"), Agent("clerk")
    paid: list[Any] = []
    runs: list[str] = []

    @bank.capability("bank.pay")
    async def pay(amount: int, call: Call) -> str:
        """Pays."""
        by = await call.confirm(f"Pay {amount}?", arguments={"amount": amount}, expires_s=60)
        paid.append((amount, by))
        return "paid"

    @desk.capability("desk.settle")
    async def settle(amount: int, call: Call) -> str:
        """Settles."""
        return str((await call.call("bank.pay", {"amount": amount})).data)

    @clerk.on("bill")
    async def bill(amount: Any, message: Message) -> None:
        runs.append("")
        await message.call("desk.settle", {"amount": amount})
        runs.append("ended")

    async with bank.running(settings), desk.running(settings), clerk.running(settings):
        await bus.workflow("bills").send("clerk", "bill", 70)
        one = await asked(bus)
        assert (one.asker, one.arguments) == ("bank", {"amount": 70})
        answered = await Confirmations(bus.connection).answer(one.id, approve=approve, by="Ada", reason="checked")
        assert answered is not None
        assert answered.is_ours
        while not (paid if approve else await codes(bus)):
            await asyncio.sleep(0.02)
        await settled(bus, 20)
    assert paid == ([(70, "Ada")] if approve else [])
    assert await codes(bus) == ([] if approve else ["auth.permission_denied"])
    assert ("ended" in runs) is approve


async def test_a_client_asks_again_under_its_key_and_other_arguments_ask_anew(bus: Bus, settings: Settings) -> None:
    """SEC-3: an approval is for exactly these arguments, and used up by one call."""
    bank = Agent("bank")
    paid: list[int] = []

    @bank.capability("bank.pay")
    async def pay(amount: int, call: Call) -> int:
        """Pays."""
        await call.confirm(f"Pay {amount}?", arguments={"amount": amount})
        paid.append(amount)
        return amount

    async def refused(amount: int, key: str) -> str:
        with pytest.raises(BusError) as problem:
            await bus.call("bank.pay", {"amount": amount}, idempotency_key=key)
        assert problem.value.info.code == "auth.confirmation_required"
        return str(problem.value.info.details["confirmation_id"])

    async with bank.running(settings):
        id = await refused(5, "one")
        assert await refused(5, "one") == id
        assert await refused(5, "two") != id
        assert await refused(6, "three") != id
        answered = await Confirmations(bus.connection).answer(id, approve=True, by="Ada")
        assert answered is not None
        both = await asyncio.gather(
            *(bus.call("bank.pay", {"amount": 5}, idempotency_key="one") for _ in range(2)), return_exceptions=True
        )
        assert [one.data for one in both if not isinstance(one, BaseException)] in ([5], [5, 5])
        await refused(5, "four")
    assert paid == [5]
