"""The engine that compares two JSON Schemas: `bus.contracts.compare` is its public face."""
