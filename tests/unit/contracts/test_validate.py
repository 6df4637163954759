"""Payload validation: every path, the schema, a sentence."""

import pytest
from pydantic import BaseModel

from bus import Rejected
from bus.contracts.validate import validate


class Line(BaseModel):
    amount: int


class Order(BaseModel):
    number: int
    lines: list[Line]


def test_every_wrong_path_is_named() -> None:
    with pytest.raises(Rejected) as refused:
        validate({"number": "x", "lines": [{"amount": 1}, {"amount": None}]}, Order)
    info = refused.value.info
    assert info.code == "tool.validation_failed"
    assert [one["path"] for one in info.details["errors"]] == ["payload.number", "payload.lines.1.amount"]
    assert info.details["schema"]["title"] == "Order"
    assert "payload.number" in info.message


def test_a_payload_that_is_no_object() -> None:
    with pytest.raises(Rejected):
        validate(None, Order)
