"""Labels: where content comes from, passed on to everything that is made of it (SEC-4).

A label such as `external` stands in the extension `labels`. What handles a message passes its labels on, with those of
what it has read meanwhile; nothing takes one away.
"""

from __future__ import annotations

from collections.abc import Iterable

from bus.envelope import Envelope
from bus.errors import error

EXTERNAL = "external"


def labels_of(envelope: Envelope) -> list[str]:
    """The labels that an envelope came with."""
    return list(envelope.extensions.get("labels", ()))


def joined(envelope: Envelope, labels: Iterable[str]) -> Envelope:
    """The envelope as the cause of what is sent and called: with these labels too."""
    together = list(dict.fromkeys([*labels_of(envelope), *labels]))
    return envelope.replace(extensions={**envelope.extensions, "labels": together}) if together else envelope


def check(envelope: Envelope, *, capability: str, is_sensitive: bool) -> None:
    """Refuses a call of a sensitive capability that external text has led to.

    Raises Rejected `auth.untrusted_input`.
    """
    if is_sensitive and EXTERNAL in envelope.extensions.get("labels", ()):
        raise error(
            "auth.untrusted_input",
            f"{capability} is sensitive, and text from outside has led to this call; a person must decide",
            labels=labels_of(envelope),
            started=False,
        )
