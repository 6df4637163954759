"""The same calls by the MCP Python SDK, over streamable HTTP."""
