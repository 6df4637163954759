"""Payloads of the example workflow `brief`: plan, draft, review, revise, done.

The order of one brief::

    plan_request    client   -> planner    what to answer, and the sources by reference
    draft_request   planner  -> writer     one theme: question, keywords, candidate passages
    review_request  writer   -> reviewer   a section: quoted sentences with citations
    agent_message   reviewer -> writer     what is wrong with a section, machine readable
    brief_ready     reviewer -> *          where the finished brief is
    brief_failed    planner  -> *          why there is none

`__contract__` is a payload's version in the catalogue: `<type>/<major>.<minor>.json` beside this file, made from the
model by `bus schema generate`. Readers ignore fields that they do not know. Every size is bounded, so that no message
grows past the limit of the wire; the texts of the sources never travel here, only `SourceRef`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from schemas import examples

MAX_SOURCES = 1000
MAX_SECTIONS = 12
MAX_ROUNDS = 5
MAX_CANDIDATES = 32
MAX_SENTENCES = 6
MIN_SENTENCES = 3
MAX_SENTENCE_CHARS = 500

FileName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=1024,
        description="Name of the source as shown in citations, `/` between parts.",
    ),
]
Line = Annotated[int, Field(ge=1, description="Line of the file, from 1, where the sentence starts.")]
Text = Annotated[
    str,
    Field(min_length=1, max_length=MAX_SENTENCE_CHARS, description="The sentence, verbatim but for line breaks."),
]
SectionIndex = Annotated[int, Field(ge=0, lt=MAX_SECTIONS, description="Position of the section in the brief, from 0.")]
Round = Annotated[
    int, Field(ge=0, le=MAX_ROUNDS, description="Revision round that this belongs to; 0 is the first draft.")
]
Sha256 = Annotated[
    str,
    Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the content, in lower-case hex: its address."),
]


class _Payload(BaseModel):
    """Frozen; fields that a reader does not know are ignored (ENV-4)."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class _Closed(StrEnum):
    """Words that readers act on: a new one would break them, so it takes a new major."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler.resolve_ref_schema(handler(schema))
        found["x-open-enum"] = False
        return found


# Why the linter is told to be silent; each reason is in the contract's file for its readers.
_DEEP = "a theme carries its candidate passages, and a problem the sentence it means"
_OLD_NAME = "older than the rule; it gets its prefix with the next major"


def _documented(example: dict[str, Any], ignored: dict[str, str] | None = None) -> ConfigDict:
    extra: dict[str, Any] = {"examples": [example]}
    if ignored:
        extra["x-lint-ignore"] = dict(ignored)
    return ConfigDict(json_schema_extra=extra)


class Reason(_Closed):
    """Why the reviewer sends a section back."""

    MISSING_EVIDENCE = "missing_evidence"
    OFF_TOPIC = "off_topic"
    REDUNDANT = "redundant"
    TOO_SHORT = "too_short"


class FailureReason(_Closed):
    """Why there is no brief."""

    NO_RELEVANT_PASSAGE = "no_relevant_passage"


class SourceRef(_Payload):
    """One document, by reference: its text is the artifact with this digest."""

    file: FileName
    sha256: Sha256
    size_bytes: int = Field(ge=1, description="Size of the document in bytes.")


class Citation(_Payload):
    """A place in a source."""

    file: FileName
    line: Line


class Quote(Citation):
    """A sentence of a source and where it starts."""

    text: Text


class Passage(Quote):
    """A sentence that a section may use, with what the planner knows about it."""

    score: float = Field(ge=0, description="How well it answers the question, 1 for the best of the theme.")
    order: int = Field(ge=0, description="Position of the sentence in its file, from 0.")
    leans: bool = Field(
        default=False, description="True when it needs the sentence before it to be understood (`It ...`)."
    )
    heading: str = Field(default="", max_length=200, description="Nearest heading above it; empty when none.")


class Theme(_Payload):
    """One section to write."""

    index: SectionIndex
    question: str = Field(min_length=1, max_length=300, description="What the section answers; its heading.")
    keywords: list[Annotated[str, Field(max_length=100)]] = Field(
        default_factory=list, max_length=16, description="Terms that belong to the theme, as tokens."
    )
    candidates: list[Passage] = Field(
        min_length=1, max_length=MAX_CANDIDATES, description="Passages to choose from, best first."
    )


class PlanRequest(_Payload):
    """Client to planner: make a brief that answers `goal` from these sources."""

    __contract__ = "plan_request@1.0"
    model_config = _documented(examples.PLAN_REQUEST)

    goal: str = Field(min_length=1, max_length=1000, description="The question that the brief answers.")
    sections: int = Field(default=4, ge=1, le=MAX_SECTIONS, description="How many sections at most.")
    rounds: int = Field(
        default=2, ge=0, le=MAX_ROUNDS, description="How many revision rounds before accepting with remarks."
    )
    sources: list[SourceRef] = Field(min_length=1, max_length=MAX_SOURCES, description="The documents, by reference.")


class DraftRequest(_Payload):
    """Planner to writer: write this section."""

    __contract__ = "draft_request@1.0"
    model_config = _documented(examples.DRAFT_REQUEST, {"boolean-prefix": _OLD_NAME, "too-deep": _DEEP})

    theme: Theme


class ReviewRequest(_Payload):
    """Writer to reviewer: check this section."""

    __contract__ = "review_request@2.0"
    model_config = _documented(examples.REVIEW_REQUEST)

    index: SectionIndex
    round: Round
    sentences: list[Quote] = Field(
        max_length=MAX_SENTENCES, description="The section, in reading order; empty when nothing fitted."
    )
    is_exhausted: bool = Field(
        default=False, description="True when the candidates cannot give more sentences than these."
    )


class Problem(_Payload):
    """One thing that is wrong with a section."""

    reason: Reason
    quote: Quote | None = Field(
        default=None, description="The sentence at fault; null when the whole section is meant."
    )
    other_index: int | None = Field(
        default=None, ge=0, lt=MAX_SECTIONS, description="`redundant`: the section that says the same."
    )
    detail: str = Field(max_length=600, description="The same for a person, in one line.")


class AgentMessage(_Payload):
    """Reviewer to writer: revise this section; `reason` is the gravest of `problems`."""

    __contract__ = "agent_message@1.0"
    model_config = _documented(examples.AGENT_MESSAGE, {"boolean-prefix": _OLD_NAME, "too-deep": _DEEP})

    reason: Reason
    index: SectionIndex
    round: Round
    problems: list[Problem] = Field(
        min_length=1, max_length=MAX_SENTENCES + 1, description="Everything found, gravest first."
    )
    sentences: list[Quote] = Field(
        max_length=MAX_SENTENCES, description="The section as it was reviewed, to be revised."
    )
    avoid: list[Quote] = Field(
        max_length=MAX_CANDIDATES + MAX_SENTENCES,
        description="Sentences that must not be used: refused ones, and candidates that other sections use.",
    )
    theme: Theme


class Plan(_Payload):
    """The workflow's document `plan`: written once by the planner, read by the reviewer."""

    goal: str = Field(description="As in the plan request.")
    rounds: int = Field(ge=0, le=MAX_ROUNDS, description="As in the plan request.")
    sources: list[SourceRef] = Field(description="As in the plan request, in order of their names.")
    themes: list[Theme] = Field(min_length=1, max_length=MAX_SECTIONS, description="The sections to write.")


class ArtifactInfo(_Payload):
    """A stored artifact, by content."""

    name: str = Field(min_length=1, max_length=255, description="Name for a person; not its address.")
    sha256: Sha256
    size_bytes: int = Field(ge=0, description="Size in bytes.")
    media_type: str = Field(default="text/markdown", max_length=100, description="Media type of the content.")


class SectionSummary(_Payload):
    """One section of the finished brief, in numbers."""

    question: str = Field(max_length=300, description="Heading of the section.")
    sentences: int = Field(ge=0, le=MAX_SENTENCES, description="How many sentences it has.")
    revisions: int = Field(ge=0, le=MAX_ROUNDS, description="How many times it was revised.")
    remarks: list[Annotated[str, Field(max_length=600)]] = Field(
        default_factory=list, max_length=32, description="What stayed imperfect, one line each."
    )


class BriefReady(_Payload):
    """Reviewer to everybody: the brief is finished."""

    __contract__ = "brief_ready@1.2"
    model_config = _documented(examples.BRIEF_READY)

    goal: str = Field(max_length=1000, description="The question that it answers.")
    artifact: ArtifactInfo
    sections: list[SectionSummary] = Field(max_length=MAX_SECTIONS, description="The sections, in order.")
    sources: int = Field(default=0, ge=0, description="How many documents were read; 0 when not told. Since 1.1.")
    sections_with_remarks: int = Field(
        default=0, ge=0, le=MAX_SECTIONS, description="How many sections were accepted with remarks. Since 1.2."
    )


class BriefFailed(_Payload):
    """Planner to everybody: there will be no brief."""

    __contract__ = "brief_failed@1.0"
    model_config = _documented(examples.BRIEF_FAILED)

    reason: FailureReason
    message: str = Field(max_length=1200, description="What is wrong and what to do, in one line.")
