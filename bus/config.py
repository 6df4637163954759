"""Settings: read once from `BUS_*` variables and keyword arguments, validated once, then frozen."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsError(ValueError):
    """A setting has a wrong value; the message names each one and its range."""


def _default_store_dir() -> Path:
    state_home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state_home).expanduser() / "envelope-bus"


class Settings(BaseSettings):
    """Everything that can be set, in one frozen object. Durations are seconds.

    Every field is also an environment variable: `servers` is `BUS_SERVERS`, and so on.
    Build it with `Settings.load()`, which turns a wrong value into one readable line.
    """

    model_config = SettingsConfigDict(env_prefix="BUS_", frozen=True, extra="ignore", env_ignore_empty=True)

    servers: str = Field("", description="NATS URLs, comma separated; empty: start or reuse the embedded broker")
    namespace: str = Field("bus", pattern=r"^[a-z0-9_-]{1,32}$", description="first token of every subject")
    replicas: Annotated[int, Field(ge=1, le=5, description="copies of every stream (1 or 3)")] = 1
    store_dir: Path = Field(default_factory=_default_store_dir, description="where the embedded broker keeps its files")
    nats_server: str = Field("", description="path of the nats-server binary for the embedded broker")
    creds: str = Field("", description="path of a NATS credentials file")
    tls_ca: str = Field("", description="path of the certificate authority that signed the server")
    tls_cert: str = Field("", description="path of the client certificate")
    tls_key: str = Field("", description="path of the client key")
    connect_timeout_s: Annotated[float, Field(gt=0, le=300)] = 5.0
    publish_timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    heartbeat_s: Annotated[float, Field(ge=0.1, le=3600, description="how often a replica says that it lives")] = 15.0
    lease_ttl_s: Annotated[
        float, Field(ge=1, le=86400, validate_default=True, description="when a silent replica counts as gone")
    ] = 120.0
    ack_wait_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    grace_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 5
    max_deliver: Annotated[int, Field(ge=2, le=1_000_000, description="deliveries before the server gives up")] = 10_000
    max_hops: Annotated[int, Field(ge=1, le=100_000)] = 128
    memory_limit: Annotated[
        int, Field(ge=1024, le=900 * 1024, description="bytes of a workflow's working memory before it is summarised")
    ] = 64 * 1024
    dedupe_window_s: Annotated[float, Field(ge=1, le=30 * 86400)] = 86400.0
    dedupe_max_ids: Annotated[int, Field(ge=1000, le=100_000_000)] = 1_000_000
    work_max_bytes: Annotated[int, Field(ge=1 << 20)] = 1 << 30
    inline_limit: Annotated[int, Field(ge=1024, le=900 * 1024, description="larger payloads travel by reference")] = (
        256 * 1024
    )
    metrics_interval_s: Annotated[float, Field(ge=0.1, le=3600, description="between two looks at the queues")] = 15.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"
    log_redact: str = Field("", description="further names of fields whose values no log line shows, comma separated")
    history_max_age_s: Annotated[float, Field(ge=60)] = 7 * 86400.0
    call_timeout_s: Annotated[float, Field(gt=0, le=86400)] = 10.0
    task_timeout_s: Annotated[float, Field(gt=0, le=7 * 86400, description="what a task has, the wait included")] = (
        86400.0
    )
    max_call_queue: Annotated[int, Field(ge=1, le=1_000_000, description="calls that wait in one replica")] = 256
    micro: bool = Field(True, description="answer the discovery of the NATS tools: nats micro ls, info, stats, ping")
    stream_max_bytes: Annotated[int, Field(ge=1 << 20, description="streamed results that are kept, in all")] = (
        256 << 20
    )
    reader_timeout_s: Annotated[float, Field(ge=2, le=3600, description="a streamed call ends without its reader")] = (
        30.0
    )
    idempotency_window_s: Annotated[float, Field(ge=1, le=30 * 86400)] = 86400.0

    rules_file: str = Field("", description="path of the rules: who may call what; empty: everybody everything")
    audit: bool = Field(True, description="whether every call leaves a record")
    audit_payloads: bool = Field(False, description="whether the record has arguments and result, without secrets")
    audit_max_age_s: Annotated[float, Field(ge=60, description="how long records of calls are kept")] = 30 * 86400.0
    audit_max_bytes: Annotated[int, Field(ge=0, description="beyond it the oldest records go; 0: no limit")] = 0

    @field_validator("lease_ttl_s")
    @classmethod
    def _three_heartbeats(cls, value: float, others: ValidationInfo) -> float:
        # One lost heartbeat, or two, must not make a live agent disappear.
        if value < 3 * others.data.get("heartbeat_s", 0):
            raise ValueError(f"must be at least three times BUS_HEARTBEAT_S, which is {others.data['heartbeat_s']:g}")
        return value

    @field_validator("max_deliver")
    @classmethod
    def _above_the_attempts(cls, value: int, others: ValidationInfo) -> int:
        # Below them the server would give up first, and its word says nothing of the failure.
        if value <= others.data.get("max_attempts", 0):
            raise ValueError(f"must be greater than BUS_MAX_ATTEMPTS, which is {others.data['max_attempts']}")
        return value

    @field_validator("servers")
    @classmethod
    def _servers(cls, value: str) -> str:
        for part in filter(None, (piece.strip() for piece in value.split(","))):
            address = urlsplit(part if "://" in part else f"nats://{part}")
            if address.scheme not in ("nats", "tls", "ws", "wss") or not address.hostname:
                raise ValueError(f"{part!r} is not an address such as nats://127.0.0.1:4222")
        if value.strip() and not value.replace(",", "").strip():
            raise ValueError("there is no address in it")
        return value

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("store_dir")
    @classmethod
    def _store_dir(cls, value: Path) -> Path:
        return value.expanduser()

    @classmethod
    def chosen(cls, settings: Settings | None, overrides: dict[str, Any]) -> Settings:
        """Given settings, or loaded ones; in both cases with `overrides` on top. Raises SettingsError."""
        if settings is None:
            return cls.load(**overrides)
        return cls.load(**{**settings.model_dump(), **overrides}) if overrides else settings

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """Reads the environment; keyword arguments win. None means "not given".

        Raises SettingsError, which names every wrong value and every argument that is no setting.
        """
        if unknown := sorted(set(overrides) - set(cls.model_fields)):
            raise SettingsError(f"{', '.join(unknown)}: no such setting; there are {', '.join(cls.model_fields)}")
        try:
            return cls(**{name: value for name, value in overrides.items() if value is not None})
        except ValidationError as problem:
            lines = [
                f"BUS_{str(e['loc'][0]).upper()}={e['input']!r}: {e['msg'][0].lower()}{e['msg'][1:]}"
                for e in problem.errors()
            ]
            raise SettingsError("; ".join(lines)) from None


# Variables of ours that are no settings.
OTHER_VARIABLES = ("BUS_DEBUG", "BUS_LLM_BASE_URL", "BUS_LLM_API_KEY", "BUS_LLM_MODEL")


def misspelt_variables(environment: Mapping[str, str]) -> list[str]:
    """One line for each `BUS_*` variable that is no setting and so has no effect, with the nearest name."""
    known = [f"BUS_{name.upper()}" for name in Settings.model_fields] + list(OTHER_VARIABLES)
    lines = []
    for name in sorted(environment):
        # Settings are read without regard to case.
        if name.upper().startswith("BUS_") and name.upper() not in known:
            near = difflib.get_close_matches(name.upper(), known, 1, 0.7)
            hint = f"; did you mean {near[0]}?" if near else ""
            lines.append(f"{name} is no setting and has no effect{hint}")
    return lines
