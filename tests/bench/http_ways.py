"""The ways of `bench_calls.py` that go over HTTP: the Python SDKs of MCP and A2A, each under uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from tests.bench.call_ways import IN_FLIGHT, Ask, Done, Task, Work, arguments


@contextlib.asynccontextmanager
async def serving(app: Any, port: int) -> AsyncIterator[None]:
    """An ASGI application under uvicorn, until the body ends."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="on"))
    running = asyncio.create_task(server.serve())
    while not server.started:
        assert not running.done(), "uvicorn ended"
        await asyncio.sleep(0.02)
    yield
    server.should_exit = True
    await running


@contextlib.asynccontextmanager
async def mcp_callee(task: Task) -> AsyncIterator[None]:
    """MCP: a tool with a model for its arguments and its result, over streamable HTTP without sessions."""
    from mcp.server import MCPServer

    server = MCPServer("bench", log_level="ERROR")

    @server.tool()
    async def work(request: Work) -> Done:
        return Done(number=request.number)

    async with serving(server.streamable_http_app(stateless_http=True, json_response=True), task.port):
        yield


@contextlib.asynccontextmanager
async def mcp_caller(task: Task) -> AsyncIterator[Ask]:
    """MCP's own client, all calls over one."""
    from mcp import Client

    async with Client(f"http://127.0.0.1:{task.port}/mcp") as client:

        async def ask(number: int) -> int:
            answer = await client.call_tool("work", {"request": arguments(number)})
            assert answer.structured_content is not None
            return int(answer.structured_content["number"])

        yield ask


@contextlib.asynccontextmanager
async def a2a_callee(task: Task) -> AsyncIterator[None]:
    """A2A: an executor that answers a data part with a data part at once, over JSON-RPC."""
    from a2a.helpers.proto_helpers import get_data_parts, new_data_message
    from a2a.server.agent_execution import AgentExecutor, RequestContext
    from a2a.server.events import EventQueue
    from a2a.server.request_handlers import DefaultRequestHandler
    from a2a.server.routes import create_jsonrpc_routes
    from a2a.server.tasks import InMemoryTaskStore
    from starlette.applications import Starlette

    logging.getLogger("a2a").setLevel(logging.ERROR)

    class Executor(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            assert context.message is not None
            (request,) = get_data_parts(context.message.parts)
            done = Done(number=Work.model_validate(request).number)
            await event_queue.enqueue_event(new_data_message(done.model_dump()))

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            raise NotImplementedError

    handler = DefaultRequestHandler(Executor(), InMemoryTaskStore(), a2a_card(task.port))
    async with serving(Starlette(routes=create_jsonrpc_routes(handler, "/")), task.port):
        yield


@contextlib.asynccontextmanager
async def a2a_caller(task: Task) -> AsyncIterator[Ask]:
    """A2A's own client, without streaming, all calls over one."""
    import httpx
    from a2a.client import ClientConfig, ClientFactory
    from a2a.helpers.proto_helpers import get_data_parts, new_data_message
    from a2a.types import Role, SendMessageRequest

    logging.getLogger("httpx").setLevel(logging.ERROR)
    limits = httpx.Limits(max_connections=IN_FLIGHT)
    async with httpx.AsyncClient(timeout=60, limits=limits) as http:
        client = ClientFactory(ClientConfig(streaming=False, httpx_client=http)).create(a2a_card(task.port))

        async def ask(number: int) -> int:
            message = new_data_message(arguments(number), role=Role.ROLE_USER)
            async for answer in client.send_message(SendMessageRequest(message=message)):
                (found,) = get_data_parts(answer.message.parts)
                return int(found["number"])
            raise AssertionError("no answer")

        yield ask


def a2a_card(port: int) -> Any:
    """The card of the callee."""
    from a2a.types import AgentCapabilities, AgentCard, AgentInterface

    where = AgentInterface(url=f"http://127.0.0.1:{port}/", protocol_binding="JSONRPC", protocol_version="1.0")
    return AgentCard(
        name="worker",
        description="Gives the number back.",
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=False),
        supported_interfaces=[where],
        default_input_modes=["application/json"],
        default_output_modes=["application/json"],
    )
