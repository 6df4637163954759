"""The same calls by the A2A Python SDK, over HTTP."""
