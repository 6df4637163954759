"""The embedded broker against a real nats-server: one for all who use it, for as long as somebody does (OPS-1)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest

from bus.broker.embedded import Embedded, find_server
from bus.broker.store_directory import FileLock, StoreDirectory, greeting, runs
from bus.errors import BrokerError
from bus.testing import free_port

# Joins, says how, and stays until its standard input ends.
OTHER_USER = """\
import asyncio, json, sys
from pathlib import Path
from bus.broker.embedded import Embedded

async def main():
    broker = await Embedded.join(Path(sys.argv[1]))
    print(json.dumps({"url": broker.url, "started": broker.started}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await broker.leave()

asyncio.run(main())
"""


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StoreDirectory]:
    """A store directory with a port of its own, so that no parallel test takes the port while a server is down."""
    directory = StoreDirectory.at(tmp_path / 'the "store" of $HOME')
    directory.path.mkdir()
    directory.port.write_text(str(free_port()))
    yield directory
    await Embedded(directory.path, "").stop()


@asynccontextmanager
async def other_user(store: StoreDirectory) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        OTHER_USER,
        str(store.path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(await process.stdout.readline())
    finally:
        await process.communicate(b"")


async def eventually(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


def record(store: StoreDirectory) -> dict[str, Any]:
    found = store.read_record()
    assert found is not None
    return found


def server_runs(store: StoreDirectory, pid: int) -> bool:
    return runs(pid, "-c", str(store.config))


async def kill_guardian(store: StoreDirectory) -> None:
    """Returns when the kernel has given its lock back; Linux tells its server then to end."""
    os.kill(record(store)["guardian_pid"], signal.SIGKILL)
    lock = FileLock(store.guardian_lock)
    await eventually(lock.try_lock)
    lock.close()


async def stored(url: str, *, put: bytes | None = None) -> bytes:
    """Stores a message when there is one to store, and reads the last one back."""
    client = await nats.connect(url, max_reconnect_attempts=1)
    try:
        stream = client.jetstream()
        if put is not None:
            await stream.add_stream(name="KEEP", subjects=["keep"])
            await stream.publish("keep", put)
        message = await stream.get_last_msg("KEEP", "keep")
        return message.data or b""
    finally:
        await client.close()


async def test_a_second_process_reuses_the_broker_that_the_first_started(store: StoreDirectory) -> None:
    """OPS-1"""
    broker = await Embedded.join(store.path)
    assert broker.started
    assert await stored(broker.url, put=b"hello") == b"hello"
    server = record(store)["server_pid"]
    async with other_user(store) as (_, said):
        assert said == {"url": broker.url, "started": False}
        assert record(store)["server_pid"] == server
    await broker.leave()
    await broker.leave()


async def test_processes_that_join_at_once_get_one_server(store: StoreDirectory) -> None:
    """OPS-1"""

    async def join() -> dict[str, Any]:
        async with other_user(store) as (_, said):
            await asyncio.sleep(0.5)
            return said

    said = await asyncio.gather(*(join() for _ in range(4)))
    assert len({one["url"] for one in said}) == 1
    assert sum(one["started"] for one in said) == 1


async def test_tasks_that_join_at_once_get_one_server(store: StoreDirectory) -> None:
    """OPS-1"""
    brokers = await asyncio.gather(*(Embedded.join(store.path) for _ in range(8)))
    assert len({broker.url for broker in brokers}) == 1
    assert sum(broker.started for broker in brokers) == 1
    for broker in brokers:
        await broker.leave()


async def test_the_server_ends_after_its_only_user_was_killed(store: StoreDirectory) -> None:
    """OPS-1: nothing is left behind, whatever happened to the process that started it."""
    async with other_user(store) as (process, said):
        assert said["started"]
        server = record(store)["server_pid"]
        process.kill()
    await eventually(lambda: not server_runs(store, server))
    await eventually(lambda: not store.record.exists())


async def test_it_stays_while_another_user_is_there_and_ends_after_the_last(store: StoreDirectory) -> None:
    """OPS-1"""
    first = await Embedded.join(store.path)
    second = await Embedded.join(store.path)
    server = record(store)["server_pid"]
    await first.leave()
    await asyncio.sleep(3.5)  # longer than an unused server lingers
    assert server_runs(store, server)
    await second.leave()
    await eventually(lambda: not server_runs(store, server))


async def test_it_lingers_for_the_next_command(store: StoreDirectory) -> None:
    """OPS-1: commands that follow one another find it running."""
    for attempt in range(4):
        broker = await Embedded.join(store.path)
        assert broker.started == (attempt == 0)
        await broker.leave()
        await asyncio.sleep(0.7)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
async def test_a_server_that_dies_is_back_with_its_messages(store: StoreDirectory, sign: signal.Signals) -> None:
    """DEL-5"""
    broker = await Embedded.join(store.path)
    await stored(broker.url, put=b"keep me")
    before = record(store)
    os.kill(before["server_pid"], sign)
    await eventually(lambda: record(store)["restarts"] == 1, within_s=5)
    after = record(store)
    assert (after["url"], after["guardian_pid"]) == (broker.url, before["guardian_pid"])
    assert after["server_pid"] != before["server_pid"]
    assert await stored(broker.url) == b"keep me"
    await broker.leave()


async def test_the_server_is_back_after_each_of_many_kills(store: StoreDirectory) -> None:
    """DEL-5"""
    broker = await Embedded.join(store.path)
    await stored(broker.url, put=b"keep me")
    for kills in range(1, 4):
        os.kill(record(store)["server_pid"], signal.SIGKILL)
        await eventually(lambda kills=kills: record(store)["restarts"] == kills, within_s=5)  # type: ignore[misc]
    assert await stored(broker.url) == b"keep me"
    await broker.leave()


async def test_a_killed_guardian_is_replaced_at_the_next_join(store: StoreDirectory) -> None:
    """DEL-5: the new one starts from what was stored, and no server is left over."""
    first = await Embedded.join(store.path)
    await stored(first.url, put=b"keep me")
    before = record(store)
    await kill_guardian(store)
    second = await Embedded.join(store.path)
    assert second.started
    assert second.url == first.url
    assert not server_runs(store, before["server_pid"])
    assert server_runs(store, record(store)["server_pid"])
    assert await stored(second.url) == b"keep me"
    await first.leave()
    await second.leave()


async def test_users_that_revive_at_once_get_one_server_on_the_same_port(store: StoreDirectory) -> None:
    """DEL-5"""
    users = [await Embedded.join(store.path) for _ in range(3)]
    await stored(users[0].url, put=b"keep me")
    await kill_guardian(store)
    url = users[0].url
    await asyncio.gather(*(user.revive() for user in users))
    assert {user.url for user in users} == {url}
    assert _text(store.server_log).count("Starting nats-server") == 2
    assert await stored(url) == b"keep me"
    for user in users:
        await user.leave()


async def test_revive_of_a_running_broker_changes_nothing(store: StoreDirectory) -> None:
    """DEL-5"""
    broker = await Embedded.join(store.path)
    before = record(store)
    await broker.revive()
    assert record(store) == before
    await broker.leave()
    with pytest.raises(BrokerError, match="left"):
        await broker.revive()


async def test_stop_is_for_everybody_and_not_undone_by_revive(store: StoreDirectory) -> None:
    """OPS-1: Ctrl-C on the command that holds the broker is the end of it, until somebody joins again."""
    first = await Embedded.join(store.path)
    other = await Embedded.join(store.path)
    await stored(first.url, put=b"keep me")
    server = record(store)["server_pid"]
    await first.stop()
    await first.stop()
    assert not server_runs(store, server)
    assert not store.record.exists()
    with pytest.raises(BrokerError, match="was stopped"):
        await other.revive()
    again = await Embedded.join(store.path)
    assert (again.started, again.url) == (True, other.url)
    await other.revive()
    assert await stored(again.url) == b"keep me"
    for broker in (other, again):
        await broker.leave()


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"port": "x"}', b"\xff\x00", b'{"port": 1}'])
async def test_a_garbage_record_does_not_matter(store: StoreDirectory, garbage: bytes) -> None:
    """OPS-1"""
    store.record.write_bytes(garbage)
    broker = await Embedded.join(store.path)
    store.record.write_bytes(garbage)
    other = await Embedded.join(store.path)
    assert other.url == broker.url
    for user in (other, broker):
        await user.leave()


async def test_a_foreign_process_with_the_number_of_a_dead_server_is_left_alone(store: StoreDirectory) -> None:
    """OPS-1"""
    foreign = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=subprocess.PIPE)
    store.pid.write_text(str(foreign.pid))
    store.guardian_lock.write_text(str(foreign.pid))
    broker = await Embedded.join(store.path)
    assert foreign.returncode is None
    await broker.leave()
    await foreign.communicate(b"\n")
    assert foreign.returncode == 0


async def test_a_relative_store_directory_works(store: StoreDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS-1"""
    monkeypatch.chdir(store.path.parent)
    broker = await Embedded.join(Path(store.path.name))
    monkeypatch.chdir("/")
    await broker.revive()
    assert record(store)["url"] == broker.url
    await broker.leave()


async def test_a_taken_port_is_given_way_when_nobody_relies_on_it(store: StoreDirectory) -> None:
    """OPS-1"""
    with socket.create_server(("127.0.0.1", store.read_int(store.port))) as taken:
        broker = await Embedded.join(store.path)
        assert not broker.url.endswith(f":{taken.getsockname()[1]}")
        assert record(store)["port"] == store.read_int(store.port)
    await broker.leave()


async def test_a_taken_port_is_named_when_users_rely_on_it(store: StoreDirectory) -> None:
    """OPS-1"""
    broker = await Embedded.join(store.path)
    before = record(store)
    await kill_guardian(store)
    await eventually(lambda: not server_runs(store, before["server_pid"]))
    with socket.create_server(("127.0.0.1", before["port"])):
        with pytest.raises(BrokerError, match=f"port {before['port']} is taken"):
            await broker.revive()
        with pytest.raises(BrokerError, match=f"port {before['port']} is taken"):
            await Embedded.join(store.path)
    await broker.revive()
    assert greeting(before["port"])
    await broker.leave()


async def test_a_cancelled_join_leaves_nothing_running(store: StoreDirectory) -> None:
    """OPS-1"""
    joining = asyncio.create_task(Embedded.join(store.path))
    await eventually(lambda: store.guardian_lock.exists())
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    await eventually(lambda: "nobody uses" in _text(store.guardian_log))
    await eventually(lambda: not store.record.exists())
    await eventually(lambda: not greeting(store.read_int(store.port)))


async def test_a_removed_store_directory_ends_its_server(store: StoreDirectory) -> None:
    """OPS-1"""
    broker = await Embedded.join(store.path)
    server = record(store)["server_pid"]
    shutil.rmtree(store.path)
    await eventually(lambda: not server_runs(store, server))
    with pytest.raises(BrokerError, match="removed"):
        await broker.revive()
    await broker.leave()


async def test_a_server_that_keeps_dying_is_given_up_with_the_reason(store: StoreDirectory, tmp_path: Path) -> None:
    """DEL-5, OPS-1"""
    broken = tmp_path / "broken"
    binary = _script(tmp_path, f'test ! -e "{broken}" || exit 3; exec "{find_server()}" "$@"')
    broker = await Embedded.join(store.path, binary=str(binary))
    await stored(broker.url, put=b"keep me")
    broken.touch()
    os.kill(record(store)["server_pid"], signal.SIGKILL)
    await eventually(lambda: "times in a row" in record(store).get("error", ""))
    with pytest.raises(BrokerError, match="code 3"):
        await broker.revive()
    broken.unlink()
    await broker.revive()
    assert await stored(broker.url) == b"keep me"
    await broker.leave()


async def test_a_server_that_does_not_start_says_why(store: StoreDirectory, tmp_path: Path) -> None:
    """OPS-1: an error says what, where and what the log says."""
    broken = _script(tmp_path, "echo out of cheese >&2; exit 7")
    with pytest.raises(BrokerError, match=r"code 7.*out of cheese") as caught:
        await Embedded.join(store.path, binary=str(broken))
    assert caught.value.info.code == "broker.unavailable"
    assert str(store.path) in str(caught.value)


async def test_a_file_that_is_no_program_is_named(store: StoreDirectory, tmp_path: Path) -> None:
    """OPS-1"""
    fake = tmp_path / "nats-server"
    fake.write_bytes(b"\x7fELF")
    fake.chmod(0o755)
    with pytest.raises(BrokerError, match="cannot be run"):
        await Embedded.join(store.path, binary=str(fake))


@pytest.mark.parametrize("tail", ["a file/store", "x" * 300, "y/" * 4000])
async def test_a_store_directory_that_cannot_be_used_is_named(tmp_path: Path, tail: str) -> None:
    """OPS-1"""
    (tmp_path / "a file").touch()
    with pytest.raises(BrokerError, match="BUS_STORE_DIR") as caught:
        await Embedded.join(tmp_path / tail)
    assert caught.value.info.code == "broker.unavailable"


def _script(directory: Path, text: str) -> Path:
    script = directory / "nats-server"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return script


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
