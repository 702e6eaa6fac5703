"""Writes the reference pages: ``python -m graphcache.cli.reference docs/reference``.

The commands' page follows from their own help, the configuration's from its schema, so that neither can
say what is not so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from graphcache.cli.app import app
from graphcache.config import Config
from graphcache.config.environment import VARIABLES

GENERATED = "<!-- Written by `make reference`. -->\n"


def pages() -> dict[str, str]:
    """Return each page's text by its file name."""
    return {
        "commands.md": "\n".join((GENERATED, *_commands_page())),
        "configuration.md": "\n".join((GENERATED, *_configuration_page())),
    }


def _commands_page() -> Iterator[str]:
    yield "# Commands\n"
    yield "Exit codes: 0 done; 1 a check failed, or a store can't be used; 2 a wrong command or value.\n"
    root: Any = typer.main.get_command(app)
    for path, command in _walk(root, ("graphcache",)):
        yield from _command(path, command)


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from _walk(child, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def _command(path: tuple[str, ...], command: Any) -> Iterator[str]:
    arguments = [_value(parameter) for parameter in command.params if _is_argument(parameter)]
    yield f"## {' '.join((*path, *arguments))}\n"
    yield f"{_unwrapped(command.help or '')}\n"
    rows = [(f"`{_spelling(parameter)}`", parameter.help or "") for parameter in command.params]
    if rows:
        yield _table(("argument or option", "meaning"), rows)
    examples = (command.epilog or "").split("\n\n")[1:]
    yield "\n".join(("```console", *(f"$ {line}" for line in examples), "```\n"))


def _spelling(parameter: Any) -> str:
    if _is_argument(parameter):
        return _value(parameter)
    names = ", ".join((*parameter.opts, *parameter.secondary_opts))
    return names if parameter.is_flag else f"{names} {_value(parameter)}"


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _value(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _unwrapped(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def _configuration_page() -> Iterator[str]:
    schema = Config.model_json_schema(by_alias=True)
    yield "# Configuration\n"
    yield "A configuration is a YAML file of these fields; any other is refused."
    yield "`graphcache policy check FILE` checks one, `graphcache policy schema` is the same for editors.\n"
    yield from _section("The file", schema)
    for name, definition in sorted(schema["$defs"].items()):
        yield from _section(name, definition)
    yield "## Environment\n"
    yield _table(("variable", "meaning"), [(f"`{name}`", meaning) for name, meaning in VARIABLES.items()])


def _section(name: str, schema: dict[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    yield f"## {name}\n"
    yield f"{_unwrapped(schema['description']).replace('``', '`')}\n"
    yield _table(
        ("field", "type", "default", "meaning"),
        [
            (f"`{field}`", _type(value), _default(value, field in required), value.get("description", ""))
            for field, value in schema["properties"].items()
        ],
    )


def _type(schema: dict[str, Any]) -> str:
    """Return a type in words, with its limits."""
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if alternatives:
        return " or ".join(dict.fromkeys(_type(alternative) for alternative in alternatives))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema or "const" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    limits = [f"{word} {schema[key]}" for key, word in _LIMITS.items() if key in schema]
    return " ".join((_TYPES.get(schema.get("type", ""), "any"), *limits))


_LIMITS = {"minimum": "from", "maximum": "to"}
_TYPES = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
}
_TYPES["object"] = "mapping"


def _default(schema: dict[str, Any], required: bool) -> str:
    if required:
        return "required"
    value = schema.get("default")
    if isinstance(value, dict):
        value = {name: part for name, part in value.items() if part not in (None, {}, False)}
        value = value.get("name", value)
    return "" if value in (None, {}) else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


def main(folder: str) -> None:
    """Write all pages into a folder."""
    for name, text in pages().items():
        Path(folder, name).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
