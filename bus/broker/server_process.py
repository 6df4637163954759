"""The nats-server process that a guardian looks after."""

from __future__ import annotations

import ctypes
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from bus.broker.store_directory import STOP_S, StoreDirectory, greeting, replace_text

MIN_VERSION = (2, 11)  # the first server with a time to live for each message
READY_S = 60.0  # a large store takes its time to recover

CONFIG = """\
# Written by envelope-bus at every start. Paths are relative to this directory.
listen: "127.0.0.1:{port}"
server_name: "{name}"
max_payload: 1048576
jetstream {{ store_dir: "." }}
pid_file: "nats.pid"
log_file: "nats.log"
logfile_size_limit: 10485760
logfile_max_num: 2
"""
# The second version of acknowledgement subjects is not understood by nats-py.
FLAGS = "feature_flags { js_ack_fc_v2: false }\n"


class Wakeups:
    """Sleeping that a signal ends: SIGCHLD (the server died), SIGTERM and SIGINT (stop)."""

    def __init__(self) -> None:
        self.stop_asked = False
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for sign in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(sign, lambda *_: None)
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, self._ask_to_stop)

    def _ask_to_stop(self, *_: object) -> None:
        self.stop_asked = True

    def wait(self, timeout_s: float) -> None:
        """Returns after the time, or at a signal."""
        if select.select([self._reader], [], [], timeout_s)[0]:
            os.read(self._reader, 4096)

    def pause(self, seconds: float) -> None:
        """Returns after the time, or when a stop is asked for."""
        end = time.monotonic() + seconds
        while not self.stop_asked and (left := end - time.monotonic()) > 0:
            self.wait(left)


class Server:
    """The nats-server of one directory: one process at a time."""

    def __init__(self, files: StoreDirectory, binary: str) -> None:
        self._files = files
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self.port = 0
        self.was_ready = False

    def configure(self, port: int) -> None:
        """Writes the configuration for this port, with the flags that this server knows."""
        self.port = port
        settings = CONFIG.format(port=port, name=self._files.server_name)
        replace_text(self._files.config, settings + FLAGS)
        test = [self._binary, "-c", str(self._files.config), "-t"]
        done = subprocess.run(test, capture_output=True, cwd=self._files.path, timeout=STOP_S, check=False)
        if done.returncode != 0:
            replace_text(self._files.config, settings)

    def start(self, wakeups: Wakeups) -> str:
        """Starts it and waits until it answers; "" then, else why it does not (it is stopped in that case)."""
        self._started_at = time.monotonic()
        self.was_ready = False
        self._process = subprocess.Popen(
            [self._binary, "-c", str(self._files.config)],
            cwd=self._files.path,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=sys.stderr,
            preexec_fn=_die_with_parent(),
        )
        problem = self._wait_ready(self._process, wakeups)
        self.was_ready = not problem
        if problem:
            self.stop()
        return problem

    def _wait_ready(self, process: subprocess.Popen[bytes], wakeups: Wakeups) -> str:
        while not wakeups.stop_asked:
            if process.poll() is not None:
                return f"nats-server ended at its start with code {process.returncode}"
            if self.lived_s() > READY_S:
                return f"nats-server did not answer within {READY_S:.0f} s"
            info = greeting(self.port)
            if info.get("server_name") == self._files.server_name:
                return _too_old(str(info.get("version", "")))
            wakeups.wait(0.01)
        return "asked to stop while it started"

    @property
    def pid(self) -> int:
        """Its process id; 0 before it was started."""
        return self._process.pid if self._process else 0

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs."""
        return self._process.poll() if self._process else None

    def lived_s(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self._started_at

    def stop(self) -> None:
        """Asks it to end, and makes it end after a while; without a running process it does nothing."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _too_old(version: str) -> str:
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and (int(match[1]), int(match[2])) < MIN_VERSION:
        return f"nats-server {version} is too old: {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer is needed"
    return ""


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux the kernel sends the server SIGTERM when its guardian is killed; elsewhere nothing is done."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return None
    guardian = os.getpid()

    def before_exec() -> None:
        prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != guardian:
            os._exit(1)

    return before_exec
