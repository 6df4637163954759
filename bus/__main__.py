"""The command `bus`, which `python -m bus` is too: imports the rest only when Ctrl-C is in good hands."""

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130


def main() -> None:
    """Runs the command line; see `bus.cli.main.main`."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # While modules are imported nothing is begun that would have to end in order, and a KeyboardInterrupt
        # would come out of the middle of one, as a traceback.
        signal.signal(signal.SIGINT, _leave)
    from bus.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
