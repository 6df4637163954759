"""Answers: a replica tells who asks which schema it reads a message type with (SCH-5)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from bus.contracts.accepts import Accepts

log = logging.getLogger("bus.registry")

Models = Mapping[str, type[BaseModel] | None]


class Answers:
    """What one replica answers on `<ns>.v1.contracts.<agent>`. Every replica does, because they may differ."""

    __slots__ = ("_accepts", "_agent", "_max_bytes", "_models", "_replica")

    def __init__(self, agent: str, replica: str, accepts: Accepts, models: Models, *, max_bytes: int) -> None:
        self._agent = agent
        self._replica = replica
        self._accepts = accepts
        self._models = models
        self._max_bytes = max_bytes

    def to(self, question: bytes) -> bytes:
        """The answer to `{"type": ...}`; to anything else, and for a type without a handler, what it handles."""
        try:
            asked = orjson.loads(question)
        except orjson.JSONDecodeError:
            asked = None
        type = asked.get("type") if isinstance(asked, dict) else None
        answer: dict[str, Any] = {"agent": self._agent, "replica": self._replica, "type": type}
        if not isinstance(type, str) or type not in self._accepts.majors:
            return orjson.dumps({**answer, "handles": sorted(self._accepts.majors)})
        majors = self._accepts.majors[type]
        answer |= {
            "schema": self._accepts.versions.get(type),
            "majors": None if majors is None else sorted(majors),
            "json_schema": _schema(self._models.get(type)),
        }
        data = orjson.dumps(answer)
        if len(data) > self._max_bytes:
            data = orjson.dumps({**answer, "json_schema": None})
        return data


def _schema(model: type[BaseModel] | None) -> dict[str, Any] | None:
    """What a reader with this model accepts; None when it takes any JSON, or pydantic cannot say."""
    if model is None:
        return None
    try:
        return model.model_json_schema(mode="validation")
    except PydanticUserError as problem:
        log.debug("%s has no JSON Schema: %s", model.__qualname__, problem)
        return None
