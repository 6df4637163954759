"""The record of a workflow: begun, moved, ended, and what happens when two write at once (WF-3)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bus import Agent, Bus, Message, Settings, ToolError
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.testing import settled
from bus.workflow.listing import list_workflows, matching
from bus.workflow.phases import Phases
from bus.workflow.record import WorkflowRecord
from bus.workflow.record_store import RecordStore
from bus.workflow.state import WorkflowState


async def test_a_record_from_the_first_send_to_the_end(bus: Bus, settings: Settings) -> None:
    """WF-3: begun by the first send, moved by handlers, ended by finish, with who changed what."""
    agent = Agent("worker")

    @agent.on("step")
    async def step(_: Any, message: Message) -> None:
        await message.workflow.enter("work")
        await message.workflow.enter("work")
        await message.workflow.leave("work")

    async with agent.running(settings), bus.workflow("job", phases=Phases(["work", "rest"])) as workflow:
        assert await workflow.record() is None
        sent = await workflow.send("worker", "step", {})
        await settled(bus)
    record = await workflow.record()
    assert record is not None
    assert (record.name, record.status, record.phase) == ("job", "success", "work")
    assert record.started_at <= record.updated_at == record.ended_at
    assert [change.what for change in record.changes] == [
        "begun", "phase work began", "phase work ended", "checkpoint work", "ended: success",
    ]  # fmt: skip
    assert record.changes[1].by == f"worker, handling step {sent.message_id}"
    assert record.by == "tester (client)"
    assert record.revision > 0
    assert record.counts == {"changes": 5, "checkpoints": 1}


async def test_a_workflow_without_a_send_has_no_record_and_its_end_writes_none(bus: Bus) -> None:
    """WF-3."""
    async with bus.workflow("nothing") as workflow:
        pass
    assert await workflow.record() is None


@pytest.mark.parametrize(("raised", "status"), [(KeyError("x"), "error"), (asyncio.CancelledError(), "cancelled")])
async def test_what_ends_a_workflow_stands_in_its_record(bus: Bus, raised: BaseException, status: str) -> None:
    """WF-3."""
    with pytest.raises(type(raised)):  # noqa: PT012
        async with bus.workflow("job") as workflow:
            await workflow.send("nobody", "step", {})
            raise raised
    record = await workflow.record()
    assert record is not None
    assert record.status == status
    assert record.error == ("KeyError" if status == "error" else None)


async def test_a_conflict_names_both_writers(bus: Bus, settings: Settings) -> None:
    """WF-3: concurrent writers conflict loudly."""
    workflow = bus.workflow("job")
    await workflow.send("nobody", "step", {})
    read = await workflow.record()
    assert read is not None
    first = RecordStore(bus.connection, writer="first")
    await first.change_from(read, lambda record, by: record.entered("a", by))
    with pytest.raises(ToolError) as caught:
        await RecordStore(bus.connection, writer="second").change_from(read, lambda r, by: r.entered("b", by))
    details = caught.value.info.details
    assert caught.value.info.retryable
    assert details["theirs"] == {"writer": "first", "revision": (await first.read(workflow.id)).revision}  # type: ignore[union-attr]
    assert details["ours"] == {"writer": "second", "revision": read.revision}
    assert "first wrote revision" in str(caught.value)
    assert "second expected" in str(caught.value)


async def test_documents_conflict_in_the_same_way(bus: Bus) -> None:
    """WF-3: `write` says whom it lost to; `update` goes on from what they wrote."""
    one, two = (WorkflowState(bus.connection, "w", writer=name) for name in ("one", "two"))
    revision = await one.write("plan", {"n": 1}, after=0)
    assert (await two.read_versioned("plan")).writer == "one"
    await two.write("plan", {"n": 2}, after=revision)
    with pytest.raises(ToolError, match=r"two wrote revision .* while one expected"):
        await one.write("plan", {"n": 3}, after=revision)
    assert await one.update("plan", lambda document: {"n": (document or {})["n"] + 1}) == {"n": 3}


async def test_many_transitions_at_once_all_count(bus: Bus) -> None:
    """WF-3: compare-and-set: none of 40 concurrent transitions is lost."""
    workflow = bus.workflow("job")
    await workflow.send("nobody", "step", {})
    stores = [RecordStore(bus.connection, writer=f"w{n}") for n in range(4)]

    async def enter(n: int) -> None:
        await stores[n % 4].change(workflow.id, lambda record, by: record.entered(f"p{n}", by))

    await asyncio.gather(*map(enter, range(40)))
    record = await workflow.record()
    assert record is not None
    assert set(record.phases) == {f"p{n}" for n in range(40)}
    assert len(record.changes) + record.changes_before == 41


async def test_phases_begin_in_their_order(bus: Bus) -> None:
    """WF-1: a phase before its predecessor's end is refused, retryable; a finished one may begin again."""
    workflow = bus.workflow("job", phases=Phases(["plan", "draft"]))
    await workflow.send("nobody", "step", {})
    with pytest.raises(ToolError, match="'plan' comes before it and has not begun") as caught:
        await workflow.enter("draft")
    assert caught.value.info.retryable
    await workflow.enter("plan")
    with pytest.raises(ToolError, match="has not ended"):
        await workflow.enter("draft")
    await workflow.leave("plan")
    await workflow.enter("draft")
    record = await workflow.enter("plan")
    assert record.phases["plan"].begun == 2
    await workflow.finish("cancelled")
    with pytest.raises(ToolError, match=r"has ended \(cancelled\)"):
        await workflow.enter("extra")


async def test_a_workflow_that_goes_on_runs_again(bus: Bus) -> None:
    """WF-3: `Bus.workflow(workflow_id=...)` after the end."""
    async with bus.workflow("job") as workflow:
        await workflow.send("nobody", "step", {})
    again = bus.workflow("job", workflow_id=workflow.id)
    await again.send("nobody", "step", {})
    record = await again.record()
    assert record is not None
    assert (record.status, record.ended_at) == ("running", None)


async def test_a_listing_counts_finds_and_mends(bus: Bus) -> None:
    """WF-3: the newest of each status, the counts of the server; what a crash left in the index is believed to none."""
    finished = []
    for n in range(3):
        async with bus.workflow(f"job{n}") as workflow:
            await workflow.send("nobody", "step", {})
        finished.append(workflow.id)
    running = bus.workflow("open")
    await running.send("nobody", "step", {})
    records = Records(bus.connection, StreamNames.of(bus.connection.settings.namespace).workflows)
    await records.write(f"{running.id}.run.error", running.id.encode(), after=None)
    listing = await list_workflows(bus.connection)
    assert [one.id for one in listing.records] == [running.id, *reversed(finished)]
    assert (listing.counts["success"], listing.counts["cancelled"]) == (3, 0)
    assert [one.id for one in (await list_workflows(bus.connection, status="error")).records] == []
    assert [one.name for one in (await list_workflows(bus.connection, status="success", newest=2)).records] == [
        "job2", "job1",
    ]  # fmt: skip
    assert await matching(bus.connection, running.id) == [running.id]
    assert set(await matching(bus.connection, running.id[:6])) == {running.id, *finished}
    assert await matching(bus.connection, "zz") == []
    with pytest.raises(ValueError, match="not the status"):
        await list_workflows(bus.connection, status="done")


async def test_ids_of_any_shape_have_records(bus: Bus) -> None:
    """ENV-2, WF-3: ids of other teams are no subject tokens."""
    async with bus.workflow("job", workflow_id="wörk.flow *1") as workflow:
        await workflow.send("nobody", "step", {})
    record = await workflow.record()
    assert record is not None
    assert record.id == "wörk.flow *1"
    assert await matching(bus.connection, "wörk.flow *1") == ["wörk.flow *1"]
    assert await matching(bus.connection, "wörk.f") == ["wörk.flow *1"]
    assert [one.id for one in (await list_workflows(bus.connection)).records] == ["wörk.flow *1"]


async def test_a_record_reads_back_as_it_was(bus: Bus) -> None:
    """WF-3."""
    workflow = bus.workflow("job", phases=Phases(["plan"]))
    await workflow.send("nobody", "step", {})
    record = await workflow.enter("plan")
    again = WorkflowRecord.from_wire(record.to_wire(), record.revision)
    assert again == replace(record)
    assert again.declared.to_wire() == record.declared.to_wire()
    with pytest.raises(ValueError, match="not the record"):
        WorkflowRecord.from_wire(b"[]", 1)
