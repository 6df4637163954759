"""What a dead letter tells can be told by nobody but us (DEL-4)."""

from hypothesis import given
from hypothesis import strategies as st

from bus.broker.pull import Delivery
from bus.delivery.letter import DeadLetter, Grouping, attempts_before, kept_headers, own_headers, story_of
from bus.errors import error

OURS = (
    "Bus-Attempts",
    "Bus-Dead-Object",
    "Bus-Dead-Headers",
    "Bus-Dead-Exec-Ms",
    "Bus-Origin-Subject",
    "Bus-Edited-Original",
    "Bus-Failed-At",
)
NAMES = st.sampled_from(["Nats-Msg-Id", "Nats-TTL", *OURS, "traceparent", "X-Note", "Bus-Color"])
SUBJECT = "bus.v1.dead.worker.tool-execution_failed"
FAILURE = error("tool.execution_failed", "no").info


def letter(headers: dict[str, str], data: bytes = b"{}") -> DeadLetter:
    delivery = Delivery(SUBJECT, data, headers, "", 7, 0, 0, 0)
    return DeadLetter.of(delivery, headers, data)


@given(st.dictionaries(NAMES, st.text(max_size=8)))
def test_a_message_is_sent_again_with_its_own_headers_only(headers: dict[str, str]) -> None:
    delivery = Delivery("bus.v1.work.worker.low.a.order", b"{}", headers, "", 3, 2, 0, 0)
    buried = letter(kept_headers(headers) | story_of(delivery, FAILURE))
    own = {name: value for name, value in headers.items() if name in ("traceparent", "X-Note", "Bus-Color")}
    assert own_headers(buried) == own
    assert (buried.origin_subject, buried.origin_seq, buried.edited_from) == (delivery.subject, 3, None)
    assert buried.attempts == attempts_before(headers) + 2
    assert not {"Bus-Dead-Object", "Bus-Dead-Headers", "Bus-Edited-Original"} & set(buried.headers)


@given(st.dictionaries(NAMES | st.just("Bus-Dead-Details") | st.just("Bus-Origin-Seq"), st.text(max_size=30)))
def test_whatever_stands_in_the_stream_is_a_letter(headers: dict[str, str]) -> None:
    found = letter(headers, b"\xff")
    assert found.attempts >= 0
    assert (found.id, found.agent, found.code) == (7, "worker", "tool.execution_failed")


def test_groups_are_counted_and_know_the_newest() -> None:
    grouping = Grouping()
    for one in (letter({}), letter({"Bus-Dead-Code": "tool.timeout"}), letter({})):
        grouping.add(one)
    assert [(one.code, one.count, one.newest_id) for one in grouping.groups()] == [
        ("tool.execution_failed", 2, 7),
        ("tool.timeout", 1, 7),
    ]
