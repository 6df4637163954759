"""What was completed, in about 21 bytes for each id: a set would take 113.

Digests lie in 65,536 rows by their first two bytes, each row one byte string of what follows: a search in a few
hundred bytes costs no more than one in a set, and nothing here is work for the garbage collector.
"""

from __future__ import annotations

ROWS = 1 << 16
PREFIX_BYTES = 2


class _Rows:
    """A set of digests of one length. `rows` is empty as long as nothing is in it."""

    __slots__ = ("count", "rows")

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.count = 0

    def add(self, number: int, rest: bytes) -> None:
        if not self.rows:
            self.rows = [b""] * ROWS
        row = self.rows[number]
        if rest not in row or not _is_one(row, rest):
            self.rows[number] = row + rest
            self.count += 1


def _is_one(row: bytes, rest: bytes) -> bool:
    """Whether what is found in a row is one of its digests; it may begin in the middle of one."""
    at = row.find(rest)
    while at > 0 and at % len(rest):
        at = row.find(rest, at + 1)
    return at >= 0


class Remembered:
    """Digests of 128 bits, bounded in time and number: two sets, the older one dropped when the newer is full."""

    __slots__ = ("_max_ids", "_newer", "_older", "_started_at", "_window_s")

    def __init__(self, *, window_s: float, max_ids: int) -> None:
        self._window_s = window_s
        self._max_ids = max_ids
        self._newer = _Rows()
        self._older = _Rows()
        self._started_at = 0.0

    def __contains__(self, key: bytes) -> bool:
        number, rest = key[0] << 8 | key[1], key[PREFIX_BYTES:]
        # Nearly all that is looked up is new, and for that the search in C says so.
        for rows in (self._newer.rows, self._older.rows):
            if rows and rest in rows[number] and _is_one(rows[number], rest):
                return True
        return False

    def __len__(self) -> int:
        return self._newer.count + self._older.count

    def add(self, key: bytes, at: float) -> None:
        """Remembers `key`, completed at `at` (epoch seconds), for at least the window, within the number."""
        if not self._newer.count:
            self._started_at = at
        elif at - self._started_at > self._window_s or self._newer.count * 2 >= self._max_ids:
            self._older, self._newer, self._started_at = self._newer, _Rows(), at
        self._newer.add(key[0] << 8 | key[1], key[PREFIX_BYTES:])
