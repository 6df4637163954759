"""Spans: what is computed for which, and what a context passes on (OBS-1, OBS-2)."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.telemetry import length
from bus.telemetry.context import TraceContext, w3c_trace_id
from bus.telemetry.recorder import Recorder, SpanRecord
from bus.telemetry.spans import Span, SpanKind, Telemetry

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Kept:
    """An exporter that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []

    def export(self, spans: list[SpanRecord]) -> bool:
        self.spans += spans
        return True

    def close(self) -> None:
        return


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    """Telemetry made in the test exports here."""
    found = Kept()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("bus.telemetry.spans.OtlpJsonExporter", lambda url, resource: found)
    return found


def started(telemetry: Telemetry, parent: TraceContext | None, *, key: str = "w") -> tuple[Span, list[str]]:
    computed: list[str] = []

    def name() -> str:
        computed.append("name")
        return "send a.b"

    def attributes() -> dict[str, str | int | float | bool]:
        computed.append("attributes")
        return {}

    span = telemetry.start(
        name, SpanKind.PRODUCER, trace_id=TRACE, parent=parent, sampling_key=key, attributes=attributes
    )
    return span, computed


async def test_nothing_is_computed_for_a_span_that_does_not_record(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its context still goes on, with the decision in it."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    telemetry = Telemetry("a", namespace="bus")
    span, computed = started(telemetry, None)
    assert (computed, span.is_recording) == ([], False)
    assert span.context is not None
    assert (span.context.trace_id, span.context.flags) == (TRACE, "00")
    below, computed = started(telemetry, span.context)
    assert (computed, below.context) == ([], span.context)
    await telemetry.close()
    assert kept.spans == []


@pytest.mark.parametrize("trace_id", [TRACE, "0" * 15 + "1" + "0" * 16, "order 7", "0" * 32, TRACE.upper()])
async def test_an_unsampled_root_has_a_header_that_every_reader_takes(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, trace_id: str
) -> None:
    """Whatever its trace id, and its context is the same as its header."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    telemetry = Telemetry("a", namespace="bus")
    span = telemetry.start(str, SpanKind.PRODUCER, trace_id=trace_id, parent=None, sampling_key="w", attributes=dict)
    read = TraceContext.from_headers(span.headers())
    assert read is not None
    assert (read, read.trace_id, read.is_sampled) == (span.context, w3c_trace_id(trace_id), False)
    assert telemetry.passes(span.headers())
    await telemetry.close()


@pytest.mark.parametrize("flags", ["01", "03", "ff"])
async def test_all_flags_with_the_lowest_bit_are_sampled_and_go_on_as_they_came(kept: Kept, flags: str) -> None:
    telemetry = Telemetry("a", namespace="bus")
    parent = TraceContext(TRACE, SPAN, flags, "vendor=x", "k=v")
    span, computed = started(telemetry, parent)
    span.end()
    assert computed == ["name", "attributes"]
    assert span.context is not None
    assert (span.context.flags, span.context.baggage) == (flags, "k=v")
    assert span.context.state == "bus=1,vendor=x"
    await telemetry.close()
    assert [(one.trace_id, one.parent_span_id) for one in kept.spans] == [(TRACE, SPAN)]


@pytest.mark.parametrize("flags", ["00", "02"])
async def test_an_unsampled_parent_is_not_overruled(kept: Kept, flags: str) -> None:
    telemetry = Telemetry("a", namespace="bus")
    parent = TraceContext(TRACE, SPAN, flags)
    span, computed = started(telemetry, parent)
    assert (computed, span.context) == ([], parent)
    await telemetry.close()


async def test_linked_traces_of_a_workflow_are_kept_or_dropped_together(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two services decide alike, by the workflow's id, whatever the trace."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    services = [Telemetry(name, namespace="bus") for name in ("a", "b")]
    decisions = {key: [started(one, None, key=key)[0].is_recording for one in services] for key in map(str, range(200))}
    assert all(first is second for first, second in decisions.values())
    assert 60 < sum(first for first, _ in decisions.values()) < 140
    for one in services:
        await one.close()


async def test_a_full_trace_goes_on_in_the_next_one_with_links_both_ways(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length, "MAX_SPANS", 3)
    telemetry, other = Telemetry("a", namespace="bus"), Telemetry("b", namespace="bus")
    parent = TraceContext(TRACE, SPAN, "01", "vendor=x", "k=v")
    seen, onward = [], parent
    for _ in range(5):
        onward = telemetry.onward(parent, workflow_id="w")
        seen.append(onward.trace_id)
        span, _ = started(telemetry, onward)
        span.end()
    following = length.next_trace_id(TRACE)
    assert seen == [TRACE] * 3 + [following] * 2
    assert (onward.baggage, onward.state) == ("k=v", "bus=1,vendor=x")
    # Another service that hears of the length leaves for the same trace.
    heard, _ = started(other, TraceContext(TRACE, SPAN, "01", "bus=3"))
    assert heard.context is not None
    assert other.onward(heard.context, workflow_id="w").trace_id == following
    await telemetry.close()
    await other.close()
    old, new = (
        next(one for one in kept.spans if one.name == name) for name in ("workflow_continues", "continue_workflow")
    )
    assert (old.trace_id, old.parent_span_id, old.links) == (TRACE, SPAN, ((following, new.span_id),))
    assert (new.trace_id, new.parent_span_id, new.links) == (following, "", ((TRACE, SPAN),))
    assert (old.attributes["bus.trace.next"], new.attributes["bus.trace.previous"]) == (following, TRACE)
    assert old.attributes["bus.workflow_id"] == new.attributes["bus.workflow_id"] == "w"


async def test_without_an_endpoint_what_came_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    telemetry = Telemetry("a", namespace="bus")
    parent = TraceContext(TRACE, SPAN, "01", f"bus={length.MAX_SPANS}")
    assert telemetry.onward(parent, workflow_id=None) is parent
    assert telemetry.continued(parent, "1" * 32, name=None, workflow_id=None) is parent
    assert telemetry.counts is None


def test_links_are_kept_once_and_never_lead_to_the_span_itself() -> None:
    record = SpanRecord("process a.b", 5, TRACE, SPAN, "", "", (("1" * 32, "2" * 16),), {})
    span = Span(TraceContext(TRACE, SPAN, "01"), record)
    other = TraceContext(TRACE, "3" * 16, "01")
    span.link([other, other, TraceContext(TRACE, SPAN, "01"), TraceContext("1" * 32, "2" * 16, "01")])
    assert record.links == (("1" * 32, "2" * 16), (TRACE, "3" * 16))


def test_a_receiver_that_hangs_is_not_waited_for() -> None:
    """What it has in hand and what waits is counted as lost, and `close` is bounded."""
    from bus.telemetry.otlp import OtlpJsonExporter

    with socket.create_server(("127.0.0.1", 0)) as silent:
        one = Recorder(OtlpJsonExporter(f"http://127.0.0.1:{silent.getsockname()[1]}", {"service.name": "a"}))
        for _ in range(1500):
            one.add(SpanRecord("send a.b", 4, TRACE, SPAN, "", "", (), {}))
        one.close(0.5)
        assert (one.exported, one.dropped) == (0, 1500)


@given(st.text(max_size=20), st.text(max_size=5))
def test_the_lines_of_a_span_are_its_headers_and_never_more(state: str, baggage: str) -> None:
    """OBS-2; what strangers write into a state adds no header."""
    context = TraceContext(TRACE, SPAN, "01", state, baggage)
    lines = Span(context).header_lines
    assert lines.count("\n") == lines.count("\r") == len(lines.splitlines())
    assert not lines or dict(line.split(": ", 1) for line in lines.splitlines()) == context.to_headers()
