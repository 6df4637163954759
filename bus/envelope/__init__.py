"""What a message is: the envelope, its ids, versions, extensions and bytes."""

from bus.envelope.codec import MAX_BYTES, MAX_DEPTH
from bus.envelope.grammar import is_agent_name, is_type_name
from bus.envelope.ids import dedupe_header, derive_message_id, new_message_id, new_trace_id
from bus.envelope.model import Envelope
from bus.envelope.timestamps import instant, is_timestamp
from bus.envelope.versions import CURRENT, SUPPORTED

__all__ = [
    "CURRENT",
    "MAX_BYTES",
    "MAX_DEPTH",
    "SUPPORTED",
    "Envelope",
    "dedupe_header",
    "derive_message_id",
    "instant",
    "is_agent_name",
    "is_timestamp",
    "is_type_name",
    "new_message_id",
    "new_trace_id",
]
