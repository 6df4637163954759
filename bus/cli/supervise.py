"""Several worker processes, and restarting them when code changes or one dies."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

log = logging.getLogger("bus.cli")

POLL_S = 0.3
MIN_LIFE_S = 1.0
MAX_PAUSE_S = 10.0
STOP_MARGIN_S = 10.0
SKIPPED = {".git", ".venv", "node_modules", "__pycache__", "build", "dist"}


def run(workers: list[list[str]], *, reload: bool, grace_s: float) -> int:
    """Keeps one process `bus ARGUMENTS` alive for each of the `workers`, until SIGTERM or SIGINT.

    Returns the exit code. A worker that dies is started again, after a growing pause when it lived less than a
    second. With `reload` all are restarted when a Python or TOML file below the current folder changes. Stopping
    passes the signal on and waits for the workers' own drain; further signals are passed on too, the second one hurries
    them.
    """
    stopping: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        stopping.append(number)
        if len(stopping) > 1:
            _signal(slots)

    slots = [_Slot(arguments) for arguments in workers]
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    seen = _snapshot() if reload else set()
    try:
        while not stopping:
            for slot in slots:
                slot.keep_alive()
            time.sleep(POLL_S)
            if reload and (now := _snapshot()) != seen:
                seen = now
                log.info("code changed; restarting")
                _stop(slots, grace_s)
    finally:
        _stop(slots, grace_s)
    return 0


class _Slot:
    """One worker and its restarts."""

    def __init__(self, arguments: list[str]) -> None:
        self._command = [sys.executable, "-m", "bus", *arguments]
        self._started_at = 0.0
        self._start_after = 0.0
        self._pause_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    def keep_alive(self) -> None:
        now = time.monotonic()
        if self.process is not None and (code := self.process.poll()) is not None:
            short = now - self._started_at < MIN_LIFE_S
            self._pause_s = min(MAX_PAUSE_S, max(0.5, self._pause_s * 2)) if short or code else 0.0
            self._start_after = now + self._pause_s
            log.warning("worker %d ended with %d; starting again in %.1f s", self.process.pid, code, self._pause_s)
            self.process = None
        if self.process is None and now >= self._start_after:
            # Its own process group: a Ctrl-C in the terminal reaches only us, and we pass it on once.
            self.process = subprocess.Popen(self._command, process_group=0)
            self._started_at = now
        elif self.process is not None and now - self._started_at > MAX_PAUSE_S:
            self._pause_s = 0.0


def _stop(slots: list[_Slot], grace_s: float) -> None:
    running = [slot.process for slot in slots if slot.process is not None]
    _signal(slots)
    deadline = time.monotonic() + grace_s + STOP_MARGIN_S
    for process in running:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("worker %d did not stop in time and is killed", process.pid)
            process.kill()
            process.wait()
    for slot in slots:
        slot.process = None


def _signal(slots: list[_Slot]) -> None:
    for slot in slots:
        if slot.process is not None and slot.process.poll() is None:
            slot.process.send_signal(signal.SIGTERM)


def _snapshot() -> set[tuple[Path, float]]:
    """Every Python and TOML file below the current folder, with the time of its last change."""
    found = set()
    for path in _sources(Path.cwd()):
        # An editor's temporary file may be gone by now.
        with contextlib.suppress(OSError):
            found.add((path, path.stat().st_mtime))
    return found


def _sources(folder: Path) -> Iterator[Path]:
    entries: list[Path] = []
    with contextlib.suppress(OSError):
        entries = list(folder.iterdir())
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink() and entry.name not in SKIPPED:
            yield from _sources(entry)
        elif entry.suffix in (".py", ".toml") and entry.is_file():
            yield entry
