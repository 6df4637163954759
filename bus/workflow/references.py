"""References: a payload too large to travel inline is kept as an artifact, and comes back before the handler runs."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time

import orjson

from bus.envelope import Envelope, codec
from bus.errors import BrokerError, ToolError, error
from bus.workflow.artifacts import Artifacts

DATA_REF = "data_ref"
MAX_PAYLOAD_BYTES = 64 << 20
RETRY_S = 0.2

_REFERENCE = re.compile(r"sha256:([0-9a-f]{64});size_bytes=([0-9]{1,12})(?:;.*)?")


async def refer(envelope: Envelope, artifacts: Artifacts, *, over_bytes: int, timeout_s: float) -> Envelope:
    """The envelope with its payload by reference, when the payload alone is over the limit; else as it is.

    The artifact is the payload as JSON. Raises `protocol.too_large` over 64 MiB, and `broker.unavailable` when it
    could not be stored within `timeout_s`.
    """
    content = orjson.dumps(envelope.payload)
    if len(content) <= over_bytes:
        return envelope
    _check_size(len(content))
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            async with asyncio.timeout(max(0.05, deadline - time.monotonic())):
                await artifacts.put(content, name="payload", media_type="application/json")
            break
        except TimeoutError:
            raise error(
                "broker.unavailable", f"the payload of {envelope.message_id} was not stored within {timeout_s:.0f} s"
            ) from None
        except BrokerError as problem:
            if not problem.info.retryable or time.monotonic() + RETRY_S >= deadline:
                raise
        await asyncio.sleep(RETRY_S * random.uniform(0.5, 1.0))
    reference = f"sha256:{hashlib.sha256(content).hexdigest()};size_bytes={len(content)}"
    return envelope.replace(payload={}, extensions={**envelope.extensions, DATA_REF: reference})


async def restore(envelope: Envelope, artifacts: Artifacts) -> Envelope:
    """The envelope as it was before `refer`.

    Raises `protocol.malformed` for a reference of another form, for one without an artifact (never stored, or
    expired), for content that is damaged, of another size, or not JSON; `protocol.too_large` over 64 MiB; and
    `broker.unavailable` when the broker cannot answer now.
    """
    reference = envelope.extensions[DATA_REF]
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise _unusable(reference, "is not sha256:<64 hex digits>;size_bytes=<number>")
    sha256, size_bytes = match[1], int(match[2])
    _check_size(size_bytes)
    try:
        content = await artifacts.get(sha256, max_bytes=MAX_PAYLOAD_BYTES)
    except ToolError:
        raise _unusable(reference, "names nothing that is stored; it never was, or has expired") from None
    except BrokerError as problem:
        if problem.info.retryable:
            raise
        raise _unusable(reference, "names damaged content") from problem
    if len(content) != size_bytes:
        raise _unusable(reference, f"names content of {len(content)} bytes")
    fields = codec.parse(b'{"payload":%b}' % content, max_bytes=MAX_PAYLOAD_BYTES + 64)
    extensions = {name: value for name, value in envelope.extensions.items() if name != DATA_REF}
    return envelope.replace(payload=fields["payload"], extensions=extensions)


def _check_size(size_bytes: int) -> None:
    if size_bytes > MAX_PAYLOAD_BYTES:
        raise error(
            "protocol.too_large",
            f"the payload has {size_bytes} bytes, the limit is {MAX_PAYLOAD_BYTES}; send several artifacts",
            size=size_bytes,
            limit=MAX_PAYLOAD_BYTES,
        )


def _unusable(reference: str, problem: str) -> Exception:
    return error(
        "protocol.malformed",
        f"extensions.data_ref {reference[:100]!r} {problem}; send the message again with its payload",
        path="extensions.data_ref",
    )
