"""Which exporters and protocols the standard variables select, and what of that there is here.

What is not there is told and never refused, as the OpenTelemetry specification asks for: the variables are shared by
all programs of a host, and what suits another one's SDK must not keep an agent from its messages.
"""

from __future__ import annotations

from collections.abc import Mapping

SIGNALS = ("traces", "metrics")
# Other SDKs have them. Who selects one of them alone does not want OTLP.
ELSEWHERE = {
    "traces": frozenset({"console", "logging", "zipkin", "jaeger"}),
    "metrics": frozenset({"console", "logging", "prometheus"}),
}
# Receivers that speak HTTP take both forms of a body at the same address.
PROTOCOLS = ("http/json", "http/protobuf")


def is_selected(environment: Mapping[str, str], signal: str) -> bool:
    """Whether a signal goes out over OTLP. A word that nobody knows is ignored, and OTLP is the default."""
    words = _words(environment, signal)
    if "none" in words:
        return False
    return "otlp" in words or not any(word in ELSEWHERE[signal] for word in words)


def misfits(environment: Mapping[str, str]) -> list[str]:
    """What the variables ask for and does not exist here, one line each: name, value, what counts, what is allowed."""
    found = []
    for signal in SIGNALS:
        name = f"OTEL_{signal.upper()}_EXPORTER"
        is_sent = is_selected(environment, signal)
        for word in _words(environment, signal):
            if word in ("otlp", "none") or (word == "prometheus" and signal == "metrics"):
                continue
            then = f"{signal} go over OTLP where an endpoint is set" if is_sent else f"no {signal} are sent"
            found.append(f"{name}: there is no exporter {word!r} here, so {then}; take otlp or none")
    if not any(name.startswith("OTEL_EXPORTER_OTLP_") and name.endswith("ENDPOINT") for name in environment):
        return found
    for name in (
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        *(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL" for signal in SIGNALS),
    ):
        value = environment.get(name, "").strip().lower()
        if value and value not in PROTOCOLS:
            found.append(
                f"{name}={value!r}: OTLP goes out as http/json, and a port for gRPC (4317) does not take it; "
                "take http/json and the receiver's port for HTTP (4318)"
            )
    return found


def _words(environment: Mapping[str, str], signal: str) -> list[str]:
    text = environment.get(f"OTEL_{signal.upper()}_EXPORTER", "")
    return [word for word in (one.strip().lower() for one in text.split(",")) if word]
