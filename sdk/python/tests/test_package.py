"""The package as a whole: generated files, the document's operations, and the examples."""

from __future__ import annotations

import inspect
import json
from typing import Any

import generate
import pytest
from examples_of_users import start_example
from server import Server

from ash_client import AshClient, AsyncAshClient, _generated
from ash_client.request import camel_case


def operations() -> dict[str, dict[str, Any]]:
    paths = json.loads(generate.DOCUMENT.read_text())["paths"]
    return {one["operationId"]: one for path in paths.values() for one in path.values() if "operationId" in one}


def test_generated_files_are_up_to_date() -> None:
    assert generate.outdated() == []


def test_every_operation_of_the_document_has_a_method() -> None:
    assert [name for name in operations() if not hasattr(AshClient, generate.snake_case(name))] == []


def test_keyword_arguments_are_sent_under_the_names_of_the_document() -> None:
    schemas = json.loads(generate.DOCUMENT.read_text())["components"]["schemas"]
    for schema, (name, by_hand) in generate.KEYWORD_BODIES.items():
        sent = {camel_case(argument) for argument in getattr(_generated, name).__annotations__}
        assert sent == set(schemas[schema]["properties"]) - by_hand


@pytest.mark.parametrize("client", [AshClient, AsyncAshClient])
def test_every_header_of_an_operation_has_an_argument(client: type[object]) -> None:
    arguments = {"Idempotency-Key": "idempotency_key", "X-Ash-Lock": "lock", "Prefer": "wait"}
    for name, operation in operations().items():
        parameters = inspect.signature(getattr(client, generate.snake_case(name))).parameters
        for header in operation.get("parameters", []):
            if header["name"] in arguments:
                assert arguments[header["name"]] in parameters, name


def test_both_clients_have_the_same_methods() -> None:
    def signatures(client: type[object], closing: str) -> dict[str, list[str]]:
        methods = {name: value for name, value in vars(client).items() if not name.startswith("_")}
        return {
            name.replace(closing, "close"): list(inspect.signature(one).parameters) for name, one in methods.items()
        }

    assert signatures(AsyncAshClient, "aclose") == signatures(AshClient, "close")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hello.py", "\nhello, world\nverified: True\n"),
        ("rewind_and_fork.py", "fork: milk\nrewound: milk\nredone: milk and bread\n"),
    ],
)
def test_an_example_prints_what_it_promises(server: Server, name: str, expected: str) -> None:
    output, _ = start_example(name, server).communicate(timeout=60)
    assert output.endswith(expected)


def test_the_example_of_a_durable_stream_survives_the_server(own_server: Server) -> None:
    with start_example("durable_stream.py", own_server) as example:
        assert example.stdout is not None
        output = example.stdout.read(3)
        own_server.kill()
        own_server.start()
        # Not `communicate`, which would lose what is buffered.
        output += example.stdout.read()
    assert example.returncode == 0
    assert output == "one two three four five six seven eight nine ten\ndone\n"
