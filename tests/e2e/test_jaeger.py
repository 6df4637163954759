"""One workflow in a real Jaeger, as an on-call person finds it (OBS-1, OBS-2, OBS-3)."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus import Bus, Envelope, Settings
from bus.testing import NatsServer, settled
from schemas.brief import PlanRequest, SourceRef
from tests.e2e.conftest import ROOT
from tests.e2e.jaeger import RUN, Jaeger, JaegerSpan, running_jaeger
from tests.e2e.test_brief import REPEATED

Start = Callable[..., "object"]

pytestmark = pytest.mark.jaeger

AGENTS = ("planner", "writer", "reviewer")
ARRIVAL_S = 20.0


@pytest.fixture(scope="module")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    with running_jaeger(tmp_path_factory.mktemp("jaeger")) as one:
        yield one


async def make_brief(bus: Bus, *, question: str) -> str:
    """Has the three agents make a brief, closes the workflow, waits until all has settled; returns the trace id."""
    sources = []
    for name in ("Fog rules", "Fog guide", "Harbour safety in fog"):
        stored = await bus.artifacts.put(REPEATED.format(name=name).encode(), name=f"{name}.md")
        sources.append(SourceRef(file=stored.name, sha256=stored.sha256, size_bytes=stored.size_bytes))
    async with bus.workflow("brief", session_id="tuesday") as workflow:
        request = PlanRequest(goal=question, sections=3, rounds=2, sources=sources)
        await workflow.send("planner", "plan_request", request, phase="plan")
        async with asyncio.timeout(30):
            async for sighting in workflow.watch():
                if isinstance(sighting.envelope, Envelope) and sighting.envelope.type == "brief_ready":
                    break
    await settled(bus, 20)
    return workflow.trace_id


async def arrived(jaeger: Jaeger, trace_id: str, is_whole: Callable[[list[JaegerSpan]], bool]) -> list[JaegerSpan]:
    """The trace, as soon as it is whole; agents send their spans some time after they ended."""
    spans: list[JaegerSpan] = []
    try:
        async with asyncio.timeout(ARRIVAL_S):
            while True:
                spans = await asyncio.to_thread(jaeger.trace, trace_id)
                if is_whole(spans):
                    return spans
                await asyncio.sleep(0.2)
    except TimeoutError:
        names = Counter(f"{one.service}: {one.name}" for one in spans)
        raise AssertionError(f"the trace {trace_id} is not whole: {names}") from None


def orphans(spans: list[JaegerSpan]) -> list[str]:
    ids = {one.id for one in spans}
    return [f"{one.service}: {one.name}" for one in spans if one.parent_id and one.parent_id not in ids]


def is_whole(spans: list[JaegerSpan]) -> bool:
    """No span misses its parent, every send has been processed, and the summary is there."""
    sent = {one.id for one in spans if one.name.startswith("send ") and "*" not in one.name}
    processed = {one.parent_id for one in spans if one.name.startswith("process ")}
    return bool(spans) and not orphans(spans) and sent <= processed and any(s.name == "workflow brief" for s in spans)


@pytest.mark.timeout(120)
async def test_three_agents_in_three_processes_are_one_trace(
    jaeger: Jaeger,
    environment: dict[str, str],
    server: NatsServer,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Root, plan, execute, review, revision, a retry, a dead letter, the summary; each below its cause."""
    environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = jaeger.endpoint
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.endpoint)
    for name in AGENTS:
        start("bus", "run", f"tests.e2e.troubled_agents:{name}", until=f"running {name}", cwd=ROOT)
    settings = Settings.load(servers=server.url, ack_wait_s=1, work_max_bytes=33554432)
    async with Bus.connect("caller", settings=settings) as bus:
        trace_id = await make_brief(bus, question="How does the harbour keep ships safe in fog?")
        spans = await arrived(jaeger, trace_id, is_whole)

    by_id = {one.id: one for one in spans}

    def named(name: str) -> list[JaegerSpan]:
        return [one for one in spans if one.name == name]

    # One trace, each agent a service of its own; Jaeger's lists know them.
    assert {one.trace_id for one in spans} == {trace_id}
    assert {one.service for one in spans} == {"caller", *AGENTS}
    assert jaeger.services() >= {"caller", *AGENTS}
    assert jaeger.operations("writer") >= {"process writer.draft_request", "send reviewer.review_request"}

    # Every process is below its send, linked to it, in another service, and every id is there.
    assert orphans(spans) == []
    (root,) = [one for one in spans if not one.parent_id]
    assert root.name == "invoke_workflow brief"
    for process in [one for one in spans if one.name.startswith("process ")]:
        send = by_id[process.parent_id]
        assert send.name == process.name.replace("process", "send")
        assert (trace_id, send.id) in process.links
    assert by_id[named("process planner.plan_request")[0].parent_id].service == "caller"

    # Everything carries the workflow, and the phases are all there.
    assert len({one.attributes.get("bus.workflow_id") for one in spans} - {None}) == 1
    assert all("bus.workflow_id" in one.attributes for one in spans)
    phases = {str(one.attributes["bus.phase"]) for one in spans if "bus.phase" in one.attributes}
    assert phases >= {"plan", "execute", "review", "revision"}
    assert named("process writer.agent_message")[0].attributes["bus.phase"] == "revision"
    kinds = {one.name.split()[0]: one.kind for one in spans}
    assert (kinds["send"], kinds["process"]) in (("4", "5"), ("SPAN_KIND_PRODUCER", "SPAN_KIND_CONSUMER"))

    # The retry: two attempts below one send, the first with its error and the settlement that delays it.
    (first,) = [one for one in named("process writer.draft_request") if one.is_error]
    assert first.attributes["error.type"] == "tool.execution_failed"
    assert (first.attributes["bus.settlement"], str(first.attributes["bus.attempt"])) == ("nak", "1")
    again = [one for one in named("process writer.draft_request") if one.parent_id == first.parent_id]
    assert sorted(str(one.attributes["bus.attempt"]) for one in again) == ["1", "2"]
    (nak,) = [one for one in named("settle writer.draft_request") if one.parent_id == first.id]
    assert float(nak.attributes["bus.retry_delay_s"]) >= 0.1

    # The dead letter, and how its sender hears of it.
    (dead,) = named("process writer.nonsense")
    assert (dead.is_error, dead.events) == (True, ("dead_letter",))
    assert (dead.attributes["bus.settlement"], dead.attributes["error.type"]) == ("dead", "protocol.no_handler")
    (settlement,) = named("settle writer.nonsense")
    assert settlement.parent_id == dead.id
    (refusal,) = named("process reviewer.error")
    assert by_id[refusal.parent_id].parent_id == dead.id
    assert refusal.attributes["bus.refusal.code"] == "protocol.no_handler"

    # The review that completes the round is linked to every draft that it judges: its own send and the others' spans.
    reviews = named("process reviewer.review_request")
    joined = max(reviews, key=lambda one: len(one.links))
    others = {id for _, id in joined.links} & {one.id for one in reviews}
    assert len(others) == len(named("send writer.draft_request")) - 1 > 0

    # The summary spans the whole; nothing else is open for longer than its own work.
    (summary,) = named("workflow brief")
    assert (summary.parent_id, summary.attributes["bus.workflow.status"]) == (root.id, "success")
    assert summary.start_ns <= min(one.start_ns for one in spans)
    assert summary.end_ns >= max(one.start_ns for one in named("send *.brief_ready"))
    assert root.end_ns < summary.end_ns

    # How an on-call person finds it: by what went wrong, or by the workflow.
    for service, operation in (("writer", "settle writer.nonsense"), ("caller", "invoke_workflow brief")):
        assert {one.trace_id for one in jaeger.search(service, operation)} == {trace_id}


@pytest.mark.timeout(180)
async def test_the_readme_shows_the_demo_in_jaeger(
    jaeger: Jaeger, environment: dict[str, str], server: NatsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The section's own lines, with this Jaeger for the one that they start: its commands, then its Python."""
    section = (ROOT / "README.md").read_text("utf-8").partition("## One workflow in Jaeger")[2].partition("\n## ")[0]
    commands, python = re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    start_jaeger, export, *rest = commands.splitlines()
    assert start_jaeger.split("&")[0].strip() == str(RUN.relative_to(ROOT))
    assert export == "export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318"
    assert rest == ["make demo"]
    for name in ("README.md", "Makefile", "agents", "bus", "ops", "schemas"):
        (tmp_path / name).symlink_to(ROOT / name)
    own = {"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.endpoint, "BUS_SERVERS": server.url}
    made = await asyncio.to_thread(
        subprocess.run,
        [*rest[0].split(), f"BIN={Path(sys.executable).parent}", "READY="],
        cwd=tmp_path, env=environment | own, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    spans = await found(jaeger, "brief", "invoke_workflow brief")
    assert {one.service for one in spans} == {"brief", *AGENTS}
    assert {str(one.attributes.get("bus.phase")) for one in spans} >= {"plan", "execute", "review"}
    assert orphans(spans) == []
    (root,) = [one for one in spans if not one.parent_id]
    (summary,) = [one for one in spans if one.name == "workflow brief"]
    assert (summary.parent_id, summary.attributes["bus.workflow.status"]) == (root.id, "success")

    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.endpoint)
    async with Bus.connect("reader", settings=Settings.load(servers=server.url, namespace="readme")) as bus:
        scope: dict[str, Any] = {"bus": bus}
        exec(f"async def shown():\n{textwrap.indent(python, '    ')}", scope)
        await scope["shown"]()
    spans = await found(jaeger, "reader", "invoke_workflow brief")
    assert {one.name for one in spans} == {"invoke_workflow brief", "send planner.plan_request", "workflow brief"}


async def found(jaeger: Jaeger, service: str, operation: str) -> list[JaegerSpan]:
    """The one trace that a search finds, once its summary is there."""
    spans: list[JaegerSpan] = []
    async with asyncio.timeout(ARRIVAL_S):
        while not any(one.name == "workflow brief" for one in spans) or orphans(spans):
            await asyncio.sleep(0.2)
            spans = await asyncio.to_thread(jaeger.search, service, operation)
    assert len({one.trace_id for one in spans}) == 1
    return spans
