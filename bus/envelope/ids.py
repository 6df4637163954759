"""Ids: new ones, ones that follow from others, and how an id of any shape stands in a header.

Ids of other teams are any string of 1 to 128 characters (ENV-2); these are the ones that we write.
"""

import os
import re
from hashlib import blake2b
from typing import Final
from urllib.parse import quote

import uuid_utils

_HEADER_SAFE: Final = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_is_header_safe: Final = re.compile("[!-$&-~]+").fullmatch
_VARIANT: Final = "89ab"


def new_message_id() -> str:
    """Return a UUIDv7 (RFC 9562): sorts by the time of its making; random bits from the operating system."""
    return str(uuid_utils.uuid7())


def new_trace_id() -> str:
    """Return a W3C trace id: 32 lower-case hex digits."""
    return os.urandom(16).hex()


def trace_id_like(message_id: str) -> str:
    """Return the digits of an id of `new_message_id` as a W3C trace id: as unique, for a sixth of the price."""
    return message_id.replace("-", "")


def derive_message_id(*parts: str) -> str:
    """Return the id that belongs to these parts, always the same one (DEL-7); shaped as a UUIDv8.

    The boundaries between parts count: ("ab", "c") and ("a", "bc") give different ids. 122 bits of BLAKE2b.
    ValueError without any part.
    """
    if not parts:
        raise ValueError("derive_message_id needs at least one part; no part names nothing")
    raw = [part.encode("utf-8", "surrogatepass") for part in parts]
    digits = blake2b(b"".join([b"%d:%b" % (len(part), part) for part in raw]), digest_size=16).hexdigest()
    variant = _VARIANT[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def dedupe_header(sender: str, message_id: str) -> str:
    """Return the `Nats-Msg-Id` of a message: `<from>:<message_id>`.

    Characters of the id outside `!` to `~`, and `%`, are percent-encoded as UTF-8: a header is one line
    without outer spaces, and two different ids must never become one header.
    """
    if _is_header_safe(message_id):
        return f"{sender}:{message_id}"
    return f"{sender}:{quote(message_id, safe=_HEADER_SAFE, errors='surrogatepass')}"
