"""Sampling: whether a trace is recorded, decided once at its root and before anything is built for a span."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping

from bus.config import SettingsError


def ratio(environment: Mapping[str, str] = os.environ) -> float:
    """The share of roots to record, from the standard `OTEL_TRACES_SAMPLER` and `OTEL_TRACES_SAMPLER_ARG`.

    Without them everything is recorded. Raises SettingsError, naming the variable, for values that they cannot have.
    """
    sampler = environment.get("OTEL_TRACES_SAMPLER", "").removeprefix("parentbased_") or "always_on"
    if sampler == "always_on":
        return 1.0
    if sampler == "always_off":
        return 0.0
    if sampler != "traceidratio":
        raise SettingsError(f"OTEL_TRACES_SAMPLER={sampler!r} is not always_on, always_off or traceidratio")
    text = environment.get("OTEL_TRACES_SAMPLER_ARG", "1")
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SettingsError(f"OTEL_TRACES_SAMPLER_ARG={text!r} is not a number from 0 to 1")
    return share


def is_sampled(key: str, share: float) -> bool:
    """The decision for a workflow (or a trace outside one): the same in every process, for all of its traces."""
    return share >= 1.0 or (share > 0.0 and zlib.crc32(key.encode("utf-8", "surrogatepass")) < share * 2**32)
