"""Rules on a real broker: at discovery, at dispatch, along chains, and when their file changes (SEC-2, REG-3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from bus import Agent, Bus, BusError, Call, Message, Settings
from bus.config import SettingsError
from bus.doctor import Grade, examine

ALLOWS_SOME = """
[[allow]]
source = ["tester", "alice"]
capability = "calculator.add"

[[allow]]
source = "tester"
capability = ["relay.ask", "vault.*"]
"""


def alice() -> Agent:
    agent = Agent("alice")

    @agent.capability("calculator.add", description="Adds.")
    async def add(a: int, b: int) -> int:
        return a + b

    @agent.capability("calculator.adds", description="Adds, and is nobody's business.")
    async def adds(a: int, b: int) -> int:
        return a + b

    @agent.capability("vault.open", description="Opens.", sensitive=True)
    async def open_vault() -> str:
        return "gold"

    return agent


def relay(name: str = "relay") -> Agent:
    """Calls on behalf of whoever asks it, and whoever sends to it."""
    agent = Agent(name)

    @agent.capability("relay.ask", description="Passes on.")
    async def ask(capability: str, arguments: dict[str, Any], call: Call) -> Any:
        return (await call.call(capability, arguments)).data

    @agent.on("ask")
    async def handle(payload: dict[str, Any], message: Message) -> None:
        try:
            data = (await message.call(payload["capability"], payload["arguments"])).data
        except BusError as problem:
            data = problem.info.code
        await message.reply("answer", {"data": data})

    return agent


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes the rules file, and gives its path."""

    def put(text: str) -> str:
        (tmp_path / "rules.toml").write_text(text)
        return str(tmp_path / "rules.toml")

    return put


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.02)


async def refused(bus: Bus, capability: str, **options: Any) -> dict[str, Any]:
    with pytest.raises(BusError) as problem:
        await bus.call(capability, {"a": 1, "b": 2}, **options)
    return problem.value.info.to_wire()


def without(name: str, wire: dict[str, Any]) -> bytes:
    """An error as bytes, with the name that was asked for replaced."""
    return orjson.dumps(wire, option=orjson.OPT_SORT_KEYS).replace(name.encode(), b"?" * 15)


async def test_what_is_forbidden_is_answered_as_if_it_were_absent(
    bus: Bus, settings: Settings, write: Callable[[str], str]
) -> None:
    """SEC-2: byte for byte, at the callee (whose caller knows no rules) and at discovery (where both have them)."""
    ruled = settings.model_copy(update={"rules_file": write(ALLOWS_SOME)})
    async with alice().running(ruled), Bus.connect("tester", settings=ruled) as guarded:
        assert (await bus.call("calculator.add", {"a": 1, "b": 2})).data == 3
        names = ["calculator.adds", "calculator.addt", "secret.unknown"]
        forbidden, near, far = await dispatched(bus, "alice", names)
        assert forbidden["code"] == near["code"] == "tool.unknown_capability"
        assert forbidden["details"] == {"nearest": ["calculator.add"], "started": False}
        assert without("calculator.adds", forbidden) == without("calculator.addt", near)
        assert far["details"]["nearest"] == []
        # At discovery.
        hidden, gone = (await refused(guarded, "calculator.adds"), await refused(guarded, "calculator.addt"))
        assert hidden["code"] == "registry.capability_not_found"
        assert without("calculator.adds", hidden) == without("calculator.addt", gone)
        assert hidden["details"]["nearest"] == ["calculator.add"]
        by_agent = [await refused(guarded, name, agent="alice") for name in ("calculator.adds", "calculator.addt")]
        assert without("calculator.adds", by_agent[0]) == without("calculator.addt", by_agent[1])
        versioned = [await refused(guarded, name, version="9") for name in ("calculator.adds", "calculator.addt")]
        assert without("calculator.adds", versioned[0]) == without("calculator.addt", versioned[1])


async def dispatched(bus: Bus, agent: str, names: list[str]) -> list[dict[str, Any]]:
    """What an agent itself answers, also to names that it never announced, and in a version that it never had."""
    found = []
    for name in names:
        request = {
            "version": "1.2", "message_id": f"m-{name}", "trace_id": "t" * 32, "from": bus.name, "to": agent,
            "type": "tool_call_request",
            "payload": {"tool_call_id": "c", "tool_name": name, "arguments": {"a": 1, "b": 2}, "version": "7"},
        }  # fmt: skip
        subject = bus.connection.subjects.call(agent, bus.name, name)
        answer = await bus.connection.request(subject, orjson.dumps(request), timeout_s=5)
        payload = orjson.loads(answer.data)["payload"]
        meta = {key: value for key, value in payload["meta"].items() if key not in ("elapsed_ms", "tool_name")}
        found.append({**payload["error"], "meta": meta})
    return found


async def test_what_may_not_be_called_is_not_shown(settings: Settings, write: Callable[[str], str]) -> None:
    """REG-3: an agent of which nothing may be called is not there either."""
    ruled = settings.model_copy(update={"rules_file": write(ALLOWS_SOME)})
    async with alice().running(ruled), relay().running(ruled):
        async with Bus.connect("tester", settings=ruled) as seeing:
            assert [offer.card.name for offer in await seeing.capabilities.find()] == ["calculator.add", "relay.ask"]
            shown = {one.agent: one for one in await seeing.capabilities.agents()}
            assert [card.name for one in shown["alice"].announcements for card in one.cards] == ["calculator.add"]
        async with Bus.connect("stranger", settings=ruled) as blind:
            assert await blind.capabilities.find() == []
            assert await blind.capabilities.agents() == []
            there, absent = [await refused(blind, "calculator.add", agent=agent) for agent in ("alice", "alicf")]
            assert there["code"] == "registry.agent_not_found"
            assert without("alice", there) == without("alicf", absent)


async def test_a_sensitive_capability_is_opened_by_its_name_alone(
    settings: Settings, write: Callable[[str], str]
) -> None:
    """SEC-2: `vault.*` does not open `vault.open`."""
    path = write(ALLOWS_SOME)
    ruled = settings.model_copy(update={"rules_file": path})
    async with alice().running(ruled), Bus.connect("tester", settings=ruled) as bus:
        assert (await refused(bus, "vault.open"))["code"] == "registry.capability_not_found"
        write(ALLOWS_SOME + '[[allow]]\nsource = "*"\ncapability = "vault.open"\n')
        await eventually(lambda: answers(bus, "vault.open", "gold"))


async def answers(bus: Bus, capability: str, data: Any, arguments: dict[str, Any] | None = None) -> bool:
    try:
        return bool((await bus.call(capability, arguments or {})).data == data)
    except BusError:
        # The processes take a change one after the other.
        return False


async def test_a_chain_of_three_needs_the_right_of_its_first(
    bus: Bus, settings: Settings, write: Callable[[str], str]
) -> None:
    """SEC-2: who may not call the last one cannot make another call it, by a call or by a message.

    `tester` > `relay` > `second` > `alice`: all agents may, and the tester may not.
    """
    middle = '[[allow]]\nsource = "*"\ncapability = "relay.ask"\n[[allow]]\nsource = ["relay", "second"]\n'
    path = write(middle + 'capability = ["calculator.add", "second.ask"]\n')
    ruled = settings.model_copy(update={"rules_file": path})
    second = Agent("second")

    @second.capability("second.ask", description="Passes on.")
    async def ask(call: Call) -> Any:
        return {
            "data": (await call.call("calculator.add", {"a": 1, "b": 2})).data,
            "for": list(call.envelope.extensions["on_behalf_of"]),
        }

    async with alice().running(ruled), relay().running(ruled), second.running(ruled):
        asked = {"capability": "second.ask", "arguments": {}}
        with pytest.raises(BusError, match=r"second\.ask") as denied:
            await bus.call("relay.ask", asked)
        assert denied.value.info.code == "registry.capability_not_found"
        sent = await bus.send("relay", "ask", {"capability": "calculator.add", "arguments": {"a": 1, "b": 2}})
        answer = (await bus.outcome(sent)).reply
        assert answer is not None
        assert answer.payload["data"] == "registry.capability_not_found"
        # With the tester's own right all of it works, and the last one knows for whom.
        write(middle.replace('["relay"', '["tester", "relay"') + 'capability = ["calculator.add", "second.ask"]\n')
        expected = {"data": 3, "for": ["tester"]}
        await eventually(lambda: answers(bus, "relay.ask", {**expected, "for": ["tester"]}, asked))


async def test_an_edit_is_in_force_within_a_second_and_a_broken_one_changes_nothing(
    bus: Bus, settings: Settings, write: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """SEC-2: broken, deleted and mended, while calls go on."""
    path = write(ALLOWS_SOME)
    ruled = settings.model_copy(update={"rules_file": path})
    async with alice().running(ruled):
        assert (await bus.call("calculator.add", {"a": 1, "b": 2})).data == 3

        async def problems() -> list[str]:
            found = await examine(bus.connection)
            return [one.message for one in found if one.subject == "rules" and one.grade is Grade.BAD]

        async def has(text: str) -> bool:
            return any(text in one for one in await problems())

        write(ALLOWS_SOME + "[[deny]]\nsource = 'tester'\n")
        await eventually(lambda: has("line 9: [[deny]]: capability is missing"))
        assert "line 9" in caplog.text
        assert (await bus.call("calculator.add", {"a": 1, "b": 2})).data == 3
        Path(path).unlink()
        await eventually(lambda: has("cannot be read"))
        assert (await bus.call("calculator.add", {"a": 1, "b": 2})).data == 3
        began = time.monotonic()
        write(ALLOWS_SOME + '[[deny]]\nsource = "tester"\ncapability = "*"\n')

        async def is_denied() -> bool:
            return await are_allowed(bus, ["calculator.add"]) == [False]

        await eventually(is_denied)
        assert time.monotonic() - began < 2.5
        assert await problems() == []


@pytest.mark.parametrize("text", ["[[allow]]\nsource = 'a'\n", "\x00", None])
async def test_a_file_that_is_broken_at_the_start_starts_nothing(
    settings: Settings, tmp_path: Path, text: str | None
) -> None:
    """SEC-2: without its rules nothing may run."""
    path = tmp_path / "rules.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=r"rules\.toml"):
        async with alice().running(settings, rules_file=str(path)):
            pass
    with pytest.raises(SettingsError, match="BUS_RULES_FILE"):
        async with Bus.connect("tester", settings=settings, rules_file=str(path)):
            pass


async def test_calls_that_a_change_falls_between_see_the_old_rules_or_the_new_ones(
    bus: Bus, settings: Settings, write: Callable[[str], str]
) -> None:
    """SEC-2: two rules that change places leave no moment in which both or neither hold."""
    add = '[[allow]]\nsource = "tester"\ncapability = "calculator.add"\n'
    adds = '[[allow]]\nsource = "tester"\ncapability = "calculator.adds"\n'
    path = write(add)
    seen: list[tuple[bool, bool]] = []
    async with alice().running(settings.model_copy(update={"rules_file": path})) as _:
        await bus.capabilities.find()

        async def look() -> None:
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                # One after the other at one callee: allowed then denied, or denied then allowed across the change.
                both = await are_allowed(bus, ["calculator.add", "calculator.adds"])
                seen.append((both[0], both[1]))

        looking = asyncio.create_task(look())
        await asyncio.sleep(0.1)
        write(adds)
        await looking
    assert seen[0] == (True, False)
    assert seen[-1] == (False, True)
    assert (False, False) not in seen


async def are_allowed(bus: Bus, names: list[str]) -> list[bool]:
    results = []
    for name in names:
        try:
            results.append((await bus.call(name, {"a": 1, "b": 2})).ok)
        except BusError:
            results.append(False)
    return results


async def test_a_task_needs_the_same_right_and_its_run_is_denied_like_a_call(
    bus: Bus, settings: Settings, write: Callable[[str], str]
) -> None:
    """SEC-2, REG-8: also through an agent that is named before it is there, and never tried elsewhere or again."""
    ruled = settings.model_copy(update={"rules_file": write(ALLOWS_SOME)})
    async with alice().running(ruled):
        allowed = await bus.submit("calculator.add", {"a": 1, "b": 2}, agent="alice")
        assert (await allowed.result(timeout_s=10)).data == 3
        denied = await bus.submit("calculator.adds", {"a": 1, "b": 2}, agent="alice", timeout_s=20)
        with pytest.raises(BusError, match=r"alice has no capability 'calculator\.adds'"):
            await denied.result(timeout_s=10)
