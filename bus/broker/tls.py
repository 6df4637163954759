"""TLS: the context for a connection, from the settings."""

from __future__ import annotations

import ssl

from bus.config import Settings, SettingsError


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None without TLS settings; raises SettingsError for files that cannot be used."""
    if not (settings.tls_ca or settings.tls_cert):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca or None)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    except OSError as problem:
        raise SettingsError(f"BUS_TLS_CA, BUS_TLS_CERT, BUS_TLS_KEY: {problem}") from problem
    return context
