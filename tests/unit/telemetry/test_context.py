"""Trace context headers (OBS-2)."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.telemetry.context import TraceContext, w3c_trace_id

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_round_trip() -> None:
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1", "baggage": "k=v"}
    context = TraceContext.from_headers(headers)
    assert context == TraceContext(TRACE, SPAN, "01", "a=1", "k=v")
    assert context.to_headers() == headers


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "garbage",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
    ],
)
def test_damaged_headers_count_as_none(traceparent: str) -> None:
    assert TraceContext.from_headers({"traceparent": traceparent}) is None


def test_a_later_version_may_say_more() -> None:
    assert TraceContext.from_headers({"traceparent": f"01-{TRACE}-{SPAN}-01-more"}) is not None


@given(st.text(max_size=128))
def test_every_trace_id_maps_to_a_valid_one(trace_id: str) -> None:
    trace_id = trace_id.encode("utf-8", "ignore").decode()
    mapped = w3c_trace_id(trace_id)
    assert re.fullmatch(r"[0-9a-f]{32}", mapped)
    assert w3c_trace_id(mapped) == mapped


def test_ours_stay_as_they_are() -> None:
    assert w3c_trace_id(TRACE) == TRACE
