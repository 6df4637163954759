"""The audit on a real broker: every call leaves one record, whatever came of it (SEC-6)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from bus import Agent, Bus, BusError, CallDraft, Settings
from bus.testing import NatsServer
from bus.trust.audit import Audit
from bus.trust.audited import Wanted, audited
from bus.trust.call_record import CallRecord, written

RULES = """
[[allow]]
source = "*"
capability = "work.do"
[[allow]]
source = "other"
capability = "work.secret"
"""


def worker(**options: Any) -> Agent:
    agent = Agent("worker", **options)

    @agent.capability("work.do", description="Does it.")
    async def do(how: str, wait_s: float = 0, token: str = "") -> str:
        await asyncio.sleep(wait_s)
        if how == "fail":
            raise RuntimeError("no")
        return f"did {how}"

    @agent.capability("work.secret", description="Nobody's business.")
    async def secret() -> str:
        return "s"

    return agent


async def records(bus: Bus, **wanted: Any) -> list[CallRecord]:
    return [record async for found in audited(bus.connection, Wanted(**wanted)) if found for record in found.records]


async def recorded(bus: Bus, count: int, **wanted: Any) -> list[CallRecord]:
    """The records, once there are so many; and a moment later still no more."""
    async with asyncio.timeout(10):
        while len(found := await records(bus, **wanted)) < count:
            await asyncio.sleep(0.05)
    assert len(found) == count, found
    return found


async def outcome(bus: Bus, capability: str, arguments: dict[str, Any], **options: Any) -> str:
    try:
        return "ok" if (await bus.call(capability, arguments, **options)).ok else "?"
    except BusError as problem:
        return problem.info.code


@pytest.fixture
async def second(settings: Settings) -> AsyncIterator[Bus]:
    async with Bus.connect("second", settings=settings) as bus:
        yield bus


async def test_calls_of_all_outcomes_by_several_callers_leave_one_record_each(
    bus: Bus, second: Bus, settings: Settings, tmp_path: Path
) -> None:
    """SEC-6: with two replicas; what the callers heard is what is recorded, and what was denied is told as it was."""
    (tmp_path / "rules.toml").write_text(RULES)
    ruled = settings.model_copy(update={"rules_file": str(tmp_path / "rules.toml"), "max_call_queue": 2})
    agents = [worker(call_concurrency=2) for _ in range(2)]
    heard: Counter[tuple[str, str, str]] = Counter()

    async def ask(by: Bus, capability: str, arguments: dict[str, Any], **options: Any) -> None:
        code = await outcome(by, capability, arguments, retries=0, **options)
        heard[by.name, capability, code] += 1

    async with agents[0].running(ruled), agents[1].running(ruled):
        for by in (bus, second):
            for key in ("a", "b", "a"):
                await ask(by, "work.do", {"how": "well"}, idempotency_key=f"{by.name} {key}")
            await ask(by, "work.do", {"how": "fail"})
            await ask(by, "work.do", {"who": "nobody"})
            await ask(by, "work.do", {"who": "nobody"}, validate=True)
            await ask(by, "work.secret", {})
            await ask(by, "work.undone", {})
            await ask(by, "work.do", {}, version="9")
            await ask(by, "work.do", {"how": "late", "wait_s": 5}, timeout_s=0.2)
            await by.notify("work.do", {"how": "quietly"})
            heard[by.name, "work.do", "ok"] += 1
            cancelled = asyncio.create_task(by.call("work.do", {"how": "never", "wait_s": 5}))
            await asyncio.sleep(0.1)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            heard[by.name, "work.do", "tool.cancelled"] += 1
        # Two replicas with two running and two waiting each: what comes beyond is refused.
        drafts = [CallDraft("work.do", {"how": "flood", "wait_s": 0.3}, retries=0) for _ in range(30)]
        for result in (await bus.call_many(drafts)).values():
            heard["tester", "work.do", result.error.code if result.error else "ok"] += 1
        assert heard["tester", "work.do", "agent.busy"] > 0
        found = await recorded(bus, heard.total())
    # What a caller may not know is written down as it was; and a call that is late is ended by its callee's clock or
    # by its caller's word, whichever comes first.
    same = {"tool.unknown_capability": "auth.permission_denied", "tool.timeout": "tool.cancelled"}
    told, expected = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for one in found:
        told[one.sender, one.capability, same.get(one.outcome, one.outcome)] += 1
    for (who, what, code), count in heard.items():
        expected[who, what, same.get(code, code)] += count
    assert told == expected
    assert len({one.call_id for one in found}) == len(found)
    assert sum(one.is_replayed for one in found) == 2
    denied = await records(bus, is_denied=True)
    assert {one.reason for one in denied} == {"tester: no rule allows it", "second: no rule allows it"}


async def test_a_record_says_who_whom_what_when_and_how_long(bus: Bus, settings: Settings) -> None:
    """SEC-6: the digest is that of the canonical arguments as they came; payloads are not kept."""
    agent = Agent("worker")

    @agent.capability("work.change", description="Changes what it was given.")
    async def change(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(0.02)
        arguments["b"] = "changed"
        return "done"

    before = time.time()
    async with agent.running(settings):
        result = await bus.call("work.change", {"b": 1, "a": "é"}, workflow_id="wf 1", session_id="s")
        (found,) = await recorded(bus, 1)
    assert (found.sender, found.agent, found.capability, found.outcome) == ("tester", "worker", "work.change", "ok")
    assert found.call_id == result.tool_call_id
    assert (found.workflow_id, found.wire["trace_id"]) == ("wf 1", result.meta["trace_id"])
    assert found.wire["arguments_sha256"] == hashlib.sha256('{"a":"é","b":1}'.encode()).hexdigest()
    assert 20 <= found.elapsed_ms < 5000
    assert before <= found.ended_at.timestamp() <= time.time()
    assert not {"arguments", "result", "reason", "replayed", "on_behalf_of"} & found.wire.keys()


async def test_payloads_are_kept_when_that_is_asked_for_and_their_secrets_are_not(bus: Bus, settings: Settings) -> None:
    """SEC-6."""
    keeping = settings.model_copy(update={"audit_payloads": True, "log_redact": "how"})
    async with worker().running(keeping):
        await bus.call("work.do", {"how": "well", "token": "sk-0123456789abcdefghij"})
        await outcome(bus, "work.do", {"how": "x" * 20_000})
        first, long = await recorded(bus, 2)
    assert first.wire["arguments"] == {"how": "[redacted]", "token": "[redacted]"}
    assert first.wire["result"] == "did well"
    assert "over the 16384" in long.wire["arguments"]


async def test_a_streamed_call_leaves_one_record_when_it_ends(bus: Bus, settings: Settings) -> None:
    """SEC-6, REG-7: also one whose reader leaves."""
    agent = Agent("worker")

    @agent.capability("work.count", description="Counts.")
    async def count(to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number
            await asyncio.sleep(0.005)

    async with agent.running(settings):
        assert [one async for one in bus.stream("work.count", {"to": 3})] == [0, 1, 2]
        async with bus.stream("work.count", {"to": 3000}) as left:
            async for _ in left:
                break
        found = await recorded(bus, 2)
    assert [one.outcome for one in found] == ["ok", "tool.cancelled"]


async def test_it_can_be_switched_off(bus: Bus, settings: Settings) -> None:
    """SEC-6."""
    async with worker().running(settings.model_copy(update={"audit": False})):
        await bus.call("work.do", {"how": "well"})
    assert await records(bus) == []


async def test_unreadable_and_forged_calls_are_recorded_under_the_name_of_their_subject(
    bus: Bus, settings: Settings
) -> None:
    """SEC-6, SEC-1."""
    async with worker().running(settings):
        subject = bus.connection.subjects.call("worker", "tester", "work.do")
        forged = {
            "version": "1.2", "message_id": "m", "trace_id": "t", "from": "boss", "to": "worker",
            "type": "tool_call_request", "payload": {"tool_call_id": "c", "tool_name": "work.do", "arguments": {}},
        }  # fmt: skip
        for data in (b"\xff not JSON", orjson.dumps(forged)):
            await bus.connection.request(subject, data, timeout_s=5)
        broken, lied = await recorded(bus, 2)
    assert (broken.sender, broken.outcome, broken.call_id) == ("tester", "protocol.malformed", None)
    assert (lied.sender, lied.outcome, lied.capability) == ("tester", "auth.unverified_sender", "work.do")


async def test_what_is_written_about_others_is_passed_over(bus: Bus, second: Bus, settings: Settings) -> None:
    """SEC-7: a record counts when its writer is its caller or its callee."""
    good = {"call_id": "c", "from": "tester", "to": "worker", "capability": "work.do", "outcome": "ok",
            "at": "2026-01-01T00:00:00Z"}  # fmt: skip
    subject = second.connection.subjects.audit("second")
    for body in (
        orjson.dumps({"calls": [good, {**good, "from": "second"}, {**good, "at": 3}, 7, None]}),
        orjson.dumps({"calls": {}}),
        b"\xff",
    ):
        await second.connection.request(subject, body, timeout_s=5)
    found = [one async for one in audited(bus.connection, Wanted()) if one is not None]
    assert [one.sender for each in found for one in each.records] == ["second"]
    assert [one.unread for one in found] == [4, 1, 1]


async def test_records_survive_a_broker_restart_between_and_during_calls(
    server: NatsServer, settings: Settings
) -> None:
    """SEC-6: while the broker is away records wait, and a group whose answer was lost is stored once."""
    own = settings.model_copy(update={"servers": server.url})
    agent = Agent("worker")

    @agent.capability("work.do", description="Does it.", idempotent=True)
    async def do(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    async with Bus.connect("tester", settings=own) as bus, agent.running(own), agent.running(own):
        ids, answers = [f"c{n}" for n in range(300)], list[str]()

        async def ask(id: str) -> None:
            (result,) = (await bus.call_many([CallDraft("work.do", {"n": 1}, id=id, timeout_s=20)])).values()
            answers.append("ok" if result.error is None else result.error.code)

        async with asyncio.TaskGroup() as group:
            for number, id in enumerate(ids):
                group.create_task(ask(id))
                if number == 150:
                    await asyncio.sleep(0.1)
                    await asyncio.to_thread(server.restart)
                await asyncio.sleep(0.001)
        assert len(answers) == len(ids)
        async with asyncio.timeout(10):
            while set(ids) - {one.call_id for one in await records(bus)}:
                await asyncio.sleep(0.1)
        found = await records(bus)
    # Each attempt that was taken has one record: a call that was asked again may have two, and none has three of one.
    assert len(found) == len({str(one) for one in found})
    assert sum(one.outcome == "ok" for one in found) >= answers.count("ok")


async def test_a_broker_that_is_away_delays_no_call_and_what_is_dropped_is_told(
    server: NatsServer, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-6: bounded; the next group that is stored says how many are missing."""
    monkeypatch.setattr("bus.trust.audit.MAX_WAITING", 100)
    own = settings.model_copy(update={"servers": server.url, "publish_timeout_s": 0.5})
    record = written("c", "tester", "w", "work.do", "ok", 1.0, None, None)
    async with Bus.connect("tester", settings=own) as bus:
        audit = Audit(bus.connection, "tester")
        server.pause()
        began = time.perf_counter()
        for number in range(1000):
            audit.add({**record, "call_id": str(number)})
        assert time.perf_counter() - began < 0.5
        assert audit.dropped == 900
        server.resume()
        async with asyncio.timeout(15):
            while sum(one.dropped for one in [f async for f in audited(bus.connection, Wanted()) if f]) < 900:
                audit.add(record)
                await asyncio.sleep(0.2)
        await audit.close()
        found = [one async for one in audited(bus.connection, Wanted()) if one is not None]
    assert sum(one.dropped for one in found) == audit.dropped
    assert sum(len(one.records) for one in found) >= 100
    assert "dropped" in caplog.text


async def test_what_cannot_be_stored_before_the_end_is_told(
    server: NatsServer, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-6: closing waits two seconds at most, and does not lose in silence."""
    own = settings.model_copy(update={"servers": server.url})
    async with Bus.connect("tester", settings=own) as bus:
        audit = Audit(bus.connection, "tester")
        server.pause()
        audit.add(written("c", "tester", "w", "work.do", "ok", 1.0, None, None))
        began = time.monotonic()
        with caplog.at_level(logging.ERROR):
            await audit.close()
            await audit.close()
        assert time.monotonic() - began < 12
        server.resume()
    assert "1 records of calls are dropped" in caplog.text


async def test_a_name_that_json_cannot_say_drops_its_record_and_nothing_else(bus: Bus, settings: Settings) -> None:
    """SEC-7: what a program calls by half a character must not end the audit of its process."""
    async with worker().running(settings):
        assert await outcome(bus, "work.\ud800", {}) == "registry.capability_not_found"
        assert await outcome(bus, "work.nothing", {}) == "registry.capability_not_found"
        (found,) = await recorded(bus, 1)
    assert found.capability == "work.nothing"
