"""The kinds of ladders that a configuration can name, and how each is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from graphcache.config.sections import Section
from graphcache.errors import ConfigError, LadderError
from graphcache.ladder import Ladder
from graphcache.names import LADDERS

if TYPE_CHECKING:
    from graphcache.trace import Steps

MAX_SIZE = 1 << 24
"""Tokens or rows of the largest graph that anybody will compile."""

LADDER_TAGS = ("pow2", "linear", "explicit", "learned")
NAMED = "named"
"""How pydantic calls the alternatives; any other kind is a `NamedLadder`."""

LEARNED_REQUESTS = 10_000
"""How many requests of a trace that is generated."""


class Ends(NamedTuple):
    """What stands in where a ladder leaves it out: its ends, and the costs' profile (a name or a path)."""

    least: int
    most: int
    profile: str | None = None


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
            self.build(Ends(1, self.max))
        return self

    def build(self, ends: Ends) -> Ladder:
        """Build the ladder."""
        return Ladder.pow2(*_between(self.min, self.max, ends))


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
            self.build(Ends(1, self.max))
        return self

    def build(self, ends: Ends) -> Ladder:
        """Build the ladder."""
        return Ladder.linear(*_between(self.min, self.max, ends._replace(least=self.step)), self.step)


class ExplicitLadder(Section):
    """The sizes themselves."""

    kind: Literal["explicit"]
    sizes: list[Size] = Field(min_length=1, description="Sizes that increase.")

    @model_validator(mode="after")
    def _increasing(self) -> ExplicitLadder:
        self.build(Ends(1, 1))
        return self

    def build(self, ends: Ends) -> Ladder:
        """Build the ladder."""
        return Ladder(self.sizes)


class LearnedLadder(Section):
    """The sizes that cost the fewest run seconds on a trace of requests, or of a server's own steps."""

    kind: Literal["learned"]
    trace: str = Field(min_length=1, description="A trace's file, or the name of one to generate.")
    graphs: Size = Field(description="How many sizes at most.")
    multiple: Size = Field(default=128, description="What the hardware wants each size to be a multiple of.")
    max: Size | None = Field(
        default=None, description="The largest size; the server's own limit if left out."
    )
    max_num_seqs: Size = Field(default=8, description="Sequences that a step of the server may hold.")
    load: float | None = Field(
        default=None, gt=0, lt=1, description="Stretch arrivals so that the server is busy this share."
    )

    def build(self, ends: Ends) -> Ladder:
        """Replay the trace and learn the ladder from its steps.

        Raises:
            ConfigError: no such trace, or none of its requests fits.
        """
        from graphcache.costs import PaddedWork
        from graphcache.learned_ladder import Histogram, learn_ladder
        from graphcache.profiles import load_profile

        costs = load_profile(ends.profile) if ends.profile else PaddedWork()
        top = -(-(self.max or ends.most) // self.multiple) * self.multiple
        steps = self._steps(top)
        lone = steps.sequences == 1
        histogram = Histogram.of(steps.tokens, lone, costs, multiple=self.multiple, top=top)
        return learn_ladder(histogram, self.graphs)

    def _steps(self, top: int) -> Steps:
        from graphcache.trace import SOURCES, Limits, Steps, generate, read_trace, replay

        requests = generate(self.trace, LEARNED_REQUESTS) if self.trace in SOURCES else read_trace(self.trace)
        if isinstance(requests, Steps):
            return requests.shorter_than(top)
        return replay(requests, Limits(self.max_num_seqs, top), load=self.load)


class NamedLadder(Section):
    """A ladder of another kind: what the name stands for is called with the options."""

    kind: str = Field(json_schema_extra={"not": {"enum": list(LADDER_TAGS)}})
    options: dict[str, Any] = Field(default={}, description="Keyword arguments of the ladder's function.")

    def build(self, ends: Ends) -> Ladder:
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


def _ladder_kind(value: Any) -> str:
    kind = value.get("kind", "pow2") if isinstance(value, dict) else getattr(value, "kind", "pow2")
    return kind if kind in LADDER_TAGS else NAMED


def _as_ladder(value: Any) -> Any:
    fields = {"kind": value} if isinstance(value, str) else value
    if isinstance(fields, dict) and isinstance(fields.get("kind"), str):
        LADDERS.check(fields["kind"])
    return fields


_Ladder: TypeAlias = Annotated[
    Annotated[Pow2Ladder, Tag("pow2")]
    | Annotated[LinearLadder, Tag("linear")]
    | Annotated[ExplicitLadder, Tag("explicit")]
    | Annotated[LearnedLadder, Tag("learned")]
    | Annotated[NamedLadder, Tag(NAMED)],
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


def _between(low: int | None, high: int | None, ends: Ends) -> tuple[int, int]:
    top = ends.most if high is None else high
    return (min(ends.least, top) if low is None else low), top
