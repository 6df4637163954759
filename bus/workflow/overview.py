"""An overview of one workflow: everything that a person asks when it is stuck, read at one time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bus.broker.connection import Connection
from bus.broker.records import Records
from bus.broker.streams import StreamNames
from bus.broker.subjects import token
from bus.workflow.checkpoints import Checkpoint, Checkpoints
from bus.workflow.record import WorkflowRecord
from bus.workflow.record_store import RecordStore
from bus.workflow.recorded import read_records
from bus.workflow.rollback import Rollbacks
from bus.workflow.slots import Claim
from bus.workflow.story import LOST, State, Story, tell


@dataclass(frozen=True, slots=True)
class Overview:
    """One workflow. `unfinished` is the checkpoint of a rollback that was decided and not finished."""

    record: WorkflowRecord
    holders: tuple[Claim, ...]
    waiters: tuple[Claim, ...]
    checkpoints: tuple[Checkpoint, ...]
    unfinished: str | None
    story: Story

    @property
    def messages(self) -> Mapping[str, int]:
        """How many of its messages are handled, waiting (in whatever state), dead, set aside, or other."""
        counts = Counter({"handled": 0, "waiting": 0, "dead": 0, "set_aside": 0, "cancelled": 0})
        for step in self.story.steps:
            if step.is_open:
                counts["waiting"] += 1
            elif step.state in LOST:
                counts["dead"] += 1
            elif step.state in (State.HANDLED, State.SET_ASIDE, State.CANCELLED):
                counts[step.state.value] += 1
            else:
                counts["other"] += 1
        return counts


async def overview(connection: Connection, workflow_id: str) -> Overview | None:
    """The overview of a workflow; None for one without a record. Raises BrokerError."""
    record = await RecordStore(connection).read(workflow_id)
    if record is None:
        return None
    records = Records(connection, StreamNames.of(connection.settings.namespace).workflows)
    families: dict[str, tuple[Claim, ...]] = {}
    for family in ("slot", "wait"):
        found = [Claim.of(one) async for _, one in records.entries(f"{token(workflow_id)}.{family}.>")]
        families[family] = tuple(claim for claim in found if claim is not None)
    return Overview(
        record,
        families["slot"],
        families["wait"],
        tuple(await Checkpoints(connection, workflow_id).known()),
        await Rollbacks(connection, workflow_id).unfinished(),
        tell(await read_records(connection, workflow_id)),
    )
