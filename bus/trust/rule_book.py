"""The rule book: the rules of a file as they are in force, taken anew when the file changes (SEC-2)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from datetime import UTC, datetime
from pathlib import Path

from bus.config import Settings, SettingsError
from bus.trust.rules import RuleSet
from bus.trust.rules_file import RulesError, read_rules

log = logging.getLogger("bus.trust")

LOOK_S = 0.25

Stamp = tuple[int, int, int]


class RuleBook:
    """What is in force. `rules` is replaced as a whole, so that a call sees the old ones or the new ones.

    A file that becomes unreadable, broken or absent changes nothing in force; `problem` then says what is wrong with
    it. Open one with `RuleBook.opened`.
    """

    def __init__(self, path: Path, rules: RuleSet, digest: str, stamp: Stamp | None) -> None:
        self.path = path
        self.rules = rules
        self.digest = digest
        self.problem = ""
        self.loaded_at = datetime.now(UTC)
        self._stamp = stamp
        self._seen = stamp

    @classmethod
    def opened(cls, settings: Settings) -> RuleBook | None:
        """The rules that the settings name; None when they name no file, and everything is allowed.

        Raises SettingsError that says what is wrong with the file and where: without its rules nothing may start.
        """
        if not settings.rules_file:
            return None
        path = Path(settings.rules_file).expanduser()
        stamp = _stamp(path)
        try:
            rules, digest = _read(path)
        except (OSError, RulesError) as problem:
            raise SettingsError(f"BUS_RULES_FILE={str(path)!r}: {_told(problem)}") from None
        if not any(rule.effect == "allow" for rule in rules.rules):
            log.warning("the rules of %s allow nothing; every call is refused", path)
        return cls(path, rules, digest, stamp)

    async def watch(self) -> None:
        """Follows the file until it is cancelled; a change is in force within a second."""
        while True:
            await asyncio.sleep(LOOK_S)
            stamp = _stamp(self.path)
            # Only what has stood still between two looks: half a file may be good TOML, with half of the denials.
            if stamp == self._seen and stamp != self._stamp:
                self._stamp = stamp
                await self._take()
            self._seen = stamp

    async def _take(self) -> None:
        try:
            # Reading a long file takes a while, and calls go on meanwhile.
            rules, digest = await asyncio.to_thread(_read, self.path)
        except (OSError, RulesError) as problem:
            self.problem = _told(problem)
            log.error("%s: %s; the rules before stay in force", self.path, self.problem)
            return
        self.problem = ""
        if digest != self.digest:
            self.rules, self.digest, self.loaded_at = rules, digest, datetime.now(UTC)
            log.warning("%s: its %d rules are in force now", self.path, len(rules.rules))


def _read(path: Path) -> tuple[RuleSet, str]:
    data = path.read_bytes()
    return read_rules(data), hashlib.sha256(data).hexdigest()


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _told(problem: OSError | RulesError) -> str:
    if isinstance(problem, OSError):
        return f"it cannot be read: {problem.strerror or problem}"
    return str(problem)
