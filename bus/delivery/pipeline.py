"""The pipeline: the straight line that every delivery takes, each stage once, in this order.

decode, versions, identity, budget, dedupe, validate, handler, complete, settle. Stages never call each other,
and only the last step settles.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from bus.broker.connection import Connection
from bus.broker.pull import Delivery
from bus.broker.subjects import WorkSubject
from bus.delivery.commits import Commits
from bus.delivery.counting import count, count_settled
from bus.delivery.dead_letters import DeadLetters
from bus.delivery.dedupe import Claim, Dedupe, digest
from bus.delivery.failures import failed_attempt
from bus.delivery.handled import Handled, Kind
from bus.delivery.handler import Handler, HandlerMiddleware, instead_of, told, told_with_trace
from bus.delivery.handover import Instead
from bus.delivery.letter import attempts_before
from bus.delivery.message import Message
from bus.delivery.publisher import Publisher
from bus.delivery.refusal import REFUSAL_TTL_S, refusals
from bus.delivery.route import Route
from bus.delivery.settlement import RetryPolicy, Settlement, Verdict, decide
from bus.delivery.tracing import DeliveryTracing
from bus.envelope import Envelope
from bus.errors import BusError, ErrorInfo, error
from bus.telemetry import metrics
from bus.telemetry.logs import ids_of, ids_of_span, take_in_hand
from bus.telemetry.metrics import Deliveries
from bus.telemetry.spans import Span
from bus.trust import budget, identity
from bus.trust.accounts import Accounts
from bus.workflow.artifacts import Artifacts
from bus.workflow.calling import Calling
from bus.workflow.completions import Completion
from bus.workflow.handle import Workflows
from bus.workflow.references import DATA_REF, restore

log = logging.getLogger("bus.delivery")

# A message that ends the process each time it is handled is never settled by it; the count of deliveries is
# all that is left of it. Hand-backs of ordinary stops count too, hence the distance.
CRASH_MARGIN = 10
TAKEN, COMPLETED, HELD = Claim.TAKEN, Claim.COMPLETED, Claim.HELD
ACK = Settlement(Verdict.ACK)
LEAVE = Settlement(Verdict.LEAVE)


@dataclass(slots=True)
class _Progress:
    """How far one delivery has come; what the later steps need of the earlier ones."""

    policy: RetryPolicy
    epoch: int
    subject: WorkSubject | None = None
    envelope: Envelope | None = None
    claimed: bytes | None = None
    started_at: datetime | None = None
    began: float = 0.0
    is_duplicate: bool = False

    @property
    def seconds(self) -> float | None:
        """Since the handler began; None when it did not."""
        return time.perf_counter() - self.began if self.began else None


class Pipeline:
    """Handles the deliveries of one agent."""

    def __init__(
        self,
        connection: Connection,
        tracing: DeliveryTracing,
        deliveries: Deliveries,
        *,
        agent: str,
        handlers: Mapping[str, Handler],
        retry: RetryPolicy | None,
        middleware: Sequence[HandlerMiddleware],
        publisher: Publisher,
        dedupe: Dedupe,
        commits: Commits,
        calls: Calling,
        accounts: Accounts,
        max_visits: int | None,
        hand_over: Instead,
        workflows: Workflows,
    ) -> None:
        settings = connection.settings
        policy = retry or RetryPolicy(max_attempts=settings.max_attempts)
        self._connection = connection
        self._tracing = tracing
        self._deliveries = deliveries
        self._agent = agent
        self._routes = {type: Route.of(handler, policy, middleware) for type, handler in handlers.items()}
        self._dedupe = dedupe
        self._commits = commits
        self._calls = calls
        self._accounts = accounts
        self._max_visits = max_visits
        self._publisher = publisher
        self._hand_over = hand_over
        self._workflows = workflows
        self._dead_letters = DeadLetters(connection)
        self._artifacts = Artifacts(connection)
        self._max_hops = settings.max_hops
        self._ack_wait_s = settings.ack_wait_s
        self._policy = policy

    def suspect_copies(self) -> None:
        """Hears that the consumer is a new one, which delivers what was in hand once more, as if for the first time."""
        self._dedupe.suspect_copies()

    async def run(self, delivery: Delivery, ended: Callable[[Delivery], None]) -> None:
        """Takes one delivery from bytes to its settlement; `ended` is called when that is done.

        A handled one is settled with others, after this returns. Cancelled while the handler runs, it gives the
        claim and the message back. When the broker cannot take the settlement, the message comes again.
        """
        progress = _Progress(self._policy, self._connection.epoch)
        span = None
        failure: ErrorInfo | None = None
        settlement: Settlement | None = None
        try:
            try:
                progress.subject = subject = self._connection.subjects.parse_work(delivery.subject)
                progress.envelope = envelope = Envelope.decode(delivery.data)
            finally:
                span = self._tracing.process(delivery, progress.envelope)
            take_in_hand(envelope, self._agent, span, delivery.headers)
            settlement = await self._handle(delivery, subject, envelope, progress, span, ended)
        except asyncio.CancelledError:
            if progress.claimed is not None:
                self._dedupe.release(progress.claimed)
            await self.hand_back(delivery)
            if span is not None:
                span.set({"bus.settlement": "handed_back"})
                span.end()
            count(self._deliveries, progress.envelope, metrics.HANDED_BACK)
            ended(delivery)
            raise
        except BusError as problem:
            failure = problem.info
        except TimeoutError:
            failure = error("tool.timeout", f"the handler of {self._what(progress)} ran into a timeout").info
        except Exception as problem:
            log.error(
                "%s on %s: %s",
                self._agent,
                self._what(progress),
                told_with_trace(problem),
                extra=ids_of(progress.envelope),
            )
            failure = error("tool.execution_failed", told(problem)).info
        if failure is None and settlement is None:
            return
        try:
            if failure is not None:
                if progress.claimed is not None:
                    self._dedupe.release(progress.claimed)
                settlement = decide(
                    failure,
                    attempt=delivery.attempt,
                    policy=progress.policy,
                    jitter=random.random(),
                    age_s=delivery.age_s(),
                )
                if settlement.verdict is Verdict.DEAD:
                    settlement = await self._hand_over.instead(delivery, failure) or settlement
            settlement, seconds = settlement or ACK, progress.seconds
            if span is not None and failure is not None and seconds is not None:
                span.set({"bus.exec_ms": round(seconds * 1000, 3)})
            with self._tracing.settle(span, delivery, progress.envelope, settlement):
                await self._settle(delivery, progress, settlement, failure, span)
            count_settled(
                self._deliveries, progress.envelope, settlement, failure,
                is_duplicate=progress.is_duplicate, seconds=seconds,
            )  # fmt: skip
        except BusError as problem:
            self._will_come_again(*self._named(progress), problem, span)
        finally:
            if span is not None:
                span.end()
            ended(delivery)

    async def _handle(
        self,
        delivery: Delivery,
        subject: WorkSubject,
        envelope: Envelope,
        progress: _Progress,
        span: Span,
        ended: Callable[[Delivery], None],
    ) -> Settlement | None:
        identity.verify(envelope, subject)
        extensions = envelope.extensions
        if extensions:
            budget.check(envelope, max_hops=self._max_hops, max_visits=self._max_visits)
        sender, _, type = envelope.address
        route = self._routes.get(type)
        if route is None:
            if type == "error":
                # Somebody refused what this agent sent, and it has no handler for that: leave a trace.
                log.warning(
                    "%s sent something that was refused: %s",
                    self._agent,
                    envelope.payload,
                    extra=ids_of(progress.envelope),
                )
                return ACK
            raise error(
                "protocol.no_handler",
                f"{self._agent} has no handler for {type!r}; it handles {', '.join(sorted(self._routes))}",
                handles=sorted(self._routes),
            )
        handler, progress.policy = route.handler, route.policy
        if route.policy.max_age_s is not None and delivery.age_s() > route.policy.max_age_s:
            raise error(
                "protocol.expired",
                f"stored {delivery.age_s():.0f} s ago, over the age limit of {route.policy.max_age_s:.0f} s",
                limit=route.policy.max_age_s,
            )
        message_id, phase = envelope.message_id, envelope.phase
        key = digest(sender, message_id)
        attempt = attempts_before(delivery.headers) + delivery.attempt
        seq, redelivered = delivery.stream_seq, attempt > 1
        claim = self._dedupe.claim_undoubted(key, seq=seq, redelivered=redelivered)
        if claim is None:
            claim = await self._dedupe.claim_doubted(key, seq=seq, redelivered=redelivered)
        if claim is TAKEN and self._connection.epoch != progress.epoch:
            # The link broke before the handler began: a broker that was killed may have given it to another
            # replica by now, and would take any word of ours for that delivery.
            self._dedupe.release(key)
            return LEAVE
        if claim is COMPLETED:
            progress.is_duplicate = True
            span.set({"bus.duplicate": True})
            log.info(
                "%s was handled before; acknowledged as a duplicate",
                self._what(progress),
                extra=ids_of(progress.envelope),
            )
            return ACK
        if claim is HELD:
            return Settlement(Verdict.NAK, delay_s=self._ack_wait_s)
        progress.claimed = key
        if delivery.attempt > route.policy.max_attempts + CRASH_MARGIN:
            raise error(
                "tool.execution_failed",
                f"delivered {delivery.attempt} times and never settled; handling it probably ends the process",
            )
        if DATA_REF in extensions:
            envelope = await restore(envelope, self._artifacts)
        message = Message(
            envelope,
            agent=self._agent,
            attempt=attempt,
            content=handler.read(envelope.payload, extensions.get("schema")),
            phase=phase or handler.phase,
            span=span,
            publisher=self._publisher,
            artifacts=self._artifacts,
            workflows=self._workflows,
            calls=self._calls,
            accounts=self._accounts,
        )
        progress.started_at = started_at = datetime.now(UTC)
        progress.began = started = time.perf_counter()
        try:
            await route.run(message)
        except BaseException as problem:
            if (instead := instead_of(problem)) is not None:
                raise instead from problem
            raise
        exec_ms = round((time.perf_counter() - started) * 1000, 3)
        completion = Completion(
            sender, message_id, envelope.workflow_id, attempt, started_at, exec_ms, message.set_aside
        )
        kind, trace_id = (type, phase), envelope.trace_id
        self._commits.add(Handled(completion, delivery, key, kind, trace_id, span, ended, self._committed))
        return None

    def _committed(self, handled: Handled, problem: BusError | None) -> None:
        completion, kind, span = handled.record, handled.kind, handled.span
        if problem is None:
            self._dedupe.complete(handled.key)
            self._deliveries.settled(*kind, metrics.ACK, "", completion.exec_ms / 1000)
            if span.is_recording:
                span.set({"bus.settlement": "ack", "bus.exec_ms": completion.exec_ms})
                span.end()
        else:
            self._dedupe.release(handled.key)
            ids = {"message_id": completion.message_id, "workflow_id": completion.workflow_id, "agent": self._agent}
            ids |= ids_of_span(span, handled.trace_id)
            self._will_come_again(f"{kind[0]} {completion.message_id}", kind, ids, problem, span)
            span.end()
        handled.told(handled.delivery)

    async def _settle(
        self,
        delivery: Delivery,
        progress: _Progress,
        settlement: Settlement,
        failure: ErrorInfo | None,
        span: Span | None,
    ) -> None:
        if span is not None:
            span.set({"bus.settlement": settlement.verdict.value})
            if failure is not None:
                span.fail(failure.code, failure.message)
        if settlement.verdict is Verdict.LEAVE:
            return
        if settlement.verdict is Verdict.ACK:
            await self._connection.publish(delivery.reply, b"+ACK")
        elif settlement.verdict is Verdict.NAK:
            if failure is not None:
                log.warning(
                    "%s failed (attempt %d), again in %.1f s: %s",
                    self._what(progress),
                    delivery.attempt,
                    settlement.delay_s,
                    failure.message,
                    extra=ids_of(progress.envelope),
                )
                failed = failed_attempt(delivery, progress.envelope, progress.started_at, failure, settlement)
                if failed is not None:
                    return await self._commits.give_back(failed, delivery.reply)
            await self._connection.publish(delivery.reply, b'-NAK {"delay": %d}' % int(settlement.delay_s * 1e9))
        else:
            assert failure is not None
            await self._bury(delivery, progress, failure, span)

    async def _bury(self, delivery: Delivery, progress: _Progress, failure: ErrorInfo, span: Span | None) -> None:
        seconds = progress.seconds
        dead_id, _ = await self._dead_letters.bury(delivery, agent=self._agent, failure=failure, seconds=seconds)
        if span is not None:
            span.event("dead_letter", {"bus.dead_letter.id": dead_id, "error.type": failure.code})
        for refusal in refusals(delivery, progress.subject, progress.envelope, agent=self._agent, failure=failure):
            parent = span.context if span is not None else None
            try:
                await self._publisher.publish(refusal, parent=parent, ttl_s=REFUSAL_TTL_S)
            except BusError as problem:
                if problem.info.code == "broker.unavailable":
                    raise
                # It will not be stored later either, and waiting for it would hold the poison in the stream.
                log.warning("%s is not told about dead letter %d: %s", refusal.to, dead_id, problem.info.message)
        # Last, because it removes the message from the stream.
        await self._connection.publish(delivery.reply, b"+TERM")

    def _will_come_again(
        self, what: str, kind: Kind, ids: dict[str, str | None], problem: BusError, span: Span | None
    ) -> None:
        self._deliveries.settled(*kind, metrics.UNSETTLED, problem.info.code, None)
        log.warning(
            "%s to %s is not settled and will come again: %s", what, self._agent, problem.info.message, extra=ids
        )
        if span is not None:
            span.event("settle_failed", {"error.type": problem.info.code})
            span.fail(problem.info.code, f"not settled: {problem.info.message}")
            span.set({"bus.settlement": "failed"})

    async def hand_back(self, delivery: Delivery) -> None:
        """Gives a delivery that did not begin, or was cancelled, back to the broker; it runs elsewhere at once."""
        try:
            await self._connection.publish(delivery.reply, b"-NAK")
        except BusError as problem:
            log.warning("a message to %s comes again after its ack wait: %s", self._agent, problem.info.message)

    def _named(self, progress: _Progress) -> tuple[str, Kind, dict[str, str | None]]:
        envelope = progress.envelope
        if envelope is None:
            return "a message", (metrics.OTHER, None), {}
        return f"{envelope.type} {envelope.message_id}", (envelope.type, envelope.phase), ids_of(envelope)

    def _what(self, progress: _Progress) -> str:
        if progress.envelope is None:
            return f"a message to {self._agent}"
        return f"{progress.envelope.type} {progress.envelope.message_id} to {self._agent}"
