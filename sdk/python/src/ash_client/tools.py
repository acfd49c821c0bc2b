"""Client tools: a typed Python function becomes a tool that an agent can call."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Union, overload

from ._generated import ClientTool

P = ParamSpec("P")
R = TypeVar("R")

_SIMPLE: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    dict: {"type": "object"},
    list: {"type": "array"},
    Any: {},
}


@dataclass(frozen=True)
class Tool(Generic[P, R]):
    """A function that agents can call. It is still a function: `tool(…)` calls it."""

    function: Callable[P, R]
    name: str
    description: str
    input_schema: dict[str, Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def declaration(self) -> ClientTool:
        return {"name": self.name, "description": self.description, "inputSchema": self.input_schema}


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None, /, *, name: str | None = None, description: str | None = None
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Makes a tool of a function with type hints and a docstring.

    The parameters may have these types: str, int, float, bool, None, list, dict, Literal, TypedDict, Any, unions of
    them, and `Annotated[T, "what it means"]`. A section `Args:` of the docstring describes parameters, too. The
    function returns a value that JSON can hold. An exception that it raises becomes the answer to the agent.
    """

    def decorate(function: Callable[P, R]) -> Tool[P, R]:
        text, meanings = _docstring(inspect.getdoc(function) or "")
        chosen = name or function.__name__
        described = description or text
        if not described:
            raise TypeError(f"{chosen}: a tool needs a docstring, from which the agent learns what it does")
        return Tool(function, chosen, described, _input_schema(function, meanings))

    return decorate if function is None else decorate(function)


def declarations(tools: Iterable[Tool[..., Any] | ClientTool]) -> list[ClientTool]:
    return [tool.declaration if isinstance(tool, Tool) else tool for tool in tools]


def run_tool(tool: Tool[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a call: `{"result": …}` or `{"error": …}`."""
    try:
        value = tool.function(**arguments)
        if inspect.isawaitable(value):
            getattr(value, "close", lambda: None)()
            raise TypeError("asynchronous tools need AsyncAshClient")
        return _result(value)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


async def run_tool_async(tool: Tool[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """As `run_tool`. A function that is not asynchronous runs in a thread."""
    try:
        if inspect.iscoroutinefunction(tool.function):
            return _result(await tool.function(**arguments))
        return _result(await asyncio.to_thread(tool.function, **arguments))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _result(value: object) -> dict[str, Any]:
    json.dumps(value)
    return {"result": value}


def _input_schema(function: Callable[..., Any], meanings: Mapping[str, str]) -> dict[str, Any]:
    hints = typing.get_type_hints(function, include_extras=True)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{function.__name__}: a tool takes its parameters by name, not {parameter}")
        if parameter.name not in hints:
            raise TypeError(f"{function.__name__}: the parameter {parameter.name} needs a type hint")
        schema = _schema(hints[parameter.name])
        if parameter.name in meanings:
            schema.setdefault("description", meanings[parameter.name])
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is not None:
            schema["default"] = parameter.default
        properties[parameter.name] = schema
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _schema(kind: Any) -> dict[str, Any]:
    try:
        if kind in _SIMPLE:
            return dict(_SIMPLE[kind])
    except TypeError:
        pass  # An annotation that cannot be a key is none of the simple ones.
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        texts = [extra for extra in arguments[1:] if isinstance(extra, str)]
        return {**_schema(arguments[0]), **({"description": texts[0]} if texts else {})}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(argument) for argument in arguments]}
    if origin is list:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin is dict and arguments[0] is str:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if typing.is_typeddict(kind):
        return _typed_dict(kind)
    raise TypeError(f"{kind!r} cannot be a parameter of a tool: JSON has no such value")


def _typed_dict(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {
        "type": "object",
        "properties": {name: _schema(hint) for name, hint in hints.items()},
        "required": sorted(kind.__required_keys__),
        "additionalProperties": False,
    }


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and the meanings of the parameters from a section `Args:`."""
    before, _, after = text.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", after)[0]
    entries = re.findall(r"^\s+(\w+)(?: \([^)]*\))?:\s*(.*(?:\n\s{6,}.*)*)", section, re.MULTILINE)
    return before.strip(), {name: " ".join(meaning.split()) for name, meaning in entries}
