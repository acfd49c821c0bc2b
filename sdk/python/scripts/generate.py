"""Writes the generated files of the package: the types, from the server's OpenAPI document, and the synchronous
modules, from the asynchronous ones. `--check` writes nothing and fails if a file is out of date."""

from __future__ import annotations

import json
import keyword
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "ash_client"
DOCUMENT = ROOT.parent.parent / "docs" / "openapi.json"
WIDTH = 120

# Bodies that a method takes as keyword arguments, and the fields that are written by hand.
KEYWORD_BODIES = {
    "CreateSessionRequest": ("CreateSessionFields", {"agent", "tools"}),
    "SessionConfigPatch": ("SessionFields", {"tools"}),
    "SendMessageRequest": ("MessageOptions", {"content"}),
    "DeployRequest": ("AgentOptions", {"name", "files"}),
}

# Asynchronous module: synchronous module.
SYNCHRONOUS = {
    "async_client.py": "client.py",
    "async_stream.py": "stream.py",
    "async_transport.py": "transport.py",
}

# Applied in this order, to whole words.
REPLACEMENTS = [
    (r"async_client", "client"),
    (r"async_stream", "stream"),
    (r"async_transport", "transport"),
    (r"async def", "def"),
    (r"async for", "for"),
    (r"async with", "with"),
    (r"await ", ""),
    (r"AsyncAshClient", "AshClient"),
    (r"AsyncEventStream", "EventStream"),
    (r"AsyncTransport", "Transport"),
    (r"AsyncConnection", "Connection"),
    (r"AsyncFrameReader", "FrameReader"),
    (r"AsyncToolAnswerer", "ToolAnswerer"),
    (r"AsyncGenerator\[([^\[\]]+), None\]", r"Generator[\1, None, None]"),
    (r"AsyncGenerator", "Generator"),
    (r"AsyncIterator", "Iterator"),
    (r"httpx\.AsyncClient", "httpx.Client"),
    (r"asyncio\.sleep", "time.sleep"),
    (r"import asyncio", "import time"),
    (r"run_tool_async", "run_tool"),
    (r"StopAsyncIteration", "StopIteration"),
    (r"__aenter__", "__enter__"),
    (r"__aexit__", "__exit__"),
    (r"__aiter__", "__iter__"),
    (r"__anext__", "__next__"),
    (r"aiter_bytes", "iter_bytes"),
    (r"aclose", "close"),
    (r"aread", "read"),
    (r"anext(?=\()", "next"),
    (r"asynchronous", "synchronous"),
]


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: "_" + found[1].lower(), name)


def variant_name(variant: dict[str, Any]) -> str:
    """Its `type`, if there is only one that it can have; otherwise what it must have."""
    kinds = variant["properties"].get("type", {}).get("enum", [])
    words = kinds[0].split("_") if len(kinds) == 1 else variant.get("required", [])
    return "".join(word[0].upper() + word[1:] for word in words)


def camel_case(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


class Types:
    """Turns JSON schemas into Python types. An object with fields, wherever it is, becomes a class."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self.schemas = schemas
        self.classes: list[str] = []
        self.aliases: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.names: list[str] = []

    def annotation(self, schema: Any, name: str) -> str:
        """The type of a field; `name` is for the class that an object within it needs."""
        if schema is True or not isinstance(schema, dict):
            return "Any"
        if "$ref" in schema:
            return str(schema["$ref"]).rsplit("/", 1)[1].replace("u64", "int")
        if "const" in schema:
            return f"Literal[{schema['const']!r}]"
        if "oneOf" in schema:
            return self.union(schema["oneOf"], name)
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return join(self.annotation({**schema, "type": kind}, name) for kind in kinds)
        if "enum" in schema:
            return "Literal[" + ", ".join(repr(value) for value in schema["enum"]) + "]"
        if kinds == "object":
            return self.object(schema, name)
        if kinds == "array":
            return f"list[{self.annotation(schema.get('items', True), name)}]"
        simple = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
        return simple.get(str(kinds), "Any")

    def union(self, variants: list[dict[str, Any]], name: str) -> str:
        objects = [variant for variant in variants if "properties" in variant]
        parts = []
        for variant in variants:
            own = name
            if "properties" in variant and len(objects) > 1:
                own = name + variant_name(variant)
            parts.append(self.annotation(variant, own))
        return join(parts)

    def object(self, schema: dict[str, Any], name: str) -> str:
        if schema.get("properties"):
            self.add_class(name, schema)
            return name
        values = schema.get("additionalProperties")
        if isinstance(values, dict):
            return f"dict[str, {self.annotation(values, name + 'Value')}]"
        return "dict[str, Any]"

    def add(self, name: str, schema: dict[str, Any]) -> None:
        """A named schema of the document."""
        if name in ("u64", "StreamEvent"):
            return
        if "event" in schema.get("properties", {}) and "const" in schema["properties"]["event"]:
            self.add_event(name, schema)
        elif schema.get("type") == "object" and schema.get("properties"):
            self.add_class(name, schema)
        else:
            self.names.append(name)
            text = f"{name}: TypeAlias = {quote(self.annotation(schema, name))}"
            self.aliases.append(described(text, schema))

    def add_event(self, name: str, schema: dict[str, Any]) -> None:
        event = schema["properties"]["event"]["const"]
        data = self.annotation(schema["properties"]["data"], name + "Data")
        self.events.append((event, name))
        self.names.append(name)
        doc = docstring(schema.get("description") or schema["properties"]["event"].get("description"), 4)
        self.classes.append(
            f"@dataclass(frozen=True)\nclass {name}:\n{doc}"
            f"    data: {data}\n    id: str | None = None\n    event: Literal[{event!r}] = {event!r}\n"
        )

    def add_class(self, name: str, schema: dict[str, Any]) -> None:
        self.names.append(name)
        fields, reserved, required = [], [], set(schema.get("required", []))
        for key, value in schema["properties"].items():
            kind = self.annotation(value, name + key[0].upper() + key[1:])
            if keyword.iskeyword(key):
                if key not in required:
                    raise ValueError(f"{name}.{key}: an optional field with a reserved name")
                reserved.append(f"{key!r}: {kind!r}")
                continue
            kind = kind if key in required else f"NotRequired[{kind}]"
            described_value = value if isinstance(value, dict) else {}
            fields.append(f"    {key}: {kind}\n" + docstring(described_value.get("description"), 4))
        base = "TypedDict"
        if reserved:
            base = f"_{name}Reserved"
            self.classes.append(f'{base} = TypedDict("{base}", {{{", ".join(reserved)}}})\n')
        body = docstring(schema.get("description"), 4) + "".join(fields)
        self.classes.append(f"class {name}({base}):\n{body or '    pass' + chr(10)}")

    def add_keywords(self, source: str, name: str, own: set[str]) -> None:
        """The body `source` with the names of keyword arguments."""
        self.names.append(name)
        fields = []
        for key, value in self.schemas[source]["properties"].items():
            if key in own:
                continue
            snake = snake_case(key)
            if camel_case(snake) != key:
                raise ValueError(f"{source}.{key} does not survive the change of its name")
            kind = self.annotation_known(value, source + key[0].upper() + key[1:])
            fields.append(f"    {snake}: {kind}\n" + docstring(value.get("description"), 4))
        doc = docstring(f"`{source}` as keyword arguments.", 4)
        self.classes.append(f"class {name}(TypedDict, total=False):\n{doc}{''.join(fields)}")

    def annotation_known(self, schema: dict[str, Any], name: str) -> str:
        """As `annotation`, without adding the classes within it again."""
        classes, names = list(self.classes), list(self.names)
        found = self.annotation(schema, name)
        self.classes, self.names = classes, names
        return found


def join(parts: Any) -> str:
    unique = list(dict.fromkeys(part for given in parts for part in [given]))
    unique.sort(key=lambda part: part == "None")
    return " | ".join(unique)


def quote(kind: str) -> str:
    """Aliases are evaluated when the module is imported, before the classes that they name exist."""
    return kind if re.fullmatch(r"str|int|float|bool|dict\[str, Any\]|Literal\[[^|]*\]", kind) else repr(kind)


def docstring(text: str | None, indent: int) -> str:
    if not text:
        return ""
    space = " " * indent
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    lines = textwrap.wrap(text, WIDTH - indent - 6)
    if len(lines) == 1:
        end = " " if lines[0].endswith('"') else ""
        return f'{space}"""{lines[0]}{end}"""\n'
    return f'{space}"""' + f"\n{space}".join(lines) + f'\n{space}"""\n'


def described(text: str, schema: dict[str, Any]) -> str:
    return text + "\n" + docstring(schema.get("description"), 0)


HEADER = '''"""Types of the server's requests, answers and events. Generated by scripts/generate.py from the server's
OpenAPI document; change that document or the script instead."""

# ruff: noqa
from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Union

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired

'''


def types_module(document: dict[str, Any]) -> str:
    schemas = document["components"]["schemas"]
    types = Types(schemas)
    for name in sorted(schemas):
        types.add(name, schemas[name])
    for source, (name, own) in KEYWORD_BODIES.items():
        types.add_keywords(source, name, own)
    duplicates = {name for name in types.names if types.names.count(name) > 1}
    if duplicates:
        raise ValueError(f"two types have one name: {sorted(duplicates)}")
    union = ",\n    ".join(f'"{name}"' for _, name in types.events)
    table = ",\n    ".join(f'"{event}": {name}' for event, name in types.events)
    names = "\n".join(f'    "{name}",' for name in sorted(types.names) if not name.startswith("_"))
    parts = [
        HEADER,
        f"__all__ = [\n{names}\n]\n\n",
        "\n".join(types.aliases),
        "\n\n\n" + "\n\n".join(types.classes),
        f"\n\nDocumentedEvent: TypeAlias = Union[\n    {union},\n]\n",
        f"\nEVENT_CLASSES: Mapping[str, type[Any]] = {{\n    {table},\n}}\n",
    ]
    return "".join(parts)


def synchronous(source: str, text: str) -> str:
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(rf"(?<![A-Za-z0-9_]){pattern}", replacement, text)
    opening, rest = text.split('"""', 2)[1:]
    note = f"Generated from {source} by scripts/generate.py; change that file instead."
    return f'"""{opening.rstrip()}\n\n{note}\n"""{rest}'


def generated() -> dict[Path, str]:
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    files = {PACKAGE / "_generated.py": types_module(document)}
    for source, target in SYNCHRONOUS.items():
        files[PACKAGE / target] = synchronous(source, (PACKAGE / source).read_text(encoding="utf-8"))
    return files


def outdated() -> list[str]:
    """The names of files that differ from what this script would write."""
    return [
        path.name for path, text in generated().items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    if sys.argv[1:] == ["--check"]:
        names = outdated()
        if names:
            print(f"out of date: {', '.join(names)}; run scripts/generate.py", file=sys.stderr)
        return 1 if names else 0
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
