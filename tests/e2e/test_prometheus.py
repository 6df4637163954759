"""The dashboard and the alerts against a real Prometheus that scrapes a real run (OBS-4)."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bus import Bus, Draft, Settings
from bus.testing import NatsServer, settled
from tests.e2e.conftest import ROOT
from tests.e2e.prometheus import (
    CONFIGURATION,
    DASHBOARD,
    RULES,
    RULES_TEST,
    Prometheus,
    Use,
    alert_rules,
    dashboard_expressions,
    program,
    running_prometheus,
    until,
    uses,
)

Start = Callable[..., subprocess.Popen[str]]

ARRIVAL_S = 30.0


def test_expressions_are_read() -> None:
    assert uses('sum by (bus_agent) (rate(bus_x_total{bus_type=~"a|b",job!="c"}[5m])) > 0.2 * max(up[1h])') == {
        Use("bus_x_total", frozenset({"bus_agent", "bus_type", "job"})),
        Use("up", frozenset({"bus_agent"})),
    }


def test_every_alert_has_its_runbook_and_names_labels_that_it_has() -> None:
    text, manual = RULES.read_text("utf-8"), (ROOT / "ops" / "README.md").read_text("utf-8")
    headings = set(re.findall(r"^### (\w+)$", manual, re.MULTILINE))
    rules = re.split(r"^ +- alert: ", text, flags=re.MULTILINE)[1:]
    assert len(rules) == len(alert_rules()) >= 8
    for rule in rules:
        name = rule.split()[0]
        assert f"runbook_url: ops/README.md#{name.lower()}\n" in rule
        assert name in headings
        grouped = {label for use in uses(alert_rules()[name]) for label in use.labels} | {"instance"}
        assert set(re.findall(r"\$labels\.(\w+)", rule)) <= grouped


@pytest.mark.prometheus
def test_promtool_takes_the_rules_and_the_configuration() -> None:
    for arguments in (["rules", str(RULES)], ["config", str(CONFIGURATION)]):
        checked = subprocess.run(
            [program("promtool"), "check", *arguments], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.prometheus
def test_every_alert_fires_when_it_should_and_not_before() -> None:
    tested = set(re.findall(r"alertname: (\w+)\n +exp_alerts:", RULES_TEST.read_text("utf-8")))
    assert tested == set(alert_rules())
    checked = subprocess.run(
        [program("promtool"), "test", "rules", str(RULES_TEST)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.prometheus
@pytest.mark.timeout(120)
async def test_every_metric_and_label_of_dashboard_and_alerts_is_there(
    environment: dict[str, str], server: NatsServer, start: Start, tmp_path: Path
) -> None:
    """An agent is scraped by a Prometheus with our rules; a dead letter fires its alert."""
    environment["BUS_METRICS_INTERVAL_S"] = "0.5"
    with socket.create_server(("127.0.0.1", 0)) as free:
        target = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = ("--metrics-port", target.partition(":")[2])
    start("bus", "run", "tests.e2e.scraped_agents:worker", *arguments, until="running worker", cwd=ROOT)
    settings = Settings.load(servers=server.url, ack_wait_s=1, work_max_bytes=33554432)
    with running_prometheus(tmp_path, target) as prometheus:
        # An increase needs a value from before it.
        await asyncio.to_thread(until, lambda: bool(prometheus.query("bus_queue_depth")), ARRIVAL_S, lambda: "no depth")
        async with Bus.connect("caller", settings=settings) as bus:
            await bus.send_many([Draft("worker", "job", {"number": number}) for number in range(20)])
            await bus.send("worker", "huge", {})
            await bus.send("worker", "ask", {})
            await bus.send("worker", "unknown_type", {})
            await settled(bus, 20)
        wanted = {
            use for expression in (*alert_rules().values(), *dashboard_expressions()) for use in uses(expression)
        } | {Use("bus_in_flight", frozenset({"bus_agent"}))}
        assert len(wanted) > 15
        await asyncio.to_thread(
            until,
            lambda: not missing(prometheus, wanted),
            ARRIVAL_S,
            lambda: f"not there: {missing(prometheus, wanted)}",
        )
        for expression in (*alert_rules().values(), *dashboard_expressions()):
            await asyncio.to_thread(prometheus.query, expression)
        firing = 'ALERTS{alertname="BusDeadLetters",alertstate="firing",bus_type="note"}'
        await asyncio.to_thread(until, lambda: bool(prometheus.query(firing)), ARRIVAL_S, lambda: "the alert is silent")
        values = {
            labels: await asyncio.to_thread(one_value, prometheus, f"sum({labels})")
            for labels in (
                'bus_retries_total{bus_type="job"}',
                'bus_dead_letters_total{bus_type="note"}',
                'bus_refused_total{bus_type="_other"}',
                'messaging_client_sent_messages_total{error_type="protocol.too_large"}',
                'messaging_process_duration_seconds_count{bus_type="job",bus_phase="execute",bus_outcome="ack"}',
                'messaging_client_consumed_messages_total{bus_phase="review",bus_outcome="ack"}',
                'rpc_server_call_duration_seconds_count{rpc_method="number.read",error_type=""}',
                'rpc_server_call_duration_seconds_count{error_type="tool.execution_failed"}',
                'rpc_client_call_duration_seconds_count{rpc_method="number.read",error_type="tool.execution_failed"}',
                "bus_calls_busy_total",
            )
        }
    assert list(values.values()) == [1, 1, 1, 1, 20, 19, 2, 1, 1, 0]


def test_the_dashboard_shows_what_an_on_call_person_needs() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    titles = {panel["title"] for panel in dashboard["panels"]}
    assert titles >= {"Workflow rate by phase", "Latency by phase", "Retries and duplicates", "Dead letters by error"}
    assert titles >= {"Queue depth", "Oldest message", "In flight"}
    assert titles >= {"Calls by capability", "Call latency", "Calls in hand"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(panel["description"] for panel in dashboard["panels"])


def missing(prometheus: Prometheus, wanted: set[Use]) -> list[str]:
    """What Prometheus does not have: metrics without a series, labels that no series of a metric has."""
    found = []
    for use in sorted(wanted, key=lambda use: (use.metric, sorted(use.labels))):
        labels = {label for series in prometheus.query(use.metric) for label in series["metric"]}
        found += [f"{use.metric} {label}" for label in sorted({"__name__"} | use.labels) if label not in labels]
    return found


def one_value(prometheus: Prometheus, expression: str) -> float:
    """The value of an expression with one series; -1 for none."""
    found = prometheus.query(expression)
    return float(found[0]["value"][1]) if found else -1
