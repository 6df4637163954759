"""Gates: every path, near misses, coercion, defaults (TOOL-3, SEC-7)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from bus.calls.call import Call
from bus.calls.capability import Capability
from bus.calls.coercion import Defaults, coerce
from bus.calls.gate import Gate
from bus.errors import Rejected, ToolError

SCHEMA = {
    "type": "object",
    "$defs": {"Place": {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False}},
    "properties": {
        "place": {"$ref": "#/$defs/Place"},
        "days": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 3},
        "wind": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["place"],
}


def test_every_path_is_named_and_a_slip_is_told_what_it_was_meant_for() -> None:
    found = {one["path"]: one["problem"] for one in Gate(SCHEMA, "arguments").problems(
        {"place": {"citi": "Bern"}, "days": "x", "tags": ["a", 1]}
    )}  # fmt: skip
    assert set(found) == {"arguments.place", "arguments.days", "arguments.tags.1"}
    assert "did you mean `city`" in found["arguments.place"]
    assert "integer" in found["arguments.days"]


def test_a_remote_reference_is_refused_and_never_fetched() -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1"):
        Gate({"$ref": "http://127.0.0.1:9/schema"}, "arguments")


def test_an_unknown_name_that_the_schema_allows_is_a_warning() -> None:
    gate = Gate(SCHEMA, "arguments")
    assert gate.unknown_names({"plase": {}, "zebra": 1}) == ["unknown argument 'plase'; did you mean 'place'?"]
    assert gate.unknown_names({"place": {}}) == []


@pytest.mark.parametrize(
    ("given", "read", "paths"),
    [
        ({"place": {}, "days": "26"}, {"place": {}, "days": 26}, ["arguments.days"]),
        ({"place": '{"city": "Bern"}'}, {"place": {"city": "Bern"}}, ["arguments.place"]),
        ({"place": {}, "wind": "True"}, {"place": {}, "wind": True}, ["arguments.wind"]),
        ({"place": {}, "days": "many"}, {"place": {}, "days": "many"}, []),
        ({"place": {"city": 7}}, {"place": {"city": 7}}, []),
    ],
)
def test_text_that_is_unmistakably_something_else_is_read_as_it(given: Any, read: Any, paths: list[str]) -> None:
    before = repr(given)
    assert coerce(Gate(SCHEMA, "arguments"), given) == (read, paths)
    assert repr(given) == before


def test_defaults_are_filled_in_and_the_given_object_stays() -> None:
    given: dict[str, Any] = {"place": {}}
    assert Defaults(SCHEMA).fill(given) == {"place": {}, "days": 3, "wind": False}
    assert given == {"place": {}}


class Place(BaseModel):
    city: str


async def by_model(place: Place) -> Place:
    return place


async def by_names(city: str, days: int = 3, *, call: Call) -> list[str]:
    return [city] * days


async def by_dict(arguments: dict[str, Any]) -> Any:
    return arguments


@pytest.mark.parametrize(
    ("function", "arguments", "data"),
    [
        (by_model, {"city": "Bern"}, {"city": "Bern"}),
        (by_names, {"city": "Bern"}, ["Bern"] * 3),
        (by_dict, {"any": [1]}, {"any": [1]}),
    ],
)
async def test_a_signature_gives_the_schemas(function: Any, arguments: Any, data: Any) -> None:
    capability = Capability("a.b", function, lenient=False, fields={"description": "x"})
    admitted, _ = capability.admit(arguments)
    assert capability.release(await capability.run(admitted, None)) == data


def test_plain_parameters_take_no_others() -> None:
    capability = Capability("a.b", by_names, lenient=False, fields={"description": "x"})
    with pytest.raises(Rejected, match="did you mean `city`"):
        capability.admit({"citi": "Bern"})


def test_a_result_that_the_card_does_not_promise_is_refused() -> None:
    capability = Capability("a.b", by_model, lenient=False, fields={"description": "x"})
    wrong: Any = 3
    for returned in ({"city": 1}, object(), Place.model_construct(city=wrong)):
        with pytest.raises(ToolError) as refused:
            capability.release(returned)
        assert refused.value.info.code == "tool.invalid_result"


def test_star_arguments_are_refused() -> None:
    async def loose(*parts: str) -> str:
        return "".join(parts)

    with pytest.raises(TypeError, match="plain named parameters"):
        Capability("a.b", loose, lenient=False, fields={"description": "x"})
