"""The sections of a configuration: their fields, and what is allowed in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from graphcache.bytesize import ALLOWED_BYTES, parse_bytes
from graphcache.errors import ConfigError, LadderError
from graphcache.ladder import Ladder
from graphcache.names import BACKENDS, EVICTIONS, LADDERS, POLICIES, NameTable

MAX_SIZE = 1 << 24
"""Tokens or rows of the largest graph that anybody will compile."""

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


Size: TypeAlias = Annotated[int, Field(ge=1, le=MAX_SIZE)]


class Pow2Ladder(Section):
    """Sizes that double from ``min`` to ``max``."""

    kind: Literal["pow2"] = "pow2"
    min: Size | None = Field(
        default=None, description="The smallest size; 128 tokens, or 1 row, if left out."
    )
    max: Size | None = Field(
        default=None, description="The largest size; the server's own limit if left out."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Pow2Ladder:
        if self.max is not None:
            self.build(1, self.max)
        return self

    def build(self, least: int, most: int) -> Ladder:
        """Build the ladder; ``least`` and ``most`` stand in for ends that were left out."""
        return Ladder.pow2(*_ends(self.min, self.max, least, most))


class LinearLadder(Section):
    """Sizes from ``min`` to ``max`` by ``step``."""

    kind: Literal["linear"]
    min: Size | None = Field(default=None, description="The smallest size; one step if left out.")
    max: Size | None = Field(
        default=None, description="The largest size; the server's own limit if left out."
    )
    step: Size = Field(description="The distance between two sizes.")

    @model_validator(mode="after")
    def _ordered(self) -> LinearLadder:
        if self.max is not None:
            self.build(1, self.max)
        return self

    def build(self, least: int, most: int) -> Ladder:
        """Build the ladder; ``most`` stands in for a ``max`` that was left out."""
        return Ladder.linear(*_ends(self.min, self.max, self.step, most), self.step)


class ExplicitLadder(Section):
    """The sizes themselves."""

    kind: Literal["explicit"]
    sizes: list[Size] = Field(min_length=1, description="Sizes that increase.")

    @model_validator(mode="after")
    def _increasing(self) -> ExplicitLadder:
        self.build(1, 1)
        return self

    def build(self, least: int, most: int) -> Ladder:
        """Build the ladder, whatever the limits."""
        return Ladder(self.sizes)


class NamedLadder(Section):
    """A ladder of another kind: what the name stands for is called with the options."""

    kind: str = Field(json_schema_extra={"not": {"enum": ["pow2", "linear", "explicit"]}})
    options: dict[str, Any] = Field(default={}, description="Keyword arguments of the ladder's function.")

    def build(self, least: int, most: int) -> Ladder:
        """Call the function.

        Raises:
            ConfigError: it refuses its options, or returns no ladder.
        """
        try:
            ladder = LADDERS.find(self.kind)(**self.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"ladder.options: {self.options!r} is not allowed: {error}") from error
        if not isinstance(ladder, Ladder):
            raise LadderError(f"ladder.kind: {self.kind!r} gave {ladder!r}, which is no Ladder")
        return ladder


LADDER_TAGS = ("pow2", "linear", "explicit", "named")


def _ladder_kind(value: Any) -> str:
    kind = value.get("kind", "pow2") if isinstance(value, dict) else getattr(value, "kind", "pow2")
    return kind if kind in LADDER_TAGS else "named"


def _as_ladder(value: Any) -> Any:
    fields = {"kind": value} if isinstance(value, str) else value
    if isinstance(fields, dict) and isinstance(fields.get("kind"), str):
        LADDERS.check(fields["kind"])
    return fields


_Ladder: TypeAlias = Annotated[
    Annotated[Pow2Ladder, Tag("pow2")]
    | Annotated[LinearLadder, Tag("linear")]
    | Annotated[ExplicitLadder, Tag("explicit")]
    | Annotated[NamedLadder, Tag("named")],
    Discriminator(_ladder_kind),
]
AnyLadder: TypeAlias = Annotated[_Ladder, BeforeValidator(_as_ladder, json_schema_input_type=str | _Ladder)]


class LaddersSection(Section):
    """One ladder for each dimension; one that is left out follows from the server's limits."""

    prefill: AnyLadder | None = Field(
        default=None, description="New tokens of a launch; the same as `ladder`."
    )
    rows: AnyLadder | None = Field(default=None, description="Rows of a launch.")
    decode: AnyLadder | None = Field(default=None, description="Cached tokens of a decode or prefix launch.")


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
    seal: SealSection | None = Field(default=None, description="Load nothing that does not bear a seal.")


def _ends(low: int | None, high: int | None, least: int, most: int) -> tuple[int, int]:
    top = most if high is None else high
    return (min(least, top) if low is None else low), top
