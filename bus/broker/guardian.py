"""The guardian of one store directory: starts its nats-server, restarts it when it dies, stops it when unused.

It runs as a process of its own, so that the broker outlives the process that needed it first. It ends, and the
server with it, when nobody has held users.lock for a while, on SIGTERM, when the directory is removed, and
when the server cannot be kept alive.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bus.broker.server_process import Server, Wakeups
from bus.broker.store_directory import STOP_S, FileLock, StoreDirectory, greeting, replace_text

DEFAULT_PORT = 4222
OTHER_PORTS = range(15000, 32000)  # below the ports that the kernel hands to outgoing connections
PROBE_S = 1.0  # how often the guardian looks whether somebody still uses the broker
LINGER_S = 2.0  # how long an unused broker waits for the next command
SHORT_LIFE_S = 1.0  # a server that lives shorter counts as a failed start
RESTART_DELAYS_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.6)  # after these the guardian gives up
KEEP_PORT = "keep-port"  # somebody relies on the port of the last run
ANY_PORT = "any-port"


class ServerLostError(Exception):
    """The server cannot be started, or not be kept alive; the message says why."""


class Guardian:
    """Looks after one server until nobody uses it, it cannot be kept alive, or a signal says stop."""

    def __init__(self, files: StoreDirectory, binary: str, *, keep_port: bool) -> None:
        self._files = files
        self._server = Server(files, binary)
        self._keep_port = keep_port
        self._wakeups = Wakeups()
        self._start = FileLock(files.start_lock)
        self._users = FileLock(files.users_lock)
        self._idle_since: float | None = None
        self._last_touch_ns = 0
        self._restarts = 0
        self._failures = 0

    def run(self, report: Callable[[Mapping[str, Any]], None]) -> None:
        """Starts the server, says through `report` what came of it, and guards it to its end."""
        try:
            self._files.stop_leftover()
            self._start_first()
            report(self._publish())
            _log(self._guard())
            if self._users.is_current():
                self._files.record.unlink(missing_ok=True)
        except ServerLostError as loss:
            _log(str(loss))
            self._files.write_record({"error": str(loss)})
            report({"error": str(loss)})
        finally:
            self._server.stop()

    def _start_first(self) -> None:
        problem = ""
        for port in self._ports():
            if self._is_ours(port):
                problem = f"another nats-server of this directory runs on port {port}; end that one first"
                break
            if not _is_free(port):
                problem = f"port {port} is taken by another program; the users of this broker expect it there"
                continue
            try:
                self._server.configure(port)
                problem = self._server.start(self._wakeups)
            except (OSError, subprocess.SubprocessError) as failure:
                raise ServerLostError(f"nats-server cannot be run: {failure}") from failure
            if not problem:
                replace_text(self._files.port, f"{port}\n")
                return
            if _is_free(port):  # else another program was faster with this port
                break
        raise ServerLostError(problem)

    def _ports(self) -> Iterator[int]:
        remembered = self._files.read_int(self._files.port)
        if remembered:
            yield remembered
        if not (remembered and self._keep_port):
            yield DEFAULT_PORT
            yield from random.sample(OTHER_PORTS, 10)

    def _is_ours(self, port: int) -> bool:
        """Whether a server of this directory answers there, even after time to go away."""
        end = time.monotonic() + STOP_S
        while greeting(port).get("server_name") == self._files.server_name:
            if time.monotonic() > end or self._wakeups.stop_asked:
                return True
            self._wakeups.pause(0.1)
        return False

    def _publish(self) -> Mapping[str, Any]:
        """Writes broker.json, unless it already says so."""
        record = {
            "url": f"nats://127.0.0.1:{self._server.port}",
            "port": self._server.port,
            "server_pid": self._server.pid,
            "guardian_pid": os.getpid(),
            "restarts": self._restarts,
        }
        if self._files.read_record() != record:
            self._files.write_record(record)
        return record

    def _guard(self) -> str:
        """Returns why the server may end; raises ServerLostError when it cannot be kept alive."""
        while not self._wakeups.stop_asked:
            self._wakeups.wait(PROBE_S)
            if not self._users.is_current():
                return "the store directory was removed"
            if self._is_unused():
                return "nobody uses the broker any more"
            if self._server.exit_code is not None:
                self._restart()
            elif self._server.was_ready:
                self._publish()
        return "asked to stop"

    def _is_unused(self) -> bool:
        """True after a while without users, and then nobody can join until this process has ended."""
        if not self._start.try_lock():
            return False
        if self._users.try_lock():
            touched_ns, now = self._users.touched_ns(), time.monotonic()
            if self._idle_since is None or touched_ns != self._last_touch_ns:
                self._idle_since, self._last_touch_ns = now, touched_ns
            if now - self._idle_since >= LINGER_S:
                return True
            self._users.unlock()
        else:
            self._idle_since = None
        self._start.unlock()
        return False

    def _restart(self) -> None:
        short = not self._server.was_ready or self._server.lived_s() < SHORT_LIFE_S
        self._failures = self._failures + 1 if short else 0
        _log(f"nats-server ended with code {self._server.exit_code}")
        if self._failures >= len(RESTART_DELAYS_S):
            raise ServerLostError(f"nats-server ended {self._failures} times in a row as soon as it was started")
        self._wakeups.pause(RESTART_DELAYS_S[self._failures])
        if self._wakeups.stop_asked:
            return
        problem = self._server.start(self._wakeups)
        if problem:
            _log(problem)
            return
        self._restarts += 1
        self._publish()
        _log("nats-server was started again")


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does it
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _log(line: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), line, file=sys.stderr, flush=True)


def main(binary: str, port_rule: str, directory: str) -> None:
    """Leaves the process that called, takes the guardian's lock, and guards; the first line out is the report."""
    if os.fork():
        os._exit(0)
    standard_output = os.dup(1)
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 1)

    def report(message: Mapping[str, Any]) -> None:
        nonlocal standard_output
        if standard_output < 0:
            return
        try:
            os.write(standard_output, json.dumps(message).encode())
        except BrokenPipeError:
            _log("nobody waited for the broker to start")
        os.close(standard_output)
        standard_output = -1

    files = StoreDirectory.at(Path(directory))
    lock = FileLock(files.guardian_lock)
    if not lock.try_lock():
        report({})  # another one was faster
        return
    lock.write(os.getpid())
    Guardian(files, binary, keep_port=port_rule == KEEP_PORT).run(report)
