"""The embedded broker: one nats-server for one store directory, shared by all processes that name the directory."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Never

from bus.broker.guardian import ANY_PORT, KEEP_PORT
from bus.broker.store_directory import STOP_S, FileLock, StoreDirectory, greeting, runs, send
from bus.errors import BusError, error

START_TIMEOUT_S = 65.0
POLL_S = 0.02
WATCH_S = 0.5
MAX_LOG_BYTES = 1_000_000

# The guardian needs three small modules and the standard library. Importing `bus` for them would load the whole
# library: many times the start time and the memory, for as long as the broker runs.
BOOTSTRAP = """\
import sys, types
for name, path in zip(("bus", "bus.broker"), sys.argv[1:3]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from bus.broker.guardian import main
main(*sys.argv[3:])
"""


class Embedded:
    """Our use of the broker of one store directory, from `join` to `leave`.

    The broker listens on the loopback interface only. It is restarted within a second when it dies, on the
    same port and with what it had stored. It stops a few seconds after the last process that joined has
    left or died, however it died. Everything here raises BrokerError `broker.unavailable`, with the end of
    the logs where that helps.
    """

    __slots__ = ("_binary", "_directory", "_has_left", "_mutex", "_users", "started", "url")

    url: str
    """Where the broker answers."""
    started: bool
    """Whether it was our `join` that started it."""

    def __init__(self, store_dir: Path, binary: str) -> None:
        self._directory = StoreDirectory.at(store_dir)
        self._binary = binary
        self._mutex = threading.Lock()
        self._users: FileLock | None = None
        self._has_left = False
        self.url = ""
        self.started = False

    @classmethod
    async def join(cls, store_dir: Path, *, binary: str = "") -> Embedded:
        """Starts the broker of this directory, or joins the one that runs; returns when it answers.

        The directory is made if it is missing. `binary` is the path of nats-server; empty: the one on the
        PATH, else the one of the extra `embedded`. On cancel the use is given back, however far it came.
        """
        broker = cls(_resolved(store_dir), binary)
        try:
            await broker._in_thread(broker._join)
        except BaseException:
            broker._release()
            raise
        return broker

    @property
    def server_name(self) -> str:
        """The name by which its server can be told from those of other directories."""
        return self._directory.server_name

    async def revive(self) -> None:
        """Makes sure that the broker runs, on the port that we know; several users may ask at once.

        Raises when the broker was stopped on purpose (`stop`), and after `leave`.
        """
        await self._in_thread(self._revive)

    async def leave(self) -> None:
        """Gives our use back; the broker goes on while others use it. A second call does nothing."""
        self._release()

    async def stop(self) -> None:
        """Stops the broker for everybody, and leaves; what it stored stays. A second call does nothing.

        Those who still use it are told so when they ask to revive it; the next `join` starts it again.
        """
        try:
            await self._in_thread(self._stop)
        finally:
            self._release()

    async def _in_thread(self, work: Callable[[float], None]) -> None:
        def translated() -> None:
            try:
                work(time.monotonic() + START_TIMEOUT_S)
            except OSError as problem:
                raise self._unavailable(
                    f"the store directory {self._directory.path} cannot be used ({problem.strerror or problem}); "
                    "set BUS_STORE_DIR to a directory that you can write"
                ) from problem

        await asyncio.to_thread(translated)

    def _join(self, deadline: float) -> None:
        self._directory.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._start_lock(deadline):
            users = FileLock(self._directory.users_lock)
            others = not users.try_lock()
            if not users.try_lock(shared=True):
                users.close()
                raise self._unavailable(f"{users.path} is locked by another program; end that one")
            users.touch()
            self._hold(users)
            self.started = self._ensure(deadline, KEEP_PORT if others else ANY_PORT)

    def _revive(self, deadline: float) -> None:
        with self._mutex:
            if self._users is None or not self._users.is_current():
                raise self._unavailable("we have left this broker, or its directory was removed; join it again")
        with self._start_lock(deadline):
            if not self._directory.record.exists() and not self._has_guardian():
                raise self._unavailable("the embedded broker was stopped; start it again with `bus up`")
            self._ensure(deadline, KEEP_PORT)

    def _stop(self, deadline: float) -> None:
        if not self._directory.path.is_dir():
            return
        with self._start_lock(deadline):
            guardian = FileLock(self._directory.guardian_lock)
            try:
                self._end_guardian(guardian)
                self._directory.stop_leftover()
                self._directory.record.unlink(missing_ok=True)
            finally:
                guardian.close()

    def _end_guardian(self, lock: FileLock) -> None:
        pid = self._directory.read_int(self._directory.guardian_lock)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if runs(pid, str(self._directory.path)):
                send(pid, sign)
            end = time.monotonic() + STOP_S + 2
            while time.monotonic() < end:
                if lock.try_lock():
                    return
                time.sleep(POLL_S)
        raise self._unavailable(f"the guardian of {self._directory.path} (process {pid}) does not end; end it by hand")

    @contextmanager
    def _start_lock(self, deadline: float) -> Iterator[None]:
        lock = FileLock(self._directory.start_lock)
        try:
            while not lock.try_lock():
                if time.monotonic() > deadline:
                    raise self._failed_start("another process is starting or stopping it for too long", None)
                time.sleep(POLL_S)
            yield
        finally:
            lock.close()

    def _has_guardian(self) -> bool:
        guardian = FileLock(self._directory.guardian_lock)
        try:
            return not guardian.try_lock(shared=True)
        finally:
            guardian.close()

    def _ensure(self, deadline: float, port_rule: str) -> bool:
        """Returns when the broker answers, and whether we started it; whoever calls holds start.lock."""
        started = False
        while True:
            if not self._has_guardian():
                started = self._launch(deadline, port_rule)
            record = self._directory.read_record() or {}
            if self._answers(record):
                self.url = f"nats://127.0.0.1:{record['port']}"
                return started
            self._check_patience(deadline, f"it does not answer on port {record.get('port', '(unknown)')}")

    def _answers(self, record: dict[str, Any]) -> bool:
        port = record.get("port")
        return isinstance(port, int) and greeting(port).get("server_name") == self._directory.server_name

    def _launch(self, deadline: float, port_rule: str) -> bool:
        """Starts a guardian and waits for its report; False when another one was faster."""
        here, directory = Path(__file__).parent, self._directory
        places = [str(here.parent), str(here)]
        arguments = [str(find_server(self._binary)), port_rule, str(directory.path)]
        since = time.time()
        too_long = directory.guardian_log.exists() and directory.guardian_log.stat().st_size > MAX_LOG_BYTES
        with (
            directory.guardian_log.open("wb" if too_long else "ab") as log,
            subprocess.Popen(
                [sys.executable, "-I", "-c", BOOTSTRAP, *places, *arguments],
                cwd=directory.path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            ) as process,
        ):
            assert process.stdout is not None
            while not select.select([process.stdout], [], [], POLL_S)[0]:
                self._check_patience(deadline, "it takes too long", since)
            text = process.stdout.read()
        report = json.loads(text) if text else {"error": "its guardian ended at its start"}
        if "error" in report:
            raise self._failed_start(str(report["error"]), since)
        return "url" in report

    def _check_patience(self, deadline: float, problem: str, since: float | None = None) -> None:
        if self._has_left or time.monotonic() > deadline:
            raise self._failed_start(problem, since)
        time.sleep(POLL_S)

    def _failed_start(self, reason: str, since: float | None) -> BusError:
        log = self._directory.last_log_lines(since) if since is not None else ""
        return self._unavailable(
            f"the embedded broker of {self._directory.path} cannot be reached: {reason}"
            + (f" (log: {log})" if log else "")
        )

    def _unavailable(self, message: str) -> BusError:
        return error("broker.unavailable", message, store_dir=str(self._directory.path))

    def _hold(self, users: FileLock) -> None:
        with self._mutex:
            if not self._has_left:
                self._users = users
                return
        users.close()
        raise self._unavailable("the join was cancelled")

    def _release(self) -> None:
        with self._mutex:
            self._has_left = True
            if self._users is not None:
                self._users.close()
                self._users = None


async def until_removed(store_dir: Path) -> Never:
    """Waits until somebody removes the directory, or puts another in its place; then raises BrokerError.

    Call it after a `join`, which makes the directory.
    The broker ends with its directory, and its messages are gone with it: nobody should go on as if they were not.
    """
    users_lock = StoreDirectory.at(_resolved(store_dir)).users_lock
    held: os.stat_result | None = None
    while True:
        try:
            found = users_lock.stat()
        except FileNotFoundError:
            found = None
        if found is None or not os.path.samestat(found, held or found):
            raise error(
                "broker.unavailable",
                f"{store_dir} was removed while its broker was in use, and its messages are gone; start again",
                retryable=False,
            )
        held = found
        await asyncio.sleep(WATCH_S)


def _resolved(store_dir: Path) -> Path:
    return Path(store_dir).resolve()


def find_server(binary: str = "") -> Path:
    """The nats-server to run: the named one, else the one on the PATH, else the one of the extra `embedded`.

    Raises BrokerError `broker.unavailable` that says what to install.
    """
    if binary:
        found = shutil.which(binary)
        if found is None:
            raise error("broker.unavailable", f"BUS_NATS_SERVER names {binary}, which cannot be run; mend or unset it")
        return Path(found).resolve()
    scripts = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    scripts.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    found = shutil.which("nats-server") or shutil.which("nats-server", path=os.pathsep.join(scripts))
    if found is None:
        raise error(
            "broker.unavailable",
            "no nats-server was found for the embedded broker; `pip install 'envelope-bus[embedded]'` brings one, "
            "or name one in BUS_NATS_SERVER, or a running broker in BUS_SERVERS",
        )
    return Path(found).absolute()
