"""Servers and clients for all tests."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from both import Kind, connect
from server import Server

from ash_client import AsyncAshClient


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


def make_server(environment: Mapping[str, str] | None = None) -> Iterator[Server]:
    # Not pytest's own folder: the server makes sockets beneath its data, and their paths must not be long.
    with tempfile.TemporaryDirectory(prefix="ash-", dir="/tmp") as folder:
        server = Server(Path(folder), environment)
        server.start()
        yield server
        server.remove()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """For tests that leave the server alone."""
    yield from make_server()


@pytest.fixture(scope="session")
def mortal_server() -> Iterator[Server]:
    yield from make_server()


@pytest.fixture
def own_server(mortal_server: Server) -> Server:
    """For tests that kill it, one after the other. Each has sessions of its own."""
    mortal_server.ensure_running()
    return mortal_server


@pytest.fixture
async def client(server: Server, kind: Kind) -> AsyncIterator[AsyncAshClient]:
    client = connect(kind, server.url, server.key)
    yield client
    await client.aclose()


@pytest.fixture
async def own_client(own_server: Server, kind: Kind) -> AsyncIterator[AsyncAshClient]:
    client = connect(kind, own_server.url, own_server.key)
    yield client
    await client.aclose()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test that looks at what the other tests called is the last."""
    items.sort(key=lambda item: item.name == "test_every_method_of_both_clients_was_called")
