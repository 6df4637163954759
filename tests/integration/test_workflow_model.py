"""Phases, slots, checkpoints and rollback against a simple model, by random steps on a real broker (WF-1 to WF-3)."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from bus import Agent, Bus, Settings, ToolError
from bus.testing import settled
from bus.workflow.handle import WorkflowHandle
from bus.workflow.phases import Phase, Phases
from bus.workflow.record import WorkflowRecord
from bus.workflow.slots import Slot

# A few here; MODEL_EXAMPLES=200 hunts for longer.
EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "8"))
pytestmark = pytest.mark.timeout(60 + 10 * EXAMPLES)
PHASES = ["plan", "write", "review"]
T = TypeVar("T")


@dataclass
class Model:
    """What a workflow is, in plain values. `waiting` are the messages that nobody has handled in this branch."""

    running: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    documents: dict[str, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    branch: int = 0

    def may_begin(self, phase: str) -> bool:
        """Whether the phase before has ended."""
        place = PHASES.index(phase)
        return place == 0 or PHASES[place - 1] in self.ended


class WorkflowMachine(RuleBasedStateMachine):
    """Steps of one workflow, and what must be true after each. Other verbs are added by rules of a subclass."""

    settings: ClassVar[Settings]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.model = Model()
        self.kept: dict[str, Model] = {}
        self.held: dict[str, tuple[AsyncExitStack, WorkflowHandle, Slot]] = {}
        self.tokens: list[int] = []
        self.sent = 0
        self.agent = f"sleeper-{uuid.uuid4().hex[:12]}"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a step to its end."""
        return self.runner.run(asyncio.wait_for(work, 25))

    @initialize()
    def begin(self) -> None:
        """A client and a workflow with three phases."""
        self.bus = self.run(self.stack.enter_async_context(Bus.connect("model", settings=self.settings)))
        self.workflow = self.bus.workflow("model", phases=Phases(["plan", Phase("write", limit=1), "review"]))
        self.send()

    def teardown(self) -> None:
        """Gives back what is held and leaves."""
        for name in list(self.held):
            self.give_back(name)
        self.run(self.stack.aclose())
        self.runner.close()

    def handle(self, name: str) -> WorkflowHandle:
        """As a handler of the newest branch has it."""
        return WorkflowHandle(self.bus.connection, self.workflow.id, branch=self.model.branch, writer=name)

    # -- phases --

    @rule(phase=st.sampled_from(PHASES))
    def enter(self, phase: str) -> None:
        """Refused before its time; else it runs, if it ran before too."""
        if self.model.may_begin(phase) or phase in self.model.running:
            self.run(self.workflow.enter(phase))
            self.model.running.add(phase)
            self.model.ended.discard(phase)
        else:
            with pytest.raises(ToolError, match="cannot begin"):
                self.run(self.workflow.enter(phase))

    @rule(phase=st.sampled_from(PHASES))
    def leave(self, phase: str) -> None:
        """Only what has begun ends; the end is a checkpoint."""
        if phase in self.model.running:
            self.run(self.workflow.leave(phase))
            self.model.running.discard(phase)
            self.model.ended.add(phase)
            self.kept[phase] = deepcopy(self.model)
        elif phase not in self.model.ended:
            with pytest.raises(ToolError, match="has not begun"):
                self.run(self.workflow.leave(phase))

    # -- documents and messages --

    @rule(name=st.sampled_from(["a", "b"]), value=st.integers(0, 99))
    def write(self, name: str, value: int) -> None:
        """A document."""
        self.run(self.handle("writer").state.update(name, lambda _: {"n": value}))
        self.model.documents[name] = value

    @rule()
    def send(self) -> None:
        """A message that waits, because its agent does not run."""
        self.sent += 1
        self.run(self.workflow.send(self.agent, "work", {"n": self.sent}))
        self.model.waiting.append(self.sent)

    @rule()
    def handle_everything(self) -> None:
        """Its agent runs for a while: it handles what waits in this branch, once each, and nothing else."""
        ran: list[int] = []
        agent = Agent(self.agent)

        @agent.on("work")
        async def work(payload: dict[str, int]) -> None:
            ran.append(payload["n"])

        async def drain() -> None:
            async with agent.running(self.settings):
                await settled(self.bus, 15, agents=[self.agent])

        self.run(drain())
        assert sorted(ran) == sorted(self.model.waiting)
        self.model.waiting = []

    # -- checkpoints --

    @rule(name=st.sampled_from(["first", "second"]))
    def checkpoint(self, name: str) -> None:
        """On demand."""
        self.run(self.workflow.checkpoint(name))
        self.kept[name] = deepcopy(self.model)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        """Everything is as it was, in a new branch; who was in a slot of the old branch is not in the new one."""
        name = data.draw(st.sampled_from(sorted(self.kept)))
        old = self.handle("of the old branch")
        done = self.run(self.workflow.rollback(name))
        branch = self.model.branch + 1
        self.model = replace_branch(self.kept[name], branch)
        assert (done.branch, done.resent) == (branch, len(self.model.waiting))
        with pytest.raises(ToolError, match="was rolled back"):
            self.run(old.enter("plan"))
        for holder in list(self.held):
            self.give_back(holder)

    # -- slots --

    @precondition(lambda self: len(self.held) < 2)
    @rule(name=st.sampled_from(["anna", "bert"]))
    def take_slot(self, name: str) -> None:
        """One holder at a time, with a token that grows."""
        if name in self.held or not (self.model.may_begin("write") or "write" in self.model.running):
            return
        handle, stack = self.handle(name), AsyncExitStack()
        taking = stack.enter_async_context(handle.slot("write", ttl_s=60, timeout_s=0.1))
        if self.held:
            with pytest.raises(ToolError, match="was not free within"):
                self.run(taking)
        else:
            slot = self.run(taking)
            self.tokens.append(slot.token)
            self.held[name] = (stack, handle, slot)
        self.model.running.add("write")
        self.model.ended.discard("write")

    @precondition(lambda self: self.held)
    @rule()
    def lose_slot(self) -> None:
        """As after a stop for longer than the lease: another one takes it, and the first can write nothing."""
        name, (stack, handle, slot) = next(iter(self.held.items()))
        self.run(slot._records.take_away(slot._key, ttl_s=1))
        with pytest.raises(ToolError, match="is lost"):
            self.run(handle.state.update("a", lambda _: {"n": -1}))
        del self.held[name]
        with pytest.raises(ToolError, match="is lost"):
            self.run(stack.aclose())

    @precondition(lambda self: self.held)
    @rule()
    def write_in_slot(self) -> None:
        """What the holder writes counts."""
        handle = next(iter(self.held.values()))[1]
        self.run(handle.state.update("b", lambda _: {"n": 7}))
        self.model.documents["b"] = 7

    @precondition(lambda self: self.held)
    @rule()
    def release(self) -> None:
        """It is free at once."""
        self.give_back(next(iter(self.held)))

    def give_back(self, name: str) -> None:
        """Leaves a slot."""
        stack, _, _ = self.held.pop(name)
        self.run(stack.aclose())

    # -- what is true after every step --

    @invariant()
    def everything_is_as_in_the_model(self) -> None:
        """Documents, record, and the order of tokens."""
        if not hasattr(self, "workflow"):
            return
        record = self.run(self.workflow.record())
        assert isinstance(record, WorkflowRecord)
        assert record.branch == self.model.branch
        assert {name for name, one in record.phases.items() if one.ended_at is None} == self.model.running
        assert {name for name, one in record.phases.items() if one.ended_at is not None} == self.model.ended
        for name in ("a", "b"):
            found = self.run(self.workflow.state.read(name))
            assert (found or {"n": None})["n"] == self.model.documents.get(name)
        assert self.tokens == sorted(self.tokens)


def replace_branch(model: Model, branch: int) -> Model:
    """The model of a checkpoint in a new branch."""
    again = deepcopy(model)
    again.branch = branch
    return again


def test_workflows_are_as_in_the_model(bus_settings: Settings) -> None:
    """WF-1, WF-2, WF-3."""
    machine = type("Machine", (WorkflowMachine,), {"settings": bus_settings})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
