"""The catalogue as an AsyncAPI 3 document: channels are the bus's subjects, messages are envelopes with their payload.

AsyncAPI's own schema language is draft-07 with references from the document's root. So the contracts are rewritten:
`$defs` become components, words of 2020-12 become those of draft-07, and a `$ref` with siblings becomes an `allOf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bus.contracts.catalogue import Catalogue, Contract, Version
from bus.contracts.lock import ANYBODY
from bus.contracts.version import show_version
from bus.contracts.well_formed import resolve
from bus.envelope.grammar import AGENT_NAME, MAX_ID_CHARS, TYPE_NAME
from bus.envelope.versions import SUPPORTED

ASYNCAPI_VERSION: Final = "3.0.0"
NAMESPACE: Final = "bus"
ENVELOPE: Final = "envelope"
_LANES: Final = ["high", "normal", "low", *(f"key-{lane:02}" for lane in range(16))]
_DATA: Final = frozenset({"const", "enum", "default", "examples"})
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
_DROPPED: Final = frozenset({"$schema", "$id", "$defs", "definitions", "$comment", "$anchor", "$vocabulary"})


def asyncapi(catalogue: Catalogue, *, title: str) -> dict[str, Any]:
    """The document, as JSON values. Of each type it has the newest minor of every major."""
    newest = [contract.of_major(major)[-1] for contract in catalogue.contracts.values() for major in contract.majors]
    schemas: dict[str, Any] = {ENVELOPE: _envelope()}
    for version in newest:
        schemas |= _schemas(version)
    channels, operations = _traffic(catalogue)
    versions = [show_version(one.number) for one in newest]
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {
            "title": title,
            "version": "1.0.0",
            "description": f"Made from the catalogue of {len(catalogue.contracts)} contracts "
            f"({len(versions)} majors) by `bus schema docs`.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": {_key(one): _message(one, catalogue.contracts[one.type]) for one in newest},
            "schemas": schemas,
        },
    }


def _traffic(catalogue: Catalogue) -> tuple[dict[str, Any], dict[str, Any]]:
    """One channel a receiver and type (its subject), one for every broadcast; one operation a party."""
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for contract in catalogue.contracts.values():
        keys = [_key(contract.of_major(major)[-1]) for major in contract.majors]
        direct = [name for name in contract.entry.receivers if name != ANYBODY]
        names = [f"{name}.{contract.type}" for name in direct]
        if ANYBODY in contract.entry.receivers or not direct:
            names.append(f"events.{contract.type}")
        for name in names:
            channels[name] = _channel(name, contract, keys)
        for sender in contract.entry.senders:
            if sender != ANYBODY:
                for name in names:
                    operations[f"{sender}.sends.{name}"] = _operation("send", sender, name, contract, keys)
        for name, receiver in zip(names, direct, strict=False):
            operations[f"{receiver}.receives.{name}"] = _operation("receive", receiver, name, contract, keys)
    return channels, operations


def _channel(name: str, contract: Contract, keys: list[str]) -> dict[str, Any]:
    receiver = name.split(".", maxsplit=1)[0]
    sender = {"description": "The agent that sends it.", **_examples(contract.entry.senders)}
    if name.startswith("events."):
        address = f"{NAMESPACE}.v1.event.{{sender}}.{{workflow}}.{contract.type}"
        parameters = {"sender": sender, "workflow": {"description": "The workflow's id, or - without one."}}
        what = f"Broadcasts of {contract.type}."
    else:
        address = f"{NAMESPACE}.v1.work.{receiver}.{{lane}}.{{sender}}.{contract.type}"
        parameters = {
            "lane": {
                "description": "The priority, or the lane of a partition key.",
                "enum": _LANES,
                "default": "normal",
            },
            "sender": sender,
        }
        what = f"{contract.type} for {receiver}."
    messages = {key: {"$ref": f"#/components/messages/{key}"} for key in keys}
    return {"address": address, "description": what, "messages": messages, "parameters": parameters}


def _operation(action: str, agent: str, channel: str, contract: Contract, keys: list[str]) -> dict[str, Any]:
    at = f"#/channels/{channel}"
    return {
        "action": action,
        "summary": f"{agent} {action}s {contract.type}",
        "channel": {"$ref": at},
        "messages": [{"$ref": f"{at}/messages/{key}"} for key in keys],
        "tags": [{"name": agent}],
    }


def _message(version: Version, contract: Contract) -> dict[str, Any]:
    schema: Mapping[str, Any] = version.schema if isinstance(version.schema, dict) else {}
    title, description = schema.get("title"), schema.get("description")
    owner = f" Owner: {contract.entry.owner}." if contract.entry.owner else ""
    payload = {
        "allOf": [
            {"$ref": f"#/components/schemas/{ENVELOPE}"},
            {
                "type": "object",
                "properties": {
                    "type": {"const": version.type},
                    "payload": {"$ref": f"#/components/schemas/{_key(version)}"},
                },
            },
        ]
    }
    said = {
        "name": version.type,
        "title": title if isinstance(title, str) else version.type,
        "summary": f"{version}{owner}",
        "contentType": "application/json",
        "payload": payload,
    }
    if isinstance(description, str):
        said["description"] = description
    return said


def _schemas(version: Version) -> dict[str, Any]:
    """The contract of one version and its definitions as components."""
    if not isinstance(version.schema, dict):
        return {_key(version): version.schema}
    own = _key(version)
    rewrite = _Rewrite(own, version.schema)
    found = {own: rewrite.schema(version.schema)}
    while rewrite.wanted:
        name, node = rewrite.wanted.popitem()
        found[name] = rewrite.schema(node)
    return found


class _Rewrite:
    """One contract into draft-07 with references from the document's root; each target becomes a component once."""

    def __init__(self, own: str, root: Mapping[str, Any]) -> None:
        self._own = own
        self._root = root
        self._names: dict[str, str] = {"#": own}
        self.wanted: dict[str, Any] = {}

    def schema(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        made: dict[str, Any] = {}
        reference = node.get("$ref")
        for name, value in node.items():
            if name not in _DROPPED and name != "$ref":
                self._word(name, value, node, made)
        if not isinstance(reference, str):
            return made
        target = {"$ref": f"#/components/schemas/{self._component(reference)}"}
        return {**made, "allOf": [target, *made.get("allOf", [])]} if made else target

    def _word(self, name: str, value: Any, node: Mapping[str, Any], made: dict[str, Any]) -> None:
        if name in _DATA or name.startswith("x-"):
            made[name] = value
        elif name == "prefixItems":
            made["items"] = [self.schema(one) for one in value]
        elif name == "items" and "prefixItems" in node:
            made["additionalItems"] = self.schema(value)
        elif name in ("dependentRequired", "dependentSchemas"):
            below = value if name == "dependentRequired" else {key: self.schema(one) for key, one in value.items()}
            made["dependencies"] = {**made.get("dependencies", {}), **below}
        elif name in _NAMED and isinstance(value, dict):
            made[name] = {key: self.schema(one) for key, one in value.items()}
        elif isinstance(value, list):
            made[name] = [self.schema(one) for one in value]
        else:
            made[name] = self.schema(value)

    def _component(self, reference: str) -> str:
        known = self._names.get(reference)
        if known is None:
            words = "".join(char if char.isascii() and char.isalnum() else "_" for char in reference[2:])
            known = f"{self._own}_{words.removeprefix('_defs_').removeprefix('definitions_')}"
            taken = set(self._names.values())
            while known in taken:
                known += "_"
            self._names[reference] = known
            self.wanted[known] = resolve(self._root, reference)
        return known


def _envelope() -> dict[str, Any]:
    text = {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS}
    return {
        "title": "Envelope",
        "description": "What every message is; the wire specification has all of its rules.",
        "type": "object",
        "required": ["version", "message_id", "trace_id", "from", "to", "type"],
        "properties": {
            "version": {"description": "The version of the envelope.", "enum": sorted(SUPPORTED)},
            "message_id": {"description": "The id of this message.", **text},
            "trace_id": {"description": "The trace that it belongs to.", **text},
            "from": {"description": "The agent that wrote it.", "type": "string", "pattern": AGENT_NAME},
            "to": {"description": "The agent that it is for, or * for everybody.", "type": "string"},
            "type": {"description": "What kind of message it is.", "type": "string", "pattern": TYPE_NAME},
            "extensions": {
                "description": "Metadata; `schema` says the payload's contract as type@major.minor.",
                "type": "object",
                "properties": {"schema": {"type": "string"}},
            },
            "payload": {"description": "What it says: the contract of its type."},
        },
    }


def _examples(names: tuple[str, ...]) -> dict[str, Any]:
    found = [name for name in names if name != ANYBODY]
    return {"examples": found} if found else {}


def _key(version: Version) -> str:
    return f"{version.type}_v{version.number[0]}"
