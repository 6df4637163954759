"""A nats-server of a test's own: own port, own store, and a handle to hurt it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from bus.broker.embedded import find_server

START_S = 20.0
STOP_S = 10.0


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class NatsServer:
    """One server process on the loopback interface. `with NatsServer(folder) as server` starts and stops it.

    Its store is in `folder` and outlives `stop`, `kill` and `restart`; the port stays the same. `options` is added to
    its configuration file, `binary` names the program (default: found like the embedded broker's). The methods
    block; in a coroutine call them by `asyncio.to_thread`.
    """

    def __init__(self, folder: Path, *, options: str = "", binary: str = "") -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._binary = str(find_server(binary))
        self._config = folder / "server.conf"
        self._config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{folder / "store"}" }}\n'
            "feature_flags { js_ack_fc_v2: false }\n" + options
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id of the running server. Raises RuntimeError when it does not run."""
        if self._process is None:
            raise RuntimeError("the nats-server does not run; start() it first")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has logged since it was first started."""
        return (self.folder / "server.log").read_text("utf-8", "replace")

    def start(self) -> None:
        """Starts it and waits until it accepts connections. Raises RuntimeError with the end of its log."""
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen([self._binary, "-c", str(self._config)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.5).close()
                return
            except OSError:
                time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"nats-server did not start on port {self.port}: {self.log[-2000:]}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it by a signal, paused or not, and waits for it; does nothing when it has ended."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Ends it with SIGKILL: it cannot write anything more."""
        self.stop(signal.SIGKILL)

    def restart(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it by a signal and starts it again, on the same port and store."""
        self.stop(number)
        self.start()

    def pause(self) -> None:
        """Stops it in its tracks (SIGSTOP): connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused server go on."""
        os.kill(self.pid, signal.SIGCONT)
