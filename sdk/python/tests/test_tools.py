"""Client tools: what a function becomes, and what the agent gets from it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, TypedDict

import pytest

from ash_client import tool
from ash_client.tools import run_tool, run_tool_async

pytestmark = pytest.mark.anyio


class Place(TypedDict, total=False):
    city: str
    zip: str | None


@tool
def forecast(
    place: Place,
    days: Annotated[int, "how many days ahead"] = 1,
    unit: Literal["C", "F"] = "C",
    notes: list[str] | None = None,
) -> dict[str, Any]:
    """The weather at a place.

    Args:
        place: Where. A long explanation
            continues here.
        unit (str): Celsius or Fahrenheit.
    """
    return {"place": place, "days": days, "unit": unit, "notes": notes}


def test_a_function_becomes_a_declaration() -> None:
    assert forecast.declaration == {
        "name": "forecast",
        "description": "The weather at a place.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "place": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "zip": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    },
                    "required": [],
                    "additionalProperties": False,
                    "description": "Where. A long explanation continues here.",
                },
                "days": {"type": "integer", "description": "how many days ahead", "default": 1},
                "unit": {"enum": ["C", "F"], "description": "Celsius or Fahrenheit.", "default": "C"},
                "notes": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            },
            "required": ["place"],
            "additionalProperties": False,
        },
    }
    assert forecast({"city": "Bern"}, days=2)["days"] == 2


def test_a_tool_may_have_another_name_and_description() -> None:
    @tool(name="add_numbers", description="Adds.")
    def add(a: float, b: float) -> float:
        return a + b

    assert (add.name, add.description, add(1, 2)) == ("add_numbers", "Adds.", 3)


def test_what_cannot_be_a_tool_is_refused() -> None:
    def silent(a: int) -> int:
        return a

    def unknown(a) -> None:  # type: ignore[no-untyped-def]
        """No hint."""

    def bytes_in(a: bytes) -> None:
        """JSON has no bytes."""

    def many(*a: int) -> None:
        """Without names."""

    for function in (silent, unknown, bytes_in, many):
        with pytest.raises(TypeError):
            tool(function)


async def test_results_and_exceptions_become_answers() -> None:
    @tool
    def divide(a: float, b: float) -> float:
        """Divides."""
        return a / b

    @tool
    async def slowly(a: int) -> int:
        """Waits."""
        await asyncio.sleep(0)
        return a

    @tool
    def strange() -> object:
        """Returns what JSON cannot hold."""
        return object()

    failure = {"error": "ZeroDivisionError: float division by zero"}
    for run in (run_tool, lambda one, arguments: run_tool_async(one, arguments)):
        answers = [
            run(one, arguments) for one, arguments in ((divide, {"a": 1.0, "b": 2.0}), (divide, {"a": 1.0, "b": 0.0}))
        ]
        resolved = [await one if asyncio.iscoroutine(one) else one for one in answers]
        assert resolved == [{"result": 0.5}, failure]
    assert await run_tool_async(slowly, {"a": 3}) == {"result": 3}
    assert run_tool(slowly, {"a": 3})["error"].startswith("TypeError: asynchronous tools need")
    assert run_tool(strange, {})["error"].startswith("TypeError")
    assert run_tool(divide, {"c": 1})["error"].startswith("TypeError")
