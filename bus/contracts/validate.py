"""Validation: a payload against the model that a handler names."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from bus.errors import error

MAX_PROBLEMS = 50


def validate(payload: Any, model: type[BaseModel]) -> BaseModel:
    """The payload as an instance of `model`.

    Raises Rejected `tool.validation_failed` with every path that is wrong (at most 50), the model's JSON
    Schema, and a sentence that names the first few problems.
    """
    try:
        # As `model_validate` does it, for half of the price.
        valid: BaseModel = model.__pydantic_validator__.validate_python(payload)
    except ValidationError as failed:
        found = failed.errors(include_url=False, include_context=False, include_input=False)
        problems = [
            {"path": ".".join(["payload", *(str(part) for part in one["loc"])]), "problem": one["msg"]}
            for one in found[:MAX_PROBLEMS]
        ]
        shown = "; ".join(f"{one['path']}: {one['problem']}" for one in problems[:3])
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        raise error(
            "tool.validation_failed",
            f"the payload is not a {model.__name__}: {shown}{more}",
            errors=problems,
            schema=model.model_json_schema(),
            repairs_left=0,
        ) from None
    return valid
