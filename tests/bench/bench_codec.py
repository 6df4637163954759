"""What the codec costs: microseconds for one encode and one decode with its check. Run it, it prints a table.

Beside it stand plain orjson to a dict, which checks nothing, and a pydantic model of the same fields with the
same limits. The best of many short interleaved rounds counts, because a shared machine only ever adds time.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import orjson
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from rich.console import Console
from rich.table import Table

from bus.envelope import Envelope, derive_message_id, new_message_id, new_trace_id

ROUNDS = 400
CALLS = 25

Id = Annotated[str, Field(min_length=1, max_length=128)]
Name = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]


class PydanticEnvelope(BaseModel):
    """The same fields and limits for pydantic; the registered extensions are left unchecked."""

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    version: Literal["1.2"]
    message_id: Id
    trace_id: Id
    session_id: Id | None = None
    workflow_id: Id | None = None
    sender: Name = Field(alias="from")
    to: Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9_-]{1,64})$")]
    role: Literal["user", "assistant", "system", "tool"] | None = None
    type: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,63}$")]
    phase: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    status: Literal["pending", "success", "error", "cancelled"] | None = None
    timestamp: AwareDatetime | None = None
    extensions: dict[str, Any] = {}
    payload: Any = {}


def message(payload: Any) -> bytes:
    """A message as an agent sends it in a workflow."""
    return Envelope(
        sender="writer",
        to="reviewer",
        type="review_request",
        workflow_id=new_message_id(),
        role="assistant",
        phase="review",
        extensions={"causation_id": new_message_id(), "hops": 2, "path": ["planner", "writer"]},
        payload=payload,
    ).encode()


def messages() -> dict[str, bytes]:
    """The three messages that are measured, by what they are."""
    row = {"id": 1, "name": "a section", "score": 0.5, "tags": ["draft", "short"]}
    return {
        "700 B": message({"title": "x" * 40, "text": "word " * 40}),
        "10 KB text": message({"title": "x" * 40, "text": "word " * 1900}),
        "10 KB rows": message({"rows": [row] * 150}),
    }


def best_us(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The best mean of a short run of each call, in microseconds."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            started = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            best[name] = min(best[name], (time.perf_counter_ns() - started) / CALLS / 1000)
    return best


def measure(data: bytes) -> list[tuple[str, float, float]]:
    """(codec, encode us, decode us) for one message."""
    fields, envelope = orjson.loads(data), Envelope.decode(data)
    model = PydanticEnvelope.model_validate_json(data)
    encode = best_us(
        {
            "orjson to dict": lambda: orjson.dumps(fields),
            "Envelope": envelope.encode,
            "pydantic": lambda: model.model_dump_json(by_alias=True),
        }
    )
    decode = best_us(
        {
            "orjson to dict": lambda: orjson.loads(data),
            "Envelope": lambda: Envelope.decode(data),
            "pydantic": lambda: PydanticEnvelope.model_validate_json(data),
        }
    )
    return [(name, encode[name], decode[name]) for name in encode]


def main() -> None:
    """Print the table."""
    table = Table("message", "codec", "encode us", "decode and check us", title="codec")
    for name, data in messages().items():
        for codec, encode, decode in measure(data):
            table.add_row(f"{name} ({len(data)} bytes)", codec, f"{encode:.2f}", f"{decode:.2f}")
    made = best_us(
        {
            "Envelope(...)": lambda: Envelope(sender="a", to="b", type="note"),
            "new_message_id()": new_message_id,
            "new_trace_id()": new_trace_id,
            "derive_message_id(...)": lambda: derive_message_id("m" * 36, "writer", "1"),
            "datetime.now(UTC).isoformat()": lambda: datetime.now(UTC).isoformat(),
        }
    )
    console = Console()
    console.print(table)
    for name, cost_us in made.items():
        console.print(f"{name:32} {cost_us:.2f} us")


if __name__ == "__main__":
    main()
