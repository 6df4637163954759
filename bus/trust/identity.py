"""Identity: the sender that an envelope names is the one that the subject names.

The broker's permissions can forbid a connection to publish under a foreign name only when the name is a
token of the subject, so the subject is the authority (wire specification, section Subjects).
"""

from __future__ import annotations

from bus.broker.subjects import WorkSubject
from bus.envelope import Envelope
from bus.errors import error


def verify(envelope: Envelope, subject: WorkSubject) -> None:
    """Compares an envelope with the subject it arrived on.

    Raises Rejected: `auth.unverified_sender` for another `from`, `protocol.malformed` for another `to` or
    `type`, because a message filed under a wrong address was built wrong.
    """
    if envelope.address == (subject.sender, subject.to, subject.type):
        return
    if envelope.sender != subject.sender:
        raise error(
            "auth.unverified_sender",
            f"from is {envelope.sender!r}, but it was published as {subject.sender!r}; publish under your own name",
            envelope=envelope.sender,
            subject=subject.sender,
        )
    for field, here, there in (("to", envelope.to, subject.to), ("type", envelope.type, subject.type)):
        if here != there:
            raise error(
                "protocol.malformed",
                f"{field} is {here!r}, but the subject says {there!r}; publish to the subject of the envelope",
                path=field,
            )
