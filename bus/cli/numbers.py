"""Integers that JSON readers cannot keep exact."""

from __future__ import annotations

import contextlib
import json
import re

from bus.cli.usage import UsageError

MIN, MAX = -(2**63), 2**64 - 1
SHOWN_DIGITS = 24

_LONG_RUN = re.compile(rb"[0-9]{19}")


def refuse_large_integers(data: bytes, where: str) -> None:
    """Raises UsageError for JSON with an integer beyond 64 bits, which readers would silently make a float.

    Says nothing of bytes that are no JSON.
    """
    if _LONG_RUN.search(data) is None:
        return

    def check(digits: str) -> int:
        # Its digits are counted first: Python refuses to convert thousands of them.
        if len(digits) > SHOWN_DIGITS or not MIN <= int(digits) <= MAX:
            shown = digits if len(digits) <= SHOWN_DIGITS else f"{digits[:SHOWN_DIGITS]}…"
            raise UsageError(f"{where} has the integer {shown}, which is beyond 64 bits; write it as a string")
        return 0

    # What is nested too deeply for this reader is refused by the envelope's own limit.
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(data, parse_int=check, parse_float=lambda _: 0.0)
