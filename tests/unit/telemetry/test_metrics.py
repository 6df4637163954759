"""Instruments: what they count, and that strangers cannot make series (OBS-4)."""

from __future__ import annotations

from bus.telemetry.instruments import BOUNDS_S, Distribution, Metric, Series, merged
from bus.telemetry.metrics import ACK, DEAD, MAX_DESTINATIONS, MAX_PHASES, OTHER, REFUSED, RETRY, ServiceMetrics


def by_name(metrics: ServiceMetrics) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics.read()}


def total(metric: Metric, **wanted: str) -> float:
    """The sum of the counter's series that have these labels; `bus_type` stands for `bus.type`."""
    names = {name.replace("_", ".", 1): text for name, text in wanted.items()}
    return sum(
        value.count if isinstance(value, Distribution) else value
        for labels, value in metric.values.items()
        if names.items() <= dict(labels).items()
    )


def test_a_value_falls_below_its_bound() -> None:
    series = Series(())
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[1], BOUNDS_S[-1] + 1, None):
        series.record(seconds)
    assert series.distribution.counts[:2] == (2, 1)
    assert series.distribution.counts[-1] == 1
    assert (series.distribution.count, series.count) == (4, 5)


def test_every_delivery_is_counted_once_by_its_outcome() -> None:
    metrics = ServiceMetrics("writer")
    deliveries = metrics.deliveries({"draft": "execute", "note": None})
    deliveries.settled("draft", None, ACK, "", 0.2)
    deliveries.settled("draft", "revision", RETRY, "tool.timeout", 3.0)
    deliveries.settled("draft", None, DEAD, "tool.timeout", 3.0)
    deliveries.settled("note", None, REFUSED, "protocol.expired")
    found = by_name(metrics)
    assert total(found["messaging.client.consumed.messages"]) == 4
    assert total(found["messaging.client.consumed.messages"], bus_phase="execute") == 2
    assert total(found["messaging.process.duration"], bus_type="draft") == 3
    assert total(found["bus.retries"], bus_type="draft") == 1
    assert (total(found["bus.dead_letters"]), total(found["bus.refused"], bus_type="note")) == (2, 1)


def test_counters_by_type_are_there_before_anything_happens() -> None:
    """Else the first dead letter would be no increase."""
    metrics = ServiceMetrics("writer")
    metrics.deliveries({"draft": None})
    found = by_name(metrics)
    for name in ("bus.retries", "bus.dead_letters", "bus.refused", "bus.duplicates"):
        assert {dict(labels)["bus.type"]: value for labels, value in found[name].values.items()} == {
            "draft": 0,
            OTHER: 0,
        }


def test_hostile_types_phases_and_destinations_make_no_series() -> None:
    metrics = ServiceMetrics("writer")
    deliveries = metrics.deliveries({"draft": None})
    for number in range(5000):
        deliveries.settled(f"type_{number}", f"phase {number}", REFUSED, "protocol.no_handler")
        deliveries.settled("draft", f"phase {number}", ACK, "", 0.1)
        metrics.sends.ended(f"agent-{number}", "note", f"phase {number}", "", 0.1)
    found = by_name(metrics)
    consumed, sent = found["messaging.client.consumed.messages"], found["messaging.client.sent.messages"]
    assert (total(consumed), total(sent)) == (10_000, 5000)
    assert total(consumed, bus_type=OTHER) == total(found["bus.refused"], bus_type=OTHER) == 5000
    for metric, known in ((consumed, "writer.draft"), (sent, "agent-7.note")):
        templates = {dict(labels)["messaging.destination.template"] for labels in metric.values}
        assert {known, OTHER} <= templates
        assert len(templates) <= MAX_DESTINATIONS + 1
    assert len(consumed.values) <= MAX_PHASES + 3
    assert len(sent.values) <= MAX_DESTINATIONS + 2


def test_two_replicas_of_an_agent_in_one_process_are_one_series() -> None:
    services = [ServiceMetrics("writer"), ServiceMetrics("writer")]
    for one in services:
        one.deliveries({"draft": None}).settled("draft", None, ACK, "", 0.1)
    together = {metric.name: metric for metric in merged(metric for one in services for metric in one.read())}
    assert total(together["messaging.client.consumed.messages"]) == 2
    assert total(together["messaging.process.duration"]) == 2
    assert len(together["messaging.process.duration"].values) == 1
