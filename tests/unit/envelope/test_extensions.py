"""The registered extensions (ENV-5)."""

from typing import Any

import pytest

from bus.envelope import extensions
from bus.errors import Rejected

NAMES = [
    "causation_id",
    "correlation_id",
    "reply_to",
    "expires_at",
    "deliver_at",
    "schema",
    "idempotency_key",
    "partition_key",
    "priority",
    "data_ref",
    "hops",
    "path",
    "budget",
    "branch",
    "labels",
    "on_behalf_of",
    "recorded",
    "signature",
]


def test_the_registered_names() -> None:
    """ENV-5: a name once registered stays (ENV-6)."""
    assert list(extensions.REGISTERED) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [None, 1.5j, b"", object()])
def test_a_wrong_type_is_an_error_that_names_the_extension(name: str, value: Any) -> None:
    """ENV-5."""
    with pytest.raises(Rejected) as caught:
        extensions.check({"x": 1, name: value})
    info = caught.value.info
    assert (info.code, info.details["path"]) == ("protocol.malformed", f"extensions.{name}")


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("budget", {"calls": "many"}, "extensions.budget.calls"),
        ("budget", {"calls": 1, "deadline_at": "soon"}, "extensions.budget.deadline_at"),
        ("path", ["a", "b", "c d"], "extensions.path[2]"),
        ("path", ["a", ["b"]], "extensions.path[1]"),
        ("path", {"a": 1}, "extensions.path"),
        ("path", ["a"] * 1025, "extensions.path"),
        ("on_behalf_of", "user", "extensions.on_behalf_of"),
        ("labels", ["external", ""], "extensions.labels[1]"),
    ],
)
def test_a_wrong_member_is_named(name: str, value: Any, path: str) -> None:
    """ENV-5."""
    for _ in range(2):
        with pytest.raises(Rejected) as caught:
            extensions.check({name: value})
        assert caught.value.info.details["path"] == path


def test_other_names_pass_untouched() -> None:
    """ENV-4, ENV-5."""
    extensions.check({"x_color": "teal", "Hops": "many", "": None, "extensions": {"hops": "x"}})


@pytest.mark.parametrize("value", [0, 1, 2.0, -0.0, 2**53 - 1, float(2**53 - 1)])
def test_whole_numbers_as_json_has_them(value: float) -> None:
    """ENV-5."""
    extensions.check({"hops": value, "budget": {"calls": value, "tokens": value}})


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("causation_id", "c" * 128),
        ("correlation_id", "😀" * 128),
        ("reply_to", "a" * 64),
        ("idempotency_key", "k" * 256),
        ("partition_key", "k" * 256),
        ("data_ref", "d" * 1024),
        ("signature", "s" * 8192),
        ("path", ["a"] * 1024),
        ("on_behalf_of", ["a"] * 1024),
        ("labels", ["external"] * 64),
        ("labels", ["l" * 64]),
    ],
)
def test_both_sides_of_every_length(name: str, longest: Any) -> None:
    """ENV-5."""
    extensions.check({name: longest})
    longer = [longest[0] * 65] if longest == ["l" * 64] else longest + longest[:1]
    with pytest.raises(Rejected):
        extensions.check({name: longer})


@pytest.mark.parametrize("value", [-1, 1.5, 2**53, 1e300, "1", [1]])
def test_other_numbers_are_refused(value: Any) -> None:
    """ENV-5."""
    with pytest.raises(Rejected):
        extensions.check({"hops": value})
