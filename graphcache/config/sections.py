"""The sections of a configuration: their fields, and what is allowed in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from graphcache.bytesize import ALLOWED_BYTES, parse_bytes
from graphcache.errors import ConfigError
from graphcache.names import BACKENDS, EVICTIONS, POLICIES, NameTable

FilePath: TypeAlias = Annotated[Path, Field(strict=False)]


class Section(BaseModel):
    """A mapping of known fields; values are taken as they are written, never converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, value: Any) -> Any:
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for field in value if isinstance(value, dict) else ():
            if field not in known:
                details = {"field": str(field), "known": sorted(known)}
                raise PydanticCustomError("unknown_field", "an unknown field", details)
        return value


class Named(Section):
    """One of a table's names, and the options of what it stands for.

    A plain text is a name without options.
    """

    name: str = Field(min_length=1, description="A known name, or module:Attribute.")
    options: dict[str, Any] = Field(default={}, description="Keyword arguments of what the name stands for.")


def _as_named(table: NameTable) -> Callable[[Any], Any]:
    def named(value: Any) -> Any:
        if not isinstance(value, str | dict | Named):
            raise ConfigError.of(table.what, value, "a name, or {name: …, options: …}")
        fields = {"name": value} if isinstance(value, str) else value
        if isinstance(fields, dict) and isinstance(fields.get("name"), str):
            table.check(fields["name"])
        return fields

    return named


PolicyName: TypeAlias = Annotated[
    Named, BeforeValidator(_as_named(POLICIES), json_schema_input_type=str | Named)
]
EvictionName: TypeAlias = Annotated[
    Named, BeforeValidator(_as_named(EVICTIONS), json_schema_input_type=str | Named)
]
BackendName: TypeAlias = Annotated[
    Named, BeforeValidator(_as_named(BACKENDS), json_schema_input_type=str | Named)
]


def _as_bytes(value: Any, info: ValidationInfo) -> int:
    return parse_bytes(value, info.field_name or "size")


Bytes: TypeAlias = Annotated[
    int,
    BeforeValidator(_as_bytes, json_schema_input_type=int | str),
    Field(description=f"Allowed: {ALLOWED_BYTES}."),
]


class BudgetSection(Section):
    """How much may be resident; a bound that is left out is no bound."""

    graphs: int | None = Field(default=None, ge=1, description="Graphs that may be resident at once.")
    bytes: Bytes | None = Field(default=None, description="What resident graphs may hold together.")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class SealSection(Section):
    """Keys that vouch for entries of a store that others can write."""

    key_file: Annotated[list[FilePath], BeforeValidator(_as_list, json_schema_input_type=str | list[str])] = (
        Field(
            min_length=1,
            description="A file of one key, or several such files: the first seals, all are accepted.",
        )
    )


class StoreSection(Section):
    """Where compiled artifacts outlive the process."""

    path: FilePath | None = Field(
        default=None,
        description="A directory; $GRAPHCACHE_STORE, else the user's cache directory, if left out.",
    )
    max_bytes: Bytes | None = Field(
        default=None, description="Bound of the store; the least recently used leave."
    )
    read_only: bool = Field(default=False, description="Only read it: a store baked into an image, say.")
    shared: bool = Field(default=False, description="Trust everybody who can write it, also without a seal.")
    together: Annotated[
        list[Literal["modes", "ranks"]], BeforeValidator(_as_list, json_schema_input_type=str | list[str])
    ] = Field(
        default=[],
        description="What is served whole or not at all: the `modes` of one shape, the `ranks` of a launch.",
    )
    seal: SealSection | None = Field(default=None, description="Load nothing that does not bear a seal.")


_Nice: TypeAlias = Annotated[int, Field(ge=0, le=19)] | Literal["idle"]


def _as_nice(value: Any) -> Any:
    if value == "idle" or (type(value) is int and 0 <= value <= 19):
        return value
    raise ConfigError.of("nice", value, "0 to 19, or idle")


class CompileSection(Section):
    """Compiling beside the steps, in processes of their own."""

    workers: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="Processes that compile; 0 compiles in line. One, if left out, where a miss falls back.",
    )
    max_seconds: float | None = Field(default=900.0, gt=0, description="What one compile may take.")
    max_bytes: Bytes | None = Field(default=None, description="Memory that one worker may take.")
    nice: Annotated[int | Literal["idle"], BeforeValidator(_as_nice, json_schema_input_type=_Nice)] = Field(
        default="idle",
        description="Niceness added to a worker's; `idle`: it runs where a processor has nothing else to do.",
    )
