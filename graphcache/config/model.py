"""A whole configuration, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from graphcache.config.document import Document, read_document
from graphcache.config.ladders import AnyLadder, Ends, LaddersSection, Pow2Ladder
from graphcache.config.problems import config_error
from graphcache.config.sections import (
    BackendName,
    BudgetSection,
    CompileSection,
    EvictionName,
    FilePath,
    Named,
    PolicyName,
    Section,
    StoreSection,
)
from graphcache.errors import ConfigError, UnknownNameError
from graphcache.ladder import Ladder
from graphcache.names import BACKENDS, EVICTIONS, POLICIES, NameTable
from graphcache.policy.protocol import Budget, Ladders

OnMissName: TypeAlias = Literal["compile", "fallback", "log", "raise"]
MaskForm: TypeAlias = Literal["ids", "dense", "flex"]

LEAST_TOKENS = 128
"""Where a ladder of tokens begins unless it says otherwise."""
MOST_TOKENS = 16384
"""Where it ends if neither it nor the server says so."""


WORKER_BYTES = 3 << 29
"""What a compile worker takes with the C++ compiler that it starts, where it has no limit: 1.5 GiB."""


def _shipped(names: NameTable) -> str:
    """List what a field can name, besides what is imported."""
    return f"{', '.join(names.targets)}, or one of your own"


class Config(Section):
    """Everything that can be configured; the fields are those of the YAML file."""

    policy: PolicyName = Field(description=f"Which graphs a batch runs: {_shipped(POLICIES)}.")
    ladder: AnyLadder | None = Field(
        default=None, description="Sizes in tokens that graphs are compiled for."
    )
    dimensions: LaddersSection = Field(
        default=LaddersSection(), alias="ladders", description="Ladders of single dimensions."
    )
    bounds: BudgetSection = Field(
        default=BudgetSection(), alias="budget", description="How much may be resident."
    )
    eviction: EvictionName = Field(
        default=Named(name="lru"), description=f"Which resident graph leaves first: {_shipped(EVICTIONS)}."
    )
    on_miss: OnMissName = Field(
        default="compile", description="What a step does whose graph is not resident."
    )
    frozen_on_miss: OnMissName | None = Field(default=None, description="The same after warm-up.")
    max_slowdown: float | None = Field(
        default=None, ge=1.0, description="How many times slower than the wanted graph a fallback may run."
    )
    store: StoreSection | None = Field(
        default=StoreSection(), description="Artifacts on disk; null keeps none."
    )
    backend: BackendName = Field(
        default=Named(name="inductor"), description=f"What compiles and loads graphs: {_shipped(BACKENDS)}."
    )
    mask: MaskForm = Field(
        default="ids",
        description="How vLLM graphs mask: by segment ids, by a whole mask, or by ids and FlexAttention.",
    )
    compile: CompileSection = Field(default=CompileSection(), description="Compiling beside the steps.")
    profile: str | None = Field(default=None, description="Cost profile: a shipped one's name, or a path.")
    learn_costs: bool = Field(
        default=True, description="Let the seconds that runners measure replace the profile's."
    )
    verify_sample: float = Field(
        default=0.0, ge=0.0, le=1.0, description="Share of loaded graphs that are compared with the model."
    )
    record: FilePath | None = Field(
        default=None,
        description="A file to which every step's batch is written; a number is put in if it exists.",
    )
    strict: bool = Field(default=False, description="Raise faults of the cache instead of surviving them.")

    _document: Document = PrivateAttr(Document("configuration", {}))

    @model_validator(mode="after")
    def _one_prefill_ladder(self) -> Config:
        if self.ladder is not None and self.dimensions.prefill is not None:
            problem = "prefill is given beside ladder; allowed: one of the two"
            raise PydanticCustomError("conflict", problem, {"field": "ladders"})
        return self

    @property
    def budget(self) -> Budget:
        """How much may be resident, as the cache takes it."""
        return Budget(self.bounds.graphs, self.bounds.bytes)

    @property
    def workers(self) -> int:
        """How many processes compile beside the steps."""
        if self.compile.workers is not None:
            return self.compile.workers
        return int("fallback" in (self.on_miss, self.frozen_on_miss))

    @property
    def worker_bytes(self) -> int:
        """How much memory those processes may take together: their limits, or what they take as a rule."""
        return self.workers * (self.compile.max_bytes or WORKER_BYTES)

    def ladders(
        self, *, max_tokens: int | None = None, max_rows: int = 1, max_cached: int | None = None
    ) -> Ladders:
        """Build the ladders; the server's limits, in tokens and rows, stand in for ends that were left out.

        Raises:
            LadderError: a ladder does not increase, as with a ``min`` above the server's limit.
        """
        top = max_tokens or MOST_TOKENS
        field = "ladders" if self.dimensions.prefill else "ladder"
        prefill = self.ladder or self.dimensions.prefill or Pow2Ladder()
        rows = self.dimensions.rows or Pow2Ladder()
        decode = self.dimensions.decode or (Pow2Ladder() if max_cached else None)
        return Ladders(
            prefill=self._built(prefill, Ends(LEAST_TOKENS, top, self.profile), field),
            rows=self._built(rows, Ends(1, max_rows), "ladders", "rows"),
            decode=self._built(decode, Ends(LEAST_TOKENS, max_cached or MOST_TOKENS), "ladders", "decode")
            if decode
            else None,
        )

    def _built(self, ladder: AnyLadder, ends: Ends, *location: str) -> Ladder:
        try:
            return ladder.build(ends)
        except ConfigError as error:
            raise type(error)(f"{self.place(*location)}: {error}") from error

    def place(self, *location: int | str) -> str:
        """Return where a field stands, as ``file:line: field``, for messages about its value."""
        return f"{self._document.place(location)}: {'.'.join(map(str, location))}"


def load_config(source: str | Path | Mapping[str, Any]) -> Config:
    """Read a configuration: a shipped policy's name, the path of a YAML file, or the fields themselves.

    Raises:
        ConfigError: a problem a line, each naming file, line, field, value and what is allowed.
        UnknownNameError: no such policy is shipped; or the only problem is a name that no table holds.
    """
    if isinstance(source, Mapping):
        document = Document("configuration", dict(source))
    else:
        document = read_document(policy_path(source))
    try:
        config = Config.model_validate(document.fields)
    except ValidationError:
        raise config_error(Config, document) from None
    config._document = document
    return config


def shipped_policies() -> dict[str, Path]:
    """Return the configurations that come with the package, by name."""
    folder = Path(str(files("graphcache"))) / "policies"
    if not folder.is_dir():  # an editable checkout
        folder = Path(__file__).parents[2] / "policies"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def policy_path(source: str | Path) -> Path:
    """Return the YAML file of a shipped policy's name; a path is its own.

    A text is a path if there is a slash in it, or it ends in ``.yaml`` or ``.yml``.

    Raises:
        UnknownNameError: no such policy is shipped.
    """
    if isinstance(source, Path) or "/" in source or Path(source).suffix in (".yaml", ".yml"):
        return Path(source).expanduser()
    shipped = shipped_policies()
    if source not in shipped:
        unknown = UnknownNameError.among("policy", source, shipped)
        raise UnknownNameError(f"{unknown}; a YAML file is given by its path, such as ./{source}.yaml")
    return shipped[source]
