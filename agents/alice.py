"""alice: an agent that can add numbers.

bus run agents.alice:alice
bus call calculator.add '{"a": 1, "b": 2}'
"""

from pydantic import BaseModel

from bus import Agent

alice = Agent("alice")


class Sum(BaseModel):
    """What an addition comes to."""

    sum: float


@alice.capability("calculator.add", example={"a": 1, "b": 2}, idempotent=True, lenient=True, timeout_s=5)
async def add(a: float, b: float) -> Sum:
    """Adds two numbers."""
    return Sum(sum=a + b)
