"""YAML files as plain values that remember the line they stand on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from graphcache.errors import ConfigError

MAX_FILE_BYTES = 256 * 1024
MAX_DEPTH = 20

Location = tuple[int | str, ...]
"""The way to a value: names of fields, and indices into lists."""


@dataclass(frozen=True, slots=True)
class Document:
    """A mapping of fields, and where each came from.

    ``node`` is the tree that ``fields`` were made of; None where they came from Python, not from a file.
    """

    source: str
    fields: dict[str, Any]
    node: yaml.Node | None = None

    def place(self, location: Location) -> str:
        """Return ``file:line`` of a field, or of the nearest thing around it that is in the file."""
        return self.source if self.node is None else f"{self.source}:{self.line(location)}"

    def line(self, location: Location) -> int:
        """Return the line of a field, or of the nearest thing around it; 0 where there is no file."""
        if self.node is None:
            return 0
        node, line = self.node, self.node.start_mark.line
        for part in location:
            found = _step(node, part)
            if found is not None:
                node, line = found
        return line + 1


def read_document(path: Path) -> Document:
    """Read a YAML file of one mapping: no tags, no aliases, no field twice, of bounded size and depth.

    Raises:
        ConfigError: no such file, or not such a file; names file, line and what is wrong.
    """
    text = read_text(path)
    try:
        node, fields = _parse(text)
    except _Refused as error:
        raise ConfigError(f"{path}:{error.line + 1}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(fields, dict):
        raise ConfigError(
            f"{path}:1: {fields!r} is not allowed; allowed: fields, such as policy: static-mask"
        )
    return Document(str(path), fields, node)


def _parse(text: str) -> tuple[yaml.Node | None, Any]:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return node, loader.construct_document(node) if node is not None else None
    finally:
        loader.dispose()


def read_text(path: Path) -> str:
    """Read a file of UTF-8 text of bounded size.

    Raises:
        ConfigError: it can't be read, saying why.
    """
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: not a file; allowed: a YAML file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: too long; allowed: at most {MAX_FILE_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from None


class _Refused(Exception):
    """A construct of YAML that a configuration must not use."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line


class _Loader(yaml.SafeLoader):
    """Composes plain trees only: an alias could stand for more than memory holds."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(line, f"the alias *{event.anchor} is not allowed; write the value out")
        if getattr(event, "tag", None):
            raise _Refused(line, f"the tag {event.tag} is not allowed; write the plain value")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Refused(line, f"nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _Refused(key.start_mark.line, f"{key.value}: given twice")
                seen.add(key.value)
        return node


def _step(node: yaml.Node, part: int | str) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == part:
                return value, key.start_mark.line
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        item = node.value[part]
        return item, item.start_mark.line
    return None
