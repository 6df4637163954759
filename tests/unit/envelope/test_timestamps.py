"""Times on the wire (ENV-1)."""

from datetime import UTC, datetime, timedelta

import jsonschema_rs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bus.envelope import instant, is_timestamp
from bus.envelope.timestamps import SCHEMA, now

schema = jsonschema_rs.Draft202012Validator(dict(SCHEMA), validate_formats=True)


def two(low: int, high: int) -> st.SearchStrategy[str]:
    """Two digits, now and then out of their range."""
    return st.integers(low, high + 2).map(lambda number: f"{number:02d}")


@st.composite
def near_timestamps(draw: st.DrawFn) -> str:
    """Texts shaped like a timestamp, about half of them valid."""
    year = draw(st.sampled_from(["0000", "0001", "1900", "2000", "2016", "2024", "2026", "9999"]))
    date = f"{year}-{draw(two(1, 12))}-{draw(two(28, 31))}"
    second = draw(two(57, 59) | st.just("60"))
    clock = f"{draw(two(21, 23))}:{draw(two(57, 59))}:{second}"
    fraction = draw(st.sampled_from(["", "", ".5", ".123456789", "." + "1" * 32, "." + "1" * 33, ".", ",5", ".٣"]))
    zone = draw(
        st.sampled_from(["Z", "z", "", "+00:00", "-00:00", "+01", "+0100", "+24:00", "+01:60", "+01:00:00"])
        | st.tuples(st.sampled_from("+-"), two(0, 23), two(0, 59)).map(lambda it: f"{it[0]}{it[1]}:{it[2]}")
    )
    return date + draw(st.sampled_from(["T", "T", "T", "t", " ", ""])) + clock + fraction + zone


@given(near_timestamps() | st.text(max_size=30))
@example("2016-12-31T23:59:60Z")
@example("2017-01-01T05:29:60+05:30")
@example("2016-12-31T18:59:60-05:00")
@example("2016-12-31T23:59:60+00:01")
@example("2026-01-31T09:30:00Z\n")
@example("2026-W05-6T09:30:00Z")
@example("2026-01-31T24:00:00Z")
@example("0000-02-29T00:00:00Z")
def test_the_verdict_is_that_of_json_schema(text: str) -> None:
    """ENV-1: RFC 3339 with a zone; the instant of every valid one can be read."""
    assert is_timestamp(text) == schema.is_valid(text)
    if is_timestamp(text):
        assert instant(text).utcoffset() == timedelta(0)


@pytest.mark.parametrize("value", [None, 1769851800, 1.5, True, [], {}, b"2026-01-31T09:30:00Z"])
def test_only_a_string_is_a_timestamp(value: object) -> None:
    """ENV-1."""
    assert not is_timestamp(value)


@given(st.datetimes(timezones=st.just(UTC)), st.integers(-1439, 1439))
def test_an_instant_is_the_moment_that_was_written(moment: datetime, offset_minutes: int) -> None:
    """ENV-1: in any zone."""
    assert instant(moment.isoformat()) == moment
    sign, minutes = "-" if offset_minutes < 0 else "+", abs(offset_minutes)
    text = f"{moment.replace(tzinfo=None).isoformat()}{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    expected = (moment.replace(tzinfo=None) - datetime.min) - timedelta(minutes=offset_minutes)
    if timedelta(0) <= expected <= datetime.max - datetime.min:
        assert instant(text) - datetime.min.replace(tzinfo=UTC) == expected
    else:
        assert instant(text) in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2016-12-31T23:59:60Z", datetime(2017, 1, 1, tzinfo=UTC)),
        ("2016-12-31t23:59:60.5z", datetime(2017, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-01-31T09:30:00.1234567Z", datetime(2026, 1, 31, 9, 30, 0, 123_456, tzinfo=UTC)),
        ("0000-06-01T00:00:00Z", datetime.min.replace(tzinfo=UTC)),
        ("0001-01-01T00:00:00+01:00", datetime.min.replace(tzinfo=UTC)),
        ("9999-12-31T23:59:59-01:00", datetime.max.replace(tzinfo=UTC)),
        ("9999-12-31T23:59:60Z", datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_an_instant_at_the_edges(text: str, moment: datetime) -> None:
    """ENV-1: no valid timestamp makes a reader fail."""
    assert is_timestamp(text)
    assert instant(text) == moment


def test_now_is_this_moment_in_utc() -> None:
    """ENV-1."""
    before = datetime.now(UTC)
    text = now()
    assert is_timestamp(text)
    assert len(text) == len("2026-01-31T09:30:00.123456Z")
    # The writer cuts to the microsecond from a float, which may be one off.
    assert before - timedelta(milliseconds=1) <= instant(text) <= datetime.now(UTC) + timedelta(milliseconds=1)
