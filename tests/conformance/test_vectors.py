"""The golden messages of `schemas/vectors`: every client in every language gives these verdicts (EDGE-5)."""

import base64
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest

from bus.envelope import Envelope
from bus.envelope.codec import FIELDS
from bus.envelope.extensions import REGISTERED
from bus.errors import Rejected

SCHEMAS = Path(__file__).parents[2] / "schemas"
VECTORS = {path.stem: orjson.loads(path.read_bytes()) for path in sorted((SCHEMAS / "vectors").glob("*.json"))}
ACCEPTED = [name for name, vector in VECTORS.items() if vector["expect"] == "accept"]
FILLED: dict[str, Any] = {"session_id": None, "workflow_id": None, "extensions": {}, "payload": {}}


def bytes_of(vector: dict[str, Any]) -> bytes:
    if "bytes_base64" in vector:
        return base64.b64decode(vector["bytes_base64"], validate=True)
    return orjson.dumps(vector["message"])


@pytest.mark.parametrize("name", VECTORS)
def test_the_verdict_is_the_expected_one(name: str) -> None:
    """ENV-1 to ENV-5, DEL-4: the vector's own `rule` says what it proves."""
    vector = VECTORS[name]
    try:
        Envelope.decode(bytes_of(vector))
        verdict: object = "accept"
    except Rejected as rejected:
        verdict = {"code": rejected.info.code}
        orjson.dumps(rejected.info.to_wire())
    assert verdict == vector["expect"], vector["rule"]


@pytest.mark.parametrize("name", ACCEPTED)
def test_an_accepted_message_survives_a_relay(name: str) -> None:
    """ENV-4: nothing is lost or changed between decode and encode; what was absent is filled in."""
    data = bytes_of(VECTORS[name])
    sent, once = orjson.loads(data), Envelope.decode(data)
    twice = Envelope.decode(once.encode())
    assert twice.fields == FILLED | {"timestamp": twice.timestamp} | sent
    assert twice.unknown == {field: value for field, value in sent.items() if field not in FIELDS}
    assert Envelope.decode(twice.encode()) == twice


@pytest.mark.parametrize("name", [name for name, vector in VECTORS.items() if "message" in vector])
def test_the_json_schema_gives_the_same_verdict(name: str) -> None:
    """ENV-1: but for the depth, which JSON Schema cannot say."""
    schema = orjson.loads((SCHEMAS / "envelope" / "1.2.json").read_bytes())
    accepts = jsonschema_rs.Draft202012Validator(schema, validate_formats=True).is_valid(VECTORS[name]["message"])
    assert accepts == (VECTORS[name]["expect"] == "accept" or name.startswith("depth_65"))


def test_the_vectors_are_well_formed() -> None:
    """EDGE-5: a client in another language can rely on their shape."""
    for name, vector in VECTORS.items():
        assert set(vector) in ({"message", "expect", "rule"}, {"bytes_base64", "expect", "rule"}), name
        assert vector["expect"] == "accept" or set(vector["expect"]) == {"code"}, name
        assert vector["rule"].endswith("."), name
        assert vector["rule"].count(". ") == 0, f"{name}: one sentence"
    rules = [vector["rule"] for vector in VECTORS.values()]
    assert len(rules) == len(set(rules))


def test_every_field_and_extension_has_a_refused_vector() -> None:
    """ENV-1, ENV-5: no rule without a proof. The payload has no rule: any JSON value will do."""
    refused = [vector["message"] for vector in VECTORS.values() if vector["expect"] != "accept" and "message" in vector]
    paths = set()
    for message in refused:
        try:
            Envelope.from_fields(message)
        except Rejected as rejected:
            paths.add(rejected.info.details.get("path"))
    assert paths >= set(FIELDS) - {"payload"}
    assert {f"extensions.{name}" for name in REGISTERED} <= {str(path).split("[")[0] for path in paths}
