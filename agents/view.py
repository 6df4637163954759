"""What a person sees while a brief is made: live bars on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agents.progress import PHASES, PhaseState, Progress
from bus import Envelope

BAR_WIDTH = 24
REFRESH_PER_S = 8
KEPT_LINES = 4


class View:
    """Shows the progress of one brief on `console`; use as a context manager, call `see` with each message."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._progress = Progress()
        self._lines: list[str] = []
        self._live: Live | None = None
        if console.is_terminal and not quiet:
            self._live = Live(console=console, refresh_per_second=REFRESH_PER_S, get_renderable=self._drawn)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._lines = []
            self._live.stop()

    def see(self, envelope: Envelope) -> None:
        """Counts a message and shows it."""
        line = self._progress.see(envelope)
        if line is None or self._quiet:
            return
        if self._live is None:
            print_plain(self._console, line)
        else:
            self._lines = [*self._lines, line][-KEPT_LINES:]

    def _drawn(self) -> Table:
        table = Table.grid(padding=(0, 2))
        phases = self._progress.phases()
        for name in PHASES:
            table.add_row(name, _bar(phases[name]), _count(phases[name]))
        frame = Table.grid()
        frame.add_row(table)
        for line in self._lines:
            frame.add_row(Text(line, style="dim", no_wrap=True, overflow="ellipsis"))
        return frame


def print_plain(console: Console, line: str) -> None:
    """One line exactly as it is: no markup, no colours, no wrapping."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _bar(state: PhaseState) -> Text:
    filled = BAR_WIDTH * state.done // state.total if state.total else 0
    style = "green" if state.is_done else "cyan"
    return Text.assemble(("━" * filled, style), ("─" * (BAR_WIDTH - filled), "dim"))


def _count(state: PhaseState) -> str:
    return f"{state.done} of {state.total}" if state.total else "-"
