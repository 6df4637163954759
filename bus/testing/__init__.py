"""Testing agents against a real broker: a server to use and to hurt, a ledger, and a wait for the cascade to settle.

The pytest plugin is `bus.testing.plugin`. An installed envelope-bus brings it along; nothing here needs pytest.

```python
from bus import Agent, Bus, Settings
from bus.testing import Ledger, NatsServer, settled

async def check(server: NatsServer) -> None:
    greeter, greeted = Agent("greeter"), []

    @greeter.on("hello")
    async def hello(payload: dict[str, str]) -> None:
        greeted.append(payload["name"])

    settings = Settings.load(servers=server.url)
    async with Bus.connect("tester", settings=settings) as bus, greeter.running(settings):
        sent = await bus.send("greeter", "hello", {"name": "Ada"})
        await settled(bus, timeout_s=10)
        ledger = await Ledger.read(bus, accepted=[sent])
    ledger.check()
    assert greeted == ["Ada"]
    assert str(ledger) == "published 1 = handled 1 + dead-lettered 0 + waiting 0"
```
"""

from bus.testing.golden import check_chain
from bus.testing.ledger import Entry, Identity, Ledger, LedgerError, Run
from bus.testing.replay import replay
from bus.testing.server import NatsServer, free_port
from bus.testing.waiting import settled

__all__ = [
    "Entry",
    "Identity",
    "Ledger",
    "LedgerError",
    "NatsServer",
    "Run",
    "check_chain",
    "free_port",
    "replay",
    "settled",
]
