"""The hand-written check and the published JSON Schema give the same verdict (ENV-1, ENV-5).

Envelopes are generated from the rules, then most are changed: a field dropped, another type, a length beside its
limit, odd Unicode, odd timestamps, wrong extensions. Only the verdict counts, not its code.
"""

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from bus.envelope import Envelope
from bus.envelope.codec import FIELDS, ROLES, STATUSES
from bus.envelope.extensions import REGISTERED
from bus.errors import Rejected

SCHEMA = orjson.loads((Path(__file__).parents[3] / "schemas" / "envelope" / "1.2.json").read_bytes())
published = jsonschema_rs.Draft202012Validator(SCHEMA, validate_formats=True)

# Characters that patterns and lengths like to get wrong: two UTF-16 units, combining, digits of other scripts, NUL.
ODD = "\0\n\r \u00a0\u0301\u0663\u200d\u2028\u202e\ufeff\uffff😀İßé_-.*@A0z"
characters = st.characters(codec="utf-8")
texts = st.text(characters) | st.text(st.sampled_from(ODD)) | st.text(st.sampled_from("aZ9_-"))


def beside(limit: int) -> st.SearchStrategy[str]:
    """Texts whose length lies at a limit or next to it."""
    letters = st.sampled_from(["a", "😀", "_", "é"])
    return st.builds(
        lambda letter, length: letter * length, letters, st.sampled_from([0, 1, limit - 1, limit, limit + 1])
    )


def text(limit: int) -> st.SearchStrategy[str]:
    """Texts within a limit, the longest one among them."""
    return st.text(characters, min_size=1, max_size=8) | st.sampled_from(["x" * limit, "😀" * limit])


ids = text(128)
names = st.text(st.sampled_from("aZ09_-"), min_size=1, max_size=5) | st.just("A" * 64)
types = st.text(st.sampled_from("az09_"), max_size=4).map(lambda rest: f"t{rest}") | st.just("t" * 64)
counts = st.integers(0, 2**53 - 1) | st.integers(0, 2**53 - 1).map(float).filter(lambda number: number < 2**53)
timestamps = st.builds(
    "{}T{}{}{}".format,
    st.dates().map(str),
    st.times().map(lambda time: time.isoformat("seconds")),
    st.sampled_from(["", ".5", ".123456", "." + "7" * 32]),
    st.sampled_from(["Z", "z", "+00:00", "-00:00", "+05:30", "-23:59"]),
)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


EXTENSIONS: dict[str, st.SearchStrategy[Any]] = {
    "causation_id": text(128),
    "correlation_id": text(128),
    "reply_to": names,
    "expires_at": timestamps,
    "deliver_at": timestamps,
    "schema": st.builds("{}@{}.{}".format, types, st.integers(0, 999_999), st.integers(0, 999_999)),
    "idempotency_key": text(256),
    "partition_key": text(256),
    "priority": st.sampled_from(["low", "normal", "high"]),
    "data_ref": text(1024),
    "hops": counts,
    "path": st.lists(names, max_size=5) | st.just(["a"] * 1024),
    "budget": st.fixed_dictionaries(
        {}, optional={"deadline_at": timestamps, "calls": counts, "tokens": counts, "euros": payloads}
    ),
    "branch": counts,
    "labels": st.lists(text(64), max_size=5) | st.just(["external"] * 64),
    "on_behalf_of": st.lists(names, max_size=5),
    "recorded": st.booleans(),
    "signature": text(8192),
}
envelopes = st.fixed_dictionaries(
    {
        "version": st.just("1.2"),
        "message_id": ids,
        "trace_id": ids,
        "from": names,
        "to": names | st.just("*"),
        "type": types,
    },
    optional={
        "session_id": ids | st.none(),
        "workflow_id": ids | st.none(),
        "role": st.sampled_from([*ROLES, None]),
        "phase": text(64) | st.none(),
        "status": st.sampled_from([*STATUSES, None]),
        "timestamp": timestamps,
        "extensions": st.fixed_dictionaries({}, optional={**EXTENSIONS, "x_other": payloads}),
        "payload": payloads,
        "importance": payloads,
        "From": payloads,
    },
)
odd_timestamps = st.sampled_from(
    [
        "2016-12-31T23:59:60Z",
        "2017-01-01T05:29:60+05:30",
        "2016-12-31T23:59:60+01:00",
        "2026-01-31T09:30:60Z",
        "2026-02-29T00:00:00Z",
        "2000-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T09:30:00",
        "2026-01-31 09:30:00Z",
        "2026-01-31T09:30Z",
        "2026-01-31T09:30:00+0530",
        "2026-01-31T09:30:00+24:00",
        "2026-01-31T09:30:00.Z",
        "2026-01-31T09:30:00,5Z",
        "2026-01-31T09:30:00." + "7" * 33 + "Z",
        "2026-W05-6T09:30:00Z",
        "20260131T093000Z",
        "\uff12026-01-31T09:30:00Z",
        "2026-01-31T09:30:00Z\n",
        "12026-01-31T09:30:00Z",
    ]
)
# Beside the truth: near misses of one rule or another, which is where two checks would differ.
near_misses = st.one_of(
    beside(64),
    beside(128),
    beside(256),
    beside(1024),
    texts,
    odd_timestamps,
    st.sampled_from(
        ["", "*", "**", "a\n", "a.b", "Note", "note@1.0", "note@01.0", "note@1", "User", "done", "urgent", "1.2", "1.3"]
    ),
    st.booleans() | st.none(),
    st.sampled_from([0, -0.0, 1, 2.0, 1.5, -1, 2**53 - 1, 2**53, float(2**53), 1e300]),
    st.lists(names | texts | st.none(), max_size=3),
    st.sampled_from([["a"] * 64, ["a"] * 65, ["a"] * 1024, ["a"] * 1025, ["l" * 64], ["l" * 65]]),
    st.dictionaries(
        st.sampled_from(["calls", "tokens", "deadline_at", "hops"]), counts | texts | odd_timestamps, max_size=2
    ),
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A valid envelope with up to two changes, which often leave it valid."""
    envelope = copy.deepcopy(draw(envelopes))
    for _ in range(draw(st.integers(0, 2))):
        how = draw(st.sampled_from(["drop", "field", "field", "extension", "extension", "member"]))
        event(f"change: {how}")
        if how == "drop":
            envelope.pop(draw(st.sampled_from(FIELDS)), None)
        elif how == "field":
            envelope[draw(st.sampled_from(FIELDS))] = draw(near_misses)
        else:
            extensions = envelope.get("extensions")
            if not isinstance(extensions, dict):
                extensions = envelope["extensions"] = {}
            if how == "extension":
                extensions[draw(st.sampled_from(list(REGISTERED)))] = draw(near_misses)
            else:
                member = draw(st.sampled_from(["deadline_at", "calls", "tokens", "other"]))
                extensions["budget"] = {member: draw(near_misses)}
    return envelope


def reads(fields: dict[str, Any]) -> bool:
    try:
        Envelope.from_fields(fields)
    except Rejected:
        return False
    return True


def decodes(fields: dict[str, Any]) -> bool:
    try:
        Envelope.decode(orjson.dumps(fields))
    except Rejected:
        return False
    return True


def test_every_generated_envelope_is_valid() -> None:
    """ENV-1: so that a damaged one is a near miss; and the schema accepts whatever the rules allow."""

    @settings(max_examples=200, suppress_health_check=list(HealthCheck))
    @given(envelopes)
    def hunt(fields: dict[str, Any]) -> None:
        assert published.is_valid(fields)
        assert reads(fields)
        assert decodes(fields)

    hunt()


@pytest.mark.parametrize("part", range(4))
def test_the_check_agrees_with_the_schema(part: int) -> None:
    """ENV-1, ENV-5: 1,000 envelopes in four parts, a good part of each on either side."""
    verdicts: Counter[bool] = Counter()

    @settings(max_examples=250, suppress_health_check=list(HealthCheck))
    @given(damaged())
    def hunt(fields: dict[str, Any]) -> None:
        expected = published.is_valid(fields)
        verdicts[expected] += 1
        event(f"valid: {expected}")
        assert reads(fields) == expected
        assert decodes(fields) == expected

    hunt()
    assert min(verdicts[True], verdicts[False]) >= 40, (part, verdicts)


@pytest.mark.parametrize("field", FIELDS)
def test_each_field_alone_agrees(field: str) -> None:
    """ENV-1: one field, anything in it; a valid envelope otherwise."""
    valid = {"version": "1.2", "message_id": "m", "trace_id": "t", "from": "a", "to": "b", "type": "note"}

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(near_misses | payloads)
    def hunt(value: Any) -> None:
        fields = valid | {field: value}
        assert reads(fields) == decodes(fields) == published.is_valid(fields)

    hunt()


@pytest.mark.parametrize("name", REGISTERED)
def test_each_extension_alone_agrees(name: str) -> None:
    """ENV-5: one extension, anything in it."""
    valid = {"version": "1.2", "message_id": "m", "trace_id": "t", "from": "a", "to": "b", "type": "note"}

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(near_misses | EXTENSIONS[name] | payloads)
    def hunt(value: Any) -> None:
        fields = valid | {"extensions": {name: value}}
        assert reads(fields) == decodes(fields) == published.is_valid(fields)

    hunt()


def plain(fragment: Any) -> Any:
    """A schema fragment of Python's read-only views as plain dicts."""
    return {key: plain(value) for key, value in fragment.items()} if hasattr(fragment, "items") else fragment


def test_the_schema_holds_the_registered_extensions() -> None:
    """ENV-5: the published fragments are the code's own."""
    assert SCHEMA["properties"]["extensions"]["properties"] == {
        name: plain(registered.schema) for name, registered in REGISTERED.items()
    }


def test_the_schema_names_every_field_and_describes_it() -> None:
    """ENV-1, EDGE-5."""
    assert tuple(SCHEMA["properties"]) == FIELDS
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    described = [*SCHEMA["properties"].values(), *SCHEMA["properties"]["extensions"]["properties"].values()]
    assert all(part["description"].endswith(".") for part in described)
    jsonschema_rs.meta.validate(SCHEMA)
