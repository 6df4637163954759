"""The one place that turns NATS and socket exceptions into ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import nats.errors
import nats.js.errors

from bus.errors import BusError, error


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turns every NATS or socket exception in its body into a BusError that says what was tried."""
    try:
        yield
    except BusError:
        raise
    except nats.errors.MaxPayloadError as problem:
        raise error("protocol.too_large", f"{what}: {problem}") from problem
    except nats.js.errors.APIError as problem:
        raise error(
            "broker.unavailable",
            f"{what}: {problem.description or problem}",
            retryable=(problem.code or 503) >= 500,
            server_code=problem.code,
            server_error=problem.err_code,
        ) from problem
    except (nats.errors.Error, OSError, TimeoutError) as problem:
        raise error("broker.unavailable", f"{what}: {problem or type(problem).__name__}") from problem
