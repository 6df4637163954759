"""The payloads of the brief (SCH-1, ENV-4): described, bounded, and unknown fields are ignored."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel, ValidationError

from agents.planning import plan
from schemas import brief
from schemas.brief import (
    AgentMessage,
    BriefFailed,
    BriefReady,
    DraftRequest,
    Passage,
    Plan,
    PlanRequest,
    Problem,
    Quote,
    Reason,
    ReviewRequest,
    SourceRef,
    Theme,
)

PAYLOADS = [PlanRequest, DraftRequest, ReviewRequest, AgentMessage, BriefReady, BriefFailed, Plan]
SOURCE = {"file": "a.md", "sha256": "0" * 64, "size_bytes": 3}
INLINE_LIMIT_BYTES = 256 * 1024


@pytest.mark.parametrize("model", PAYLOADS)
def test_every_field_is_described(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    for part in [schema, *schema.get("$defs", {}).values()]:
        for name, field in part.get("properties", {}).items():
            described = field.get("description") or "$ref" in field or "$ref" in str(field.get("anyOf", ""))
            assert described, f"{part['title']}.{name} has no description"


def test_unknown_fields_are_ignored() -> None:
    request = PlanRequest.model_validate({"goal": "x", "sources": [SOURCE | {"more": 1}], "later": True})
    assert request.sections == 4
    assert "later" not in request.model_dump()


@pytest.mark.parametrize(
    "payload",
    [
        {"goal": "", "sources": [SOURCE]},
        {"goal": "x" * 1001, "sources": [SOURCE]},
        {"goal": "x", "sources": []},
        {"goal": "x", "sources": [SOURCE], "sections": 13},
        {"goal": "x", "sources": [SOURCE], "rounds": -1},
        {"goal": "x", "sources": [SOURCE | {"sha256": "abc"}]},
    ],
)
def test_sizes_are_bounded(payload: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PlanRequest.model_validate(payload)


def test_the_reasons_are_those_of_the_contract() -> None:
    assert {reason.value for reason in Reason} == {"missing_evidence", "off_topic", "redundant", "too_short"}


def test_the_largest_revision_fits_into_a_message() -> None:
    text = "\u6d88" * brief.MAX_SENTENCE_CHARS
    quote = Quote(file="f" * 200, line=1, text=text)
    passage = Passage(**quote.model_dump(), score=1, order=1, heading="h" * 200)
    theme = Theme(index=0, question="q" * 300, keywords=["k" * 100] * 16, candidates=[passage] * brief.MAX_CANDIDATES)
    problem = Problem(reason=Reason.REDUNDANT, quote=quote, detail="d" * 600)
    message = AgentMessage(
        reason=Reason.REDUNDANT,
        index=0,
        round=1,
        problems=[problem] * (brief.MAX_SENTENCES + 1),
        sentences=[quote] * brief.MAX_SENTENCES,
        avoid=[quote] * (brief.MAX_CANDIDATES + brief.MAX_SENTENCES),
        theme=theme,
    )
    assert len(message.model_dump_json().encode()) < INLINE_LIMIT_BYTES


def test_a_plan_survives_the_wire() -> None:
    themes = plan("kites", 2, {"a.md": "A kite of silk flies higher than a kite of paper."})
    planned = Plan(goal="kites", rounds=1, sources=[SourceRef.model_validate(SOURCE)], themes=themes)
    assert Plan.model_validate(json.loads(planned.model_dump_json())) == planned
