"""The files of one store directory, which the users of the embedded broker and its guardian share.

    users.lock      shared by every process that uses the broker; the kernel releases it even on SIGKILL
    start.lock      exclusive while somebody joins, revives or stops: nobody joins a server that is going away
    guardian.lock   exclusive for as long as a guardian lives; holds its process id
    broker.json     where the broker answers, or why it could not be kept alive; removed on an orderly stop
    port            the port of the last run, taken again when it is free
    nats.conf, nats.pid, nats.log, guardian.log, jetstream/

Order of taking locks: start.lock, then users.lock. Only the standard library is imported here: the guardian
is to start fast and stay small.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STOP_S = 10.0  # between SIGTERM and SIGKILL


class FileLock:
    """An flock on a file, free again when its holder ends, however that happens. Not inherited by children."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def try_lock(self, *, shared: bool = False) -> bool:
        """Takes the lock if nobody stands in the way; turns a lock that is already held into the other kind."""
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        """Gives the lock back, also for children that were forked meanwhile."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives the lock back for good; a second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def write(self, number: int) -> None:
        """Leaves a number in the file for those who find it locked."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % number, 0)

    def touch(self) -> None:
        """Sets the file's time: the guardian sees from it that somebody came by."""
        os.utime(self._fd)

    def touched_ns(self) -> int:
        """When somebody came by last."""
        return os.fstat(self._fd).st_mtime_ns

    def is_current(self) -> bool:
        """Whether the locked file still is the one at its path."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except FileNotFoundError:
            return False


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """The files by their purpose; `path` is absolute and resolved."""

    path: Path
    users_lock: Path
    start_lock: Path
    guardian_lock: Path
    record: Path
    port: Path
    config: Path
    pid: Path
    server_log: Path
    guardian_log: Path

    @classmethod
    def at(cls, path: Path) -> StoreDirectory:
        """Names the files; touches nothing."""
        return cls(
            path=path,
            users_lock=path / "users.lock",
            start_lock=path / "start.lock",
            guardian_lock=path / "guardian.lock",
            record=path / "broker.json",
            port=path / "port",
            config=path / "nats.conf",
            pid=path / "nats.pid",
            server_log=path / "nats.log",
            guardian_log=path / "guardian.log",
        )

    @property
    def server_name(self) -> str:
        """The name by which the server of this directory is told from others."""
        return "bus-" + hashlib.blake2s(os.fsencode(self.path), digest_size=6).hexdigest()

    def read_record(self) -> dict[str, Any] | None:
        """What broker.json says, or None when there is none that can be read."""
        try:
            record = json.loads(self.record.read_bytes())
        except (OSError, ValueError):
            return None
        good = isinstance(record, dict) and ("error" in record or isinstance(record.get("port"), int))
        return record if good else None

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Replaces broker.json in one step."""
        replace_text(self.record, json.dumps(record, indent=2) + "\n")

    def read_int(self, path: Path) -> int:
        """The number in a small file; 0 when there is none."""
        try:
            return int(path.read_text("ascii"))
        except (OSError, ValueError):
            return 0

    def last_log_lines(self, since: float, *, count: int = 4) -> str:
        """The end of the logs that were written after `since` (seconds of the epoch), for an error message."""
        lines: list[str] = []
        for log in (self.guardian_log, self.server_log):
            if log.exists() and log.stat().st_mtime >= since:
                lines += log.read_bytes()[-4000:].decode("utf-8", "replace").splitlines()[-count:]
        return " | ".join(line.strip() for line in lines if line.strip())

    def stop_leftover(self) -> None:
        """Stops a server that a killed guardian left behind; a foreign process with its number is not touched."""
        pid = self.read_int(self.pid)
        for sign in (signal.SIGTERM, signal.SIGKILL):
            end = time.monotonic() + STOP_S
            if runs(pid, "-c", str(self.config)):
                send(pid, sign)
            while runs(pid, "-c", str(self.config)) and time.monotonic() < end:
                time.sleep(0.02)
        if runs(pid, "-c", str(self.config)):
            raise TimeoutError(f"nats-server, process {pid}, does not end")


def replace_text(path: Path, text: str) -> None:
    """Writes a whole file in one step: a reader sees the old text or the new one."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)


def send(pid: int, sign: signal.Signals) -> None:
    """Signals a process, if it still is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, sign)


def runs(pid: int, *arguments: str) -> bool:
    """Whether the command line of a living process ends with these arguments."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        if Path("/proc/self/cmdline").exists():
            return False
        shown = subprocess.run(["ps", "-ww", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
        return shown.stdout.strip().endswith(os.fsencode(" ".join(arguments)))
    return line.endswith(b"".join(b"\0" + os.fsencode(argument) for argument in arguments) + b"\0")


def greeting(port: int, *, timeout_s: float = 1.0) -> dict[str, Any]:
    """What a NATS server on this port says first about itself; {} when none answers in time."""
    received = b""
    end = time.monotonic() + timeout_s
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            while b"\r\n" not in received and time.monotonic() < end:
                chunk = connection.recv(65536)
                if not chunk:
                    break
                received += chunk
        verb, _, rest = received.partition(b"\r\n")[0].partition(b" ")
        info = json.loads(rest) if verb == b"INFO" else {}
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}
