"""The error table and the exceptions (REG-6)."""

import pickle
import re
from pathlib import Path

import orjson
import pytest

from bus.errors import (
    TABLE,
    Advice,
    BrokerError,
    BusError,
    ErrorInfo,
    PermanentFailure,
    RegistryError,
    Rejected,
    RetryLater,
    ToolError,
    error,
    kind,
)

SPECIFICATION = Path(__file__).parents[2] / "schemas" / "README.md"
CODE = re.compile(r"[a-z]+\.[a-z_]+")


def specified_rows() -> list[tuple[str, ...]]:
    """The rows of the table under `## Errors` in the wire specification, without its head."""
    section = SPECIFICATION.read_text().split("\n## Errors\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if re.match(r"\| \d", line)]
    return [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows]


def test_the_specification_shows_the_same_table() -> None:
    """REG-6: one table."""
    assert specified_rows() == [
        (
            str(row.number),
            f"`{row.code}`",
            str(row.json_rpc),
            "yes" if row.retryable else "no",
            row.advice.value,
            row.when,
            ", ".join(f"`{alias}`" for alias in row.aliases),
        )
        for row in TABLE.values()
    ]


def test_codes_numbers_and_aliases_are_unique_and_in_order() -> None:
    """REG-6."""
    numbers = [row.number for row in TABLE.values()]
    assert numbers == sorted(set(numbers))
    names = [name for row in TABLE.values() for name in (row.code, *row.aliases)]
    assert len(names) == len(set(names))
    assert all(CODE.fullmatch(code) for code in TABLE)


def test_json_rpc_codes_are_standard_or_our_own_number() -> None:
    """REG-6: never another number inside the reserved range."""
    standard = {-32700, -32600, -32601, -32602, -32603}
    assert all(row.json_rpc in standard or row.json_rpc == row.number for row in TABLE.values())


@pytest.mark.parametrize(
    ("number", "code"),
    [(3002, "tool.timeout"), (3004, "agent.busy"), (3101, "tool.unknown_capability")],
)
def test_promised_numbers(number: int, code: str) -> None:
    """REG-6 names these three."""
    assert TABLE[code].number == number


@pytest.mark.parametrize(
    ("alias", "code"),
    [("payload.invalid", "tool.validation_failed"), ("timeout", "tool.timeout"), ("agent.busy", "agent.busy")],
)
def test_an_alias_is_read_as_its_code(alias: str, code: str) -> None:
    """REG-6."""
    assert kind(alias).code == code
    assert error(alias, "why").info.code == code


def test_an_unknown_code_is_refused_with_the_known_ones() -> None:
    """REG-6: errors come from the table only."""
    with pytest.raises(KeyError, match=r"tool\.wrong.*protocol\.malformed"):
        error("tool.wrong", "why")
    with pytest.raises(KeyError):
        ErrorInfo("tool.wrong", "why", retryable=False)


@pytest.mark.parametrize("code", TABLE)
def test_every_code_survives_the_wire(code: str) -> None:
    """REG-6: code, number, message, retryable, advice, details."""
    raised = error(code, "what, where, what to do", path="extensions.hops", limit=64)
    wire = raised.info.to_wire()
    assert list(wire) == ["code", "number", "message", "retryable", "advice", "details"]
    assert wire["number"] == TABLE[code].number
    assert wire["advice"] == TABLE[code].advice
    assert wire["details"] == {"path": "extensions.hops", "limit": 64}
    assert ErrorInfo.from_wire(orjson.loads(orjson.dumps(wire))) == raised.info


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("protocol.malformed", Rejected),
        ("tool.validation_failed", Rejected),
        ("auth.permission_denied", Rejected),
        ("registry.agent_not_found", RegistryError),
        ("agent.busy", ToolError),
        ("broker.full", BrokerError),
        ("internal.error", BusError),
    ],
)
def test_the_class_follows_from_the_number(code: str, expected: type[BusError]) -> None:
    """REG-6."""
    raised = error(code, "why")
    assert type(raised) is expected
    assert str(raised) == f"{code}: why"


def test_retryable_against_the_table_changes_the_advice() -> None:
    """DEL-3: what may be retried advises it, what may not does not."""
    assert error("tool.execution_failed", "why").info.advice is Advice.SWITCH_TOOL
    assert error("tool.execution_failed", "why", retryable=True).info.advice is Advice.RETRY
    assert error("tool.timeout", "why", retryable=False).info.advice is Advice.STOP
    assert error("registry.agent_not_found", "why").info.advice is Advice.SWITCH_TOOL


def test_retry_later_says_when() -> None:
    """DEL-3."""
    info = RetryLater(1.5).info
    assert (info.code, info.retryable, info.advice) == ("tool.execution_failed", True, Advice.RETRY)
    assert info.retry_after_ms == 1500
    assert RetryLater(-1).info.retry_after_ms == 0
    assert error("agent.busy", "why").info.retry_after_ms is None


def test_permanent_failure_is_never_retried() -> None:
    """DEL-3."""
    info = PermanentFailure("no such order", order="7").info
    assert (info.code, info.retryable, info.details) == ("tool.execution_failed", False, {"order": "7"})


def test_json_rpc_tells_unreadable_bytes_from_a_wrong_shape() -> None:
    """REG-6, EDGE-1."""
    assert error("protocol.malformed", "why", not_json=True).info.json_rpc == -32700
    assert error("protocol.malformed", "why", path="from").info.json_rpc == -32600
    assert error("agent.busy", "why").info.json_rpc == 3004


def test_a_code_of_a_newer_peer_is_read_as_internal_error() -> None:
    """REG-6, ENV-6: a reader survives what it does not know."""
    wire = {"code": "tool.melted", "number": 3999, "message": "hot", "retryable": True, "advice": "cool"}
    info = ErrorInfo.from_wire(wire)
    assert (info.code, info.message, info.retryable) == ("internal.error", "hot", True)
    assert info.details == {"received": {"code": "tool.melted", "number": 3999, "advice": "cool"}}


@pytest.mark.parametrize(
    "wire", [{}, {"code": "agent.busy"}, {"code": 3004, "message": "why"}, {"code": "x", "message": 1}]
)
def test_what_is_no_error_is_refused(wire: dict[str, object]) -> None:
    """REG-6."""
    with pytest.raises(ValueError, match="code"):
        ErrorInfo.from_wire(wire)


def test_odd_optional_members_on_the_wire_fall_back_to_the_table() -> None:
    """REG-6."""
    info = ErrorInfo.from_wire({"code": "timeout", "message": "late", "retryable": "yes", "details": [1]})
    assert (info.code, info.retryable, info.details) == ("tool.timeout", True, {})


def test_an_error_info_is_frozen_and_keeps_its_own_details() -> None:
    """REG-6."""
    details = {"limit": 1}
    info = ErrorInfo("protocol.too_large", "why", details, retryable=False)
    details["limit"] = 2
    assert info.details == {"limit": 1}
    with pytest.raises(AttributeError):
        info.message = "other"  # type: ignore[misc]
    assert len({info, ErrorInfo("protocol.too_large", "why", {"limit": 1}, retryable=False)}) == 1


@pytest.mark.parametrize(
    "raised",
    [
        error("agent.busy", "why", queue=256),
        RetryLater(2),
        PermanentFailure("no", order="7"),
        error("internal.error", "x"),
    ],
)
def test_errors_can_be_pickled(raised: BusError) -> None:
    """REG-6: they cross process borders, as in a pool of workers."""
    restored = pickle.loads(pickle.dumps(raised))
    assert type(restored) is type(raised)
    assert restored.info == raised.info
    assert str(restored) == str(raised)
    assert restored.args == raised.args
