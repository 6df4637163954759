"""An HTTP service on the bus: real requests to a real server (REG-11, EDGE-6, SEC-7)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from bus import Bus, BusError, Settings
from bus.gateway.connections import load_connections
from tests.integration.http_server import Service, serving

TOML = """
[agent]
name = "service"

[[capability]]
name = "service.get"
description = "Asks by a path."
example = { path = "echo" }
idempotent = true
timeout_s = 20
input = { type = "object", required = ["path"], properties = { path = { type = "string" }, n = {} } }
http = { url = "${BASE}/{path}/", headers = { Authorization = "Bearer ${KEY}" }, max_response_bytes = 100000 }

[[capability]]
name = "service.status"
description = "Asks for a status."
timeout_s = 20
input = { type = "object", required = ["code"], properties = { code = { type = "integer" } } }
http = { url = "${BASE}/status/{code}", headers = { Authorization = "Bearer ${KEY}" } }

[[capability]]
name = "service.post"
description = "Posts."
timeout_s = 20
input = { type = "object", properties = { a = {}, to = { type = "string", default = "echo" } } }
http = { url = "${BASE}/{to}", method = "POST" }

[[capability]]
name = "service.move"
description = "Is sent elsewhere."
timeout_s = 20
input = { type = "object", required = ["how", "to"], properties = { how = {}, to = {} } }
http = { url = "${BASE}/{how}/{to}", method = "POST", headers = { X-Key = "${KEY}" }, redirect_hosts = ["localhost"] }
"""
KEY = "sesame-open-0123"


@pytest.fixture
def service() -> Iterator[Service]:
    with serving() as running:
        yield running


@pytest.fixture
async def agent(service: Service, settings: Settings, tmp_path: Path) -> AsyncIterator[None]:
    """The service as an agent."""
    path = tmp_path / "service.toml"
    path.write_text(TOML)
    async with load_connections(path, {"BASE": service.url, "KEY": KEY}).running(settings):
        yield


async def failure(bus: Bus, capability: str, arguments: dict[str, Any], **options: Any) -> BusError:
    with pytest.raises(BusError) as failed:
        await bus.call(capability, arguments, retries=0, **options)
    return failed.value


@pytest.mark.usefixtures("agent")
async def test_requests_and_results(bus: Bus, service: Service) -> None:
    """REG-11: path, query, body, headers; JSON, text, bytes and nothing."""
    echoed = (await bus.call("service.get", {"path": "a b", "n": [1, 2]})).data
    assert (echoed["method"], echoed["path"], echoed["query"]) == ("GET", "/a%20b/", {"n": ["1", "2"]})
    assert echoed["headers"]["authorization"] == f"Bearer {KEY}"
    posted = (await bus.call("service.post", {"a": {"b": 1}}, idempotency_key="key-1")).data
    assert json.loads(posted["body"]) == {"a": {"b": 1}}
    assert posted["headers"]["idempotency-key"] == "key-1"
    assert (await bus.call("service.get", {"path": "text"})).data == "grüezi"
    assert (await bus.call("service.get", {"path": "nothing"})).data is None
    stored = (await bus.call("service.get", {"path": "bytes"})).data
    assert (stored["media_type"], await bus.artifacts.get(stored["sha256"])) == ("image/png", b"\x00\x01")


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize(
    ("status", "code", "retryable", "after_ms"),
    [
        (400, "tool.execution_failed", False, None), (401, "auth.invalid_key", False, None),
        (403, "auth.invalid_key", False, None), (404, "tool.execution_failed", False, None),
        (429, "upstream.rate_limit", True, 2000), (500, "upstream.failed", True, None),
        (503, "upstream.failed", True, 2000),
    ],
)  # fmt: skip
async def test_statuses_become_our_errors(
    bus: Bus, status: int, code: str, retryable: bool, after_ms: int | None
) -> None:
    """REG-11, EDGE-6: and the key that the service repeats is hidden."""
    info = (await failure(bus, "service.status", {"code": status})).info
    assert (info.code, info.retryable, info.retry_after_ms) == (code, retryable, after_ms)
    assert info.details["status"] == status
    assert "say" in info.message
    assert KEY not in str(info.to_wire())


@pytest.mark.usefixtures("agent")
async def test_what_is_no_result(bus: Bus, service: Service) -> None:
    """SEC-7: garbage, too much, a broken connection."""
    assert (await failure(bus, "service.get", {"path": "garbage"})).info.code == "tool.invalid_result"
    huge = (await failure(bus, "service.get", {"path": "huge"})).info
    assert (huge.code, huge.details["limit"]) == ("protocol.too_large", 100_000)
    assert (await failure(bus, "service.get", {"path": "break"})).info.code == "upstream.failed"
    before = len(service.seen)
    assert (await failure(bus, "service.get", {"path": ".."})).info.code == "tool.validation_failed"
    assert len(service.seen) == before


@pytest.mark.usefixtures("agent")
async def test_a_service_that_hangs_costs_only_its_time(bus: Bus) -> None:
    """REG-11: the timeout of the call; meanwhile others are served."""
    hanging = asyncio.create_task(failure(bus, "service.get", {"path": "hang"}, timeout_s=0.5))
    assert (await bus.call("service.get", {"path": "echo"})).ok
    assert (await hanging).info.code == "tool.timeout"


@pytest.mark.usefixtures("agent")
async def test_redirects_stay_on_the_host(bus: Bus, service: Service) -> None:
    """SEC-7: another host only when it is named, and then without the headers."""
    moved = (await bus.call("service.move", {"how": "move", "to": "echo"})).data
    assert (moved["method"], moved["path"], moved["headers"]["x-key"]) == ("GET", "/echo", KEY)
    with serving() as other:
        service.elsewhere = other.url
        refused = (await failure(bus, "service.move", {"how": "away", "to": "echo"})).info
        assert "another host" in refused.message
        assert other.seen == []
        service.elsewhere = other.url.replace("127.0.0.1", "localhost")
        away = (await bus.call("service.move", {"how": "away", "to": "echo"})).data
        assert (away["method"], "x-key" in away["headers"]) == ("POST", False)
    assert "more than 5 times" in (await failure(bus, "service.get", {"path": "round"})).info.message


async def test_a_service_that_is_away(bus: Bus, settings: Settings, tmp_path: Path) -> None:
    """REG-11: and comes back, without a new start of ours."""
    path = tmp_path / "service.toml"
    path.write_text(TOML)
    with serving() as service:
        base = service.url
    async with load_connections(path, {"BASE": base, "KEY": KEY}).running(settings):
        info = (await failure(bus, "service.get", {"path": "echo"})).info
        assert (info.code, "ConnectError" in info.message) == ("upstream.failed", True)


@pytest.mark.usefixtures("agent")
async def test_nothing_logs_a_key(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    """EDGE-6."""
    with caplog.at_level(logging.DEBUG, logger="bus"):
        await bus.call("service.get", {"path": "echo"})
        await failure(bus, "service.status", {"code": 500})
    assert KEY not in caplog.text


async def test_two_replicas_share_the_calls(bus: Bus, service: Service, settings: Settings, tmp_path: Path) -> None:
    """REG-11, REG-4: a replica that leaves takes no call with it."""
    path = tmp_path / "service.toml"
    path.write_text(TOML)
    environment = {"BASE": service.url, "KEY": KEY}
    async with load_connections(path, environment).running(settings):
        async with load_connections(path, environment).running(settings):
            calls = [asyncio.create_task(bus.call("service.get", {"path": f"n{n}"})) for n in range(40)]
            await asyncio.gather(*calls[:10])
        results = await asyncio.gather(*calls)
    assert all(result.ok for result in results)
    assert len(service.seen) == 40


async def test_one_agent_runs_once_in_a_process(service: Service, settings: Settings, tmp_path: Path) -> None:
    """REG-11: connectors are not shared."""
    path = tmp_path / "service.toml"
    path.write_text(TOML)
    agent = load_connections(path, {"BASE": service.url, "KEY": KEY})
    async with agent.running(settings):
        with pytest.raises(ValueError, match="runs already"):
            async with agent.running(settings):
                pass
    async with agent.running(settings):
        pass
