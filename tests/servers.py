"""A real nats-server of a test's own: own port, own store, and a handle to hurt it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from pathlib import Path


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def binary() -> str:
    """The nats-server that the tests use; a missing one is a failure, never a skip."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    assert found, "no nats-server: make setup installs it"
    return found


class NatsServer:
    """One server process."""

    def __init__(self, folder: Path, *, options: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config = folder / "server.conf"
        self._config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{folder / "store"}" }}\n'
            "feature_flags { js_ack_fc_v2: false }\n" + options
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it accepts connections."""
        log = (self.folder / "server.log").open("ab")
        self._process = subprocess.Popen([binary(), "-c", str(self._config)], stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.5).close()
                return
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"nats-server did not start: {(self.folder / 'server.log').read_text()[-2000:]}")

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; SIGSTOP and SIGCONT pause it."""
        os.kill(self.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it by a signal and waits for it; does nothing when it has ended."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(number)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
