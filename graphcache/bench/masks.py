"""What the choice of mask is worth: equal work under every form of mask and every layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from graphcache.bench.graphs import SampleGraphs
from graphcache.bench.sample import ATTENTION, BLOCK, MODEL, SampleProgram
from graphcache.bench.timing import Progress, Work, medians, silent, timed
from graphcache.costs import CostTable
from graphcache.errors import CompileError, ConfigError
from graphcache.key import GraphKey, MaskMode

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SEVERAL = (2, 4, 8)
TOPS = {"attention": 16384, "model": 4096}
"""The scopes, and the longest length of each where none are given."""

KINDS = {"attention": ATTENTION, "model": MODEL}
LONE_FORMS = ("custom-dense", "custom-ids", "custom-flex", "causal")
BATCH_FORMS = ("packed", "custom-flex", "rows", "split")

_BYTES_PER_PAIR = 4
"""What a mask takes while it is made and used: a byte of truth twice, two of bfloat16."""


class Row(NamedTuple):
    """One cell: ``sequences`` equal ones that add up to ``length`` tokens; ``seconds`` None if skipped.

    Of one sequence: ``custom-dense`` takes a mask that was made outside the graph, ``custom-ids`` segment
    ids, ``custom-flex`` those and FlexAttention's tables, ``causal`` nothing.  Of several: ``packed`` in one
    row is ``custom-ids``, ``rows`` one causal launch of a row each, ``split`` one causal launch each.
    """

    length: int
    sequences: int
    form: str
    scope: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a cell may take: seconds of one run, and bytes of masks; one that would take more is skipped."""

    run_seconds: float = 60.0
    mask_bytes: int = 4 << 30


def cells(length: int, scope: str) -> Iterator[Row]:
    """Yield the cells of one length, without their seconds."""
    for form in LONE_FORMS:
        yield Row(length, 1, form, scope)
    for sequences in SEVERAL:
        if length % sequences == 0:
            yield from (Row(length, sequences, form, scope) for form in BATCH_FORMS)


def graph_key(cell: Row) -> GraphKey:
    """Return the key of the graph that a cell runs."""
    kind, length, each = KINDS[cell.scope], cell.length, cell.length // cell.sequences
    match cell.form:
        case "causal":
            return GraphKey(1, length, mode=MaskMode.CAUSAL, kind=kind)
        case "rows":
            return GraphKey(cell.sequences, each, mode=MaskMode.CAUSAL, kind=kind)
        case "split":
            return GraphKey(1, each, mode=MaskMode.CAUSAL, kind=kind)
    flags = {"custom-dense": ("dense",), "custom-flex": ("flex",)}.get(cell.form, ())
    return GraphKey(1, length, mode=MaskMode.CUSTOM, kind=kind, flags=flags)


class MaskBench:
    """Measures cells; ``notes`` says why some were skipped."""

    def __init__(self, graphs: SampleGraphs, *, repeats: int = 5, limits: Limits | None = None) -> None:
        self.graphs = graphs
        self.repeats = repeats
        self.limits = limits or Limits()
        self.notes: dict[str, str] = {}
        self._last: dict[tuple[str, str, int], tuple[int, float]] = {}

    def measure(
        self,
        lengths: Sequence[int] | None = None,
        scopes: Sequence[str] = tuple(TOPS),
        progress: Progress = silent,
    ) -> Iterator[Row]:
        """Yield the cells of each length; without ``lengths``, those of `LENGTHS` up to each scope's top.

        Raises:
            ConfigError: a length that the model does not take, or a scope that there is not.
            CompileError: a graph without FlexAttention can't be compiled.
        """
        self._check(lengths or (), scopes)
        plan = [
            list(cells(length, scope))
            for scope in scopes
            for length in lengths or [length for length in LENGTHS if length <= TOPS[scope]]
        ]
        total, done = sum(map(len, plan)), 0
        for group in plan:
            works: dict[Row, Work] = {}
            for cell in group:
                progress(f"{cell.scope} {cell.length}: {cell.form}", done, total)
                done += 1
                work = self._prepare(cell)
                if work:
                    works[cell] = work
            progress(f"{group[0].scope} {group[0].length}: repeats", done, total)
            seconds = medians(works, self.repeats)
            for cell in group:
                yield cell._replace(seconds=seconds.get(cell))

    def profile(self, rows: Sequence[Row]) -> CostTable:
        """Return the costs of the whole model's graphs, as policies and the simulator read them.

        Raises:
            ConfigError: no row is of the whole model.
        """
        measured = {}
        for row in rows:
            if row.scope == "model" and row.seconds and row.form in ("custom-ids", "causal", "rows"):
                key = graph_key(row)
                measured[key] = replace(self.graphs.costs(key), run_seconds=row.seconds)
        if not measured:
            raise ConfigError.of("scope of a profile", sorted({row.scope for row in rows}), "model, measured")
        return CostTable(measured, name="measured")

    def _check(self, lengths: Sequence[int], scopes: Sequence[str]) -> None:
        longest = self.graphs.program.sizes.max_tokens
        for length in lengths:
            if not 1 <= length <= longest:
                raise ConfigError.of("length", length, f"1 to {longest}")
        for scope in scopes:
            if scope not in TOPS:
                raise ConfigError.of("scope", scope, ", ".join(TOPS))

    def _prepare(self, cell: Row) -> Work | None:
        """Compile or load a cell's graph, and run it once; None if that is not possible or too much."""
        key = graph_key(cell)
        if self._too_much(cell, key):
            return None
        try:
            graph = self.graphs[key]
        except CompileError as error:
            if cell.form != "custom-flex":
                raise
            self.notes["FlexAttention"] = str(error).splitlines()[0]
            return None
        work = _work(self.graphs.program, graph, key, cell)
        seconds = timed(work)
        self._last[cell.scope, cell.form, cell.sequences] = (cell.length, seconds)
        return work if seconds <= self.limits.run_seconds else None

    def _too_much(self, cell: Row, key: GraphKey) -> bool:
        flex = cell.form == "custom-flex"
        mask_bytes = 0 if flex or key.mode is MaskMode.CAUSAL else _BYTES_PER_PAIR * cell.length**2
        if mask_bytes > self.limits.mask_bytes or (flex and cell.length % BLOCK):
            return True
        length, seconds = self._last.get((cell.scope, cell.form, cell.sequences), (cell.length, 0.0))
        return cell.length > length and seconds * (cell.length / length) ** 2 > self.limits.run_seconds


def _work(program: SampleProgram, graph: Callable[..., object], key: GraphKey, cell: Row) -> Work:
    """Return one step of a cell: masks, ids and tables are made in it, tokens lie ready."""
    launches = cell.sequences if cell.form == "split" else 1
    in_a_row = 1 if key.mode is MaskMode.CAUSAL else cell.sequences
    tokens = [program.tokens(key, in_a_row) for _ in range(launches)]

    def work() -> None:
        for each in tokens:
            graph(*each, *program.visibility(key, in_a_row))

    return work
