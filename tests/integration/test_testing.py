"""The public testing tools: the ledger catches what it is for, the wait sees whole cascades (DEL-5, OPS-5)."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nats
import orjson
import pytest
from nats.js.api import ConsumerConfig

import bus.testing
from bus import Agent, Bus, Message, PermanentFailure, RetryLater, Settings
from bus.broker.messages import delete_message
from bus.broker.store import store
from bus.broker.streams import StreamNames
from bus.broker.survey import waiting_messages
from bus.testing import Identity, Ledger, LedgerError, NatsServer, settled
from bus.testing.plugin import ReadLedger
from bus.workflow import completions
from bus.workflow.completions import Completion

ROOT = Path(__file__).parents[2]


@pytest.fixture
def _from_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def chain() -> list[Agent]:
    """Two agents; the first sends two parts to the second, which is slow."""
    first, second = Agent("first"), Agent("second", concurrency=1)

    @first.on("job")
    async def job(payload: Any, message: Message) -> None:
        for n in range(2):
            await message.send("second", "part", {"n": n})

    @second.on("part")
    async def part(payload: Any) -> None:
        await asyncio.sleep(0.02)

    return [first, second]


async def record_completion(bus: Bus, agent: str, message_id: str, *, after_s: float = 1.0) -> None:
    """Stores a completion as a replica would that handled it and began `after_s` from now."""
    done = Completion("tester", message_id, None, 1, datetime.now(UTC) + timedelta(seconds=after_s), 1.0)
    await store(bus.connection, bus.connection.subjects.done(agent), completions.encode([done]), {}, timeout_s=5)


async def test_a_cascade_settles_and_balances(bus: Bus, settings: Settings, bus_ledger: ReadLedger) -> None:
    first, second = chain()
    async with first.running(settings), second.running(settings):
        sent = [await bus.send("first", "job", {}) for _ in range(10)]
        ledger = await bus_ledger(accepted=sent)
    assert str(ledger) == "published 30 = handled 30 + dead-lettered 0 + waiting 0"
    assert {Identity("first", "tester", one.message_id) for one in sent} < ledger.handled


async def test_every_fate_is_counted_once(bus: Bus, settings: Settings) -> None:
    """Handled, handled at a later attempt, dead, waiting for an agent that stopped, not readable."""
    agent = Agent("worker")

    @agent.on("order")
    async def order(payload: Any, message: Message) -> None:
        if payload == "fail":
            raise PermanentFailure("no")
        if payload == "again" and message.attempt == 1:
            raise RetryLater(0.0)

    async with agent.running(settings):
        for payload in ("good", "again", "fail"):
            await bus.send("worker", "order", payload)
        subject = bus.connection.subjects.work("worker", "normal", "stranger", "order")
        unreadable = await store(bus.connection, subject, b"not json", {}, timeout_s=5)
        await settled(bus, 10)
    await bus.send("worker", "order", "late")
    ledger = await Ledger.read(bus)
    ledger.check()
    # The two refusals wait in the queues of `tester` and `stranger`.
    assert str(ledger) == "published 7 = handled 2 + dead-lettered 2 + waiting 3"
    assert len(ledger.redelivered) == 1
    assert Identity("worker", "stranger", f"seq:{unreadable.seq}") in ledger.dead


async def test_a_lost_message_is_named(bus: Bus, settings: Settings) -> None:
    """A message that leaves the work stream without a record breaks the ledger."""
    agent = Agent("worker", concurrency=1)
    async with agent.running(settings):
        pass
    for n in range(3):
        await bus.send("worker", "order", {}, message_id=f"order-{n}")
    (_, victim, _) = [one async for one in waiting_messages(bus.connection)]
    await delete_message(bus.connection, StreamNames.of(settings.namespace).work, victim.stream_seq)
    ledger = await Ledger.read(bus)
    assert ledger.lost == {Identity("worker", "tester", "order-1")}
    with pytest.raises(LedgerError, match=r"waiting 2 \+ LOST 1\n1 lost: .*: tester > worker order-1 \(order, 1 publ"):
        ledger.check()


async def test_an_accepted_message_that_is_nowhere_is_lost(bus: Bus, settings: Settings) -> None:
    sent = await bus.send("worker", "order", {}, message_id="there")
    gone = {**sent.fields, "message_id": "nowhere"}
    ledger = await Ledger.read(bus, accepted=[sent, type(sent).decode(orjson.dumps(gone))])
    assert ledger.lost == {Identity("worker", "tester", "nowhere")}


async def test_a_doubled_message_is_named(bus: Bus, settings: Settings) -> None:
    """Two completions of one message: a breach, whether the second run could know of the first or not."""
    agent = Agent("worker")

    @agent.on("order")
    async def order(payload: Any) -> None: ...

    async with agent.running(settings):
        await bus.send("worker", "order", {}, message_id="twice")
        await bus.send("worker", "order", {}, message_id="once")
        await settled(bus, 10)
    (await Ledger.read(bus)).check()
    await record_completion(bus, "worker", "twice")
    ledger = await Ledger.read(bus)
    assert ledger.doubled == {Identity("worker", "tester", "twice"): 1}
    with pytest.raises(LedgerError, match="1 handled again after its completion was recorded: tester > worker twice"):
        ledger.check()
    await record_completion(bus, "worker", "once", after_s=-1)
    with pytest.raises(LedgerError, match="1 completed twice, by runs that overlapped: tester > worker once"):
        (await Ledger.read(bus)).check()


async def test_a_completion_that_is_stored_twice_is_one_run(bus: Bus, settings: Settings) -> None:
    """The answer of the broker was lost and the record stored again."""
    await bus.send("worker", "order", {}, message_id="m")
    done = completions.encode([Completion("tester", "m", None, 1, datetime.now(UTC), 1.0)])
    for _ in range(2):
        await store(bus.connection, bus.connection.subjects.done("worker"), done, {}, timeout_s=5)
    ledger = await Ledger.read(bus)
    ledger.check()
    assert len(ledger.handled) == 1


async def test_handled_and_dead_is_a_breach(bus: Bus, settings: Settings) -> None:
    agent = Agent("worker")
    async with agent.running(settings):
        await bus.send("worker", "unknown", {}, message_id="both")
        await settled(bus, 10)
    await record_completion(bus, "worker", "both")
    with pytest.raises(LedgerError, match="1 handled and dead-lettered: tester > worker both"):
        (await Ledger.read(bus)).check()


async def test_what_clients_take_is_not_lost(bus: Bus, settings: Settings) -> None:
    """`Bus.outcome` takes the reply off the queue of a client, which leaves no record."""
    agent = Agent("worker")

    @agent.on("ask")
    async def ask(payload: Any, message: Message) -> None:
        await message.reply("answer", {})

    async with agent.running(settings):
        outcome = await bus.outcome(await bus.send("worker", "ask", {}))
        assert outcome.reply is not None
        await settled(bus, 10)
    ledger = await Ledger.read(bus)
    ledger.check()
    assert (len(ledger.published), len(ledger.taken)) == (1, 1)


async def test_settling_says_who_has_what_left(bus: Bus, settings: Settings) -> None:
    agent = Agent("worker")
    async with agent.running(settings):
        await settled(bus, 10)
    await bus.send("worker", "order", {})
    await bus.send("client", "order", {})
    with pytest.raises(TimeoutError, match=r"not settled within 0.2 s; messages left: worker: 1$"):
        await settled(bus, 0.2)
    with pytest.raises(TimeoutError, match=r"client: 1, worker: 1"):
        await settled(bus, 0.2, agents={"worker", "client"})


async def test_settling_does_not_wait_for_what_nobody_gets_any_more(bus: Bus, settings: Settings) -> None:
    """The consumer has given the message up (as a killed broker may), and it stays in the stream."""
    await bus.send("worker", "order", {})
    stranger = await nats.connect(settings.servers)
    stream = StreamNames.of(settings.namespace).work
    once = ConsumerConfig(max_deliver=1, ack_wait=0.2)
    pull = await stranger.jetstream().pull_subscribe(
        f"{settings.namespace}.v1.work.worker.>", stream=stream, config=once
    )
    await pull.fetch(1)
    await settled(bus, 10)
    ledger = await Ledger.read(bus)
    assert len(ledger.waiting) == 1
    await stranger.close()


async def test_settling_waits_for_a_broker_that_is_away(server: NatsServer) -> None:
    settings = Settings.load(servers=server.url)
    async with Bus.connect("tester", settings=settings) as bus:
        await asyncio.to_thread(server.kill)
        with pytest.raises(TimeoutError, match=r"messages left: unknown, for the broker did not answer"):
            await settled(bus, 0.5)
        waiting = asyncio.create_task(settled(bus, 10))
        await asyncio.to_thread(server.start)
        await waiting


async def test_the_example_of_the_docstring(server: NatsServer) -> None:
    assert bus.testing.__doc__ is not None
    (example,) = re.findall(r"```python\n(.*?)```", bus.testing.__doc__, re.S)
    names: dict[str, Any] = {}
    exec(compile(example, "bus.testing", "exec"), names)
    await names["check"](server)


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    one = NatsServer(tmp_path, options="nonsense {")
    with pytest.raises(RuntimeError, match="did not start"):
        one.start()


@pytest.mark.timeout(90)  # it starts an interpreter of its own, which takes its time on a loaded machine
@pytest.mark.usefixtures("_from_this_checkout")
@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_the_plugin_works_in_both_modes_of_pytest_asyncio(mode: str, pytester: pytest.Pytester) -> None:
    """The example of the documentation, in a folder with nothing but a test."""
    text = (ROOT / "ops" / "README.md").read_text("utf-8")
    (example,) = [one for one in re.findall(r"```python\n(.*?)```", text, re.S) if "test_greeting" in one]
    mark = "" if mode == "auto" else "import pytest\n\npytestmark = pytest.mark.asyncio\n"
    pytester.makepyfile(mark + example)
    options = ("-o", f"asyncio_mode={mode}", "-o", "asyncio_default_fixture_loop_scope=function", "-W", "error")
    result = pytester.runpytest_subprocess("-p", "bus.testing.plugin", *options)
    result.assert_outcomes(passed=1)


@pytest.mark.usefixtures("_from_this_checkout")
def test_bus_is_imported_without_pytest(pytester: pytest.Pytester) -> None:
    script = pytester.makepyfile(
        "import sys\nsys.modules['pytest'] = sys.modules['pytest_asyncio'] = None\nimport bus, bus.testing\n"
    )
    assert pytester.runpython(script).ret == 0
