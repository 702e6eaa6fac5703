"""What pydantic found wrong, told with file, line, field, value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from graphcache.config.document import Document, Location
from graphcache.config.ladders import LADDER_TAGS, NAMED
from graphcache.errors import ConfigError

_ALLOWED = {
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "model_type": "a mapping of fields",
    "string_too_short": "a text that is not empty",
    "too_short": "at least {min_length} of them",
    "path_type": "a path",
    "literal_error": "{expected}",
}
"""Our words for pydantic's kinds of errors; the others read well enough in its own."""


def config_error(model: type[BaseModel], document: Document) -> ConfigError:
    """Build the error that tells every problem, one a line, in the document's order of lines.

    It has the class of the error that a validator raised, where there is one problem only.
    """
    problems = [_Problem(error, document) for error in _errors(model, document.fields)]
    meant = {problem.meant for problem in problems}
    problems = [each for each in problems if each.kind != "missing" or each.location not in meant]
    problems.sort(key=lambda problem: problem.line)
    classes = {problem.error_class for problem in problems}
    raised = classes.pop() if len(classes) == 1 else ConfigError
    return raised("\n".join(problem.text for problem in problems))


def _errors(model: type[BaseModel], fields: dict[str, Any]) -> list[Any]:
    """Return pydantic's errors; a section that is refused for a field is looked at again without it."""
    try:
        model.model_validate(fields)
    except ValidationError as invalid:
        errors: list[Any] = invalid.errors(include_url=False)
        unknown = [error for error in errors if error["type"] == "unknown_field"]
        for error in unknown:
            fields = _without(fields, [*_real(tuple(error["loc"]), fields), error["ctx"]["field"]])
        return [*unknown, *_errors(model, fields)] if unknown else errors
    return []


def _without(fields: Any, location: Sequence[int | str]) -> Any:
    """Return a copy of nested fields that lacks one of them."""
    first, *rest = location
    if not rest:
        return {field: value for field, value in fields.items() if str(field) != first}
    return {**fields, first: _without(fields[first], rest)}


class _Problem:
    """One problem as a line of text."""

    def __init__(self, error: Any, document: Document) -> None:
        self.kind: str = error["type"]
        self.context: dict[str, Any] = error.get("ctx", {})
        self.value = error["input"]
        self.message: str = error["msg"]
        location = tuple(error["loc"])
        if "field" in self.context:  # of the section that was refused
            location += (self.context["field"],)
        self.location = tuple(_real(location, document.fields))
        self.line = document.line(self.location)
        self.text = f"{document.place(self.location)}: {self._told()}"

    @property
    def meant(self) -> Location | None:
        """The field that an unknown one was probably meant for."""
        near = get_close_matches(self.context["field"], self.context["known"], n=1) if self.unknown else []
        return (*self.location[:-1], near[0]) if near else None

    @property
    def unknown(self) -> bool:
        """Whether there is no such field."""
        return self.kind == "unknown_field"

    @property
    def error_class(self) -> type[ConfigError]:
        raised = self.context.get("error")
        return type(raised) if isinstance(raised, ConfigError) else ConfigError

    def _told(self) -> str:
        field = ".".join(map(str, self.location))
        if self.unknown:
            hint = f"; did you mean {self.meant[-1]!r}?" if self.meant else ""
            return f"{field}: no such field{hint}; allowed: {', '.join(self.context['known'])}"
        if self.kind in ("missing", "conflict"):
            return f"{field}: {self.message if self.kind == 'conflict' else 'is missing'}"
        raised = self.context.get("error")
        if isinstance(raised, ConfigError):
            return _join(field, str(raised))
        return f"{field}: {_short(self.value)} is not allowed; allowed: {self._allowed()}"

    def _allowed(self) -> str:
        words = _ALLOWED.get(self.kind)
        return words.format(**self.context) if words else self.message.removeprefix("Input should be ")


def _join(field: str, message: str) -> str:
    """Put a field before a message, unless it already begins with it."""
    last = field.rpartition(".")[2]
    return f"{field}: {message.removeprefix(f'{last}: ')}" if field else message


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _real(location: Location, fields: Any) -> Iterator[int | str]:
    """Leave out the parts of a location that name alternatives of a type, not fields of the document."""
    for part in location:
        there = isinstance(fields, dict) and part in fields
        if part in (*LADDER_TAGS, NAMED) and not there:
            continue
        yield part
        fields = fields[part] if there else None
