"""Labels: where content comes from (SEC-4)."""

import pytest

from bus import Envelope, Rejected
from bus.trust import labels


def envelope(*found: str) -> Envelope:
    return Envelope(sender="a", to="b", type="note", extensions={"labels": list(found)} if found else {})


def test_labels_are_joined_and_never_lost() -> None:
    assert labels.labels_of(labels.joined(envelope("external"), ["draft", "external"])) == ["external", "draft"]
    assert labels.joined(envelope(), []).extensions == {}


def test_external_text_does_not_reach_what_is_sensitive() -> None:
    for found, sensitive in ((["external"], False), ([], True), (["draft"], True)):
        labels.check(envelope(*found), capability="mail.send", is_sensitive=sensitive)
    with pytest.raises(Rejected) as refused:
        labels.check(envelope("draft", "external"), capability="mail.send", is_sensitive=True)
    assert refused.value.info.code == "auth.untrusted_input"
