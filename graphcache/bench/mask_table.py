"""The mask table as people read it: in rows, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from graphcache.bench.masks import BATCH_FORMS, LONE_FORMS, Row
from graphcache.key import GraphKey, MaskMode
from graphcache.picture import new_figure, save_figure
from graphcache.profiles import load_profile

PUBLISHED = "tenstorrent-qwen3-embedding-4b"

Columns = Sequence[str]
Lines = list[tuple[str, ...]]


def published() -> dict[int, float]:
    """Return what a custom mask costs on Tenstorrent, by length, as a multiple of no mask at all."""
    measured = load_profile(PUBLISHED).measured
    seconds = {key: costs.run_seconds or 0.0 for key, costs in measured.items()}
    lengths = sorted({key.seq_len for key in measured})
    return {
        length: seconds[GraphKey(1, length, mode=MaskMode.CUSTOM)]
        / seconds[GraphKey(1, length, mode=MaskMode.CAUSAL)]
        for length in lengths
    }


def lone_table(rows: Iterable[Row]) -> tuple[Columns, Lines]:
    """Return one sequence in each form, in milliseconds, with what a mask costs, here and as published."""
    elsewhere = published()
    columns = ["tokens", *(f"#{form} ms" for form in LONE_FORMS), "#dense / causal", "#published"]
    lines = []
    for (length, _), by_form in _grouped(row for row in rows if row.sequences == 1):
        ratio = _ratio(by_form.get("custom-dense"), by_form.get("causal"))
        told = f"{elsewhere[length]:.2f}x" if length in elsewhere else ""
        lines.append((str(length), *(_ms(by_form.get(form)) for form in LONE_FORMS), ratio, told))
    return columns, lines


def batch_table(rows: Iterable[Row]) -> tuple[Columns, Lines]:
    """Return several sequences in each layout, in milliseconds, with what packing costs against the best."""
    columns = ["tokens", "#sequences", *(f"#{form} ms" for form in BATCH_FORMS), "#packed / best"]
    lines = []
    for (length, sequences), by_form in _grouped(row for row in rows if row.sequences > 1):
        cells = (_ms(by_form.get(form)) for form in BATCH_FORMS)
        best = min((seconds for seconds in by_form.values() if seconds is not None), default=None)
        ratio = _ratio(by_form.get("packed"), best)
        lines.append((str(length), str(sequences), *cells, ratio))
    return columns, lines


def _grouped(rows: Iterable[Row]) -> Iterable[tuple[tuple[int, int], dict[str, float | None]]]:
    groups: dict[tuple[int, int], dict[str, float | None]] = {}
    for row in rows:
        groups.setdefault((row.length, row.sequences), {})[row.form] = row.seconds
    return groups.items()


def _ms(seconds: float | None) -> str:
    return "skipped" if seconds is None else f"{seconds * 1e3:.3g}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _ratio(slow: float | None, fast: float | None) -> str:
    return f"{slow / fast:.2f}x" if slow and fast else ""


def plot(rows: Sequence[Row], path: Path) -> None:
    """Draw seconds over lengths, a panel for each scope and number of sequences that was measured.

    The suffix of ``path`` says which kind of picture it is: ``.png``, ``.svg``, ``.pdf``.

    Raises:
        ConfigError: matplotlib is not installed, no such kind of picture, or a path that can't be written.
    """
    panels = list(dict.fromkeys((row.scope, row.sequences) for row in rows))
    scopes = list(dict.fromkeys(scope for scope, _ in panels))
    wide = max(sum(panel[0] == scope for panel in panels) for scope in scopes)
    figure = new_figure(3.5 * wide, 3.5 * len(scopes))
    axes = figure.subplots(len(scopes), wide, squeeze=False)
    for line, scope in zip(axes, scopes, strict=True):
        for panel, (_, sequences) in zip(line, [p for p in panels if p[0] == scope], strict=False):
            _draw(panel, scope, sequences, [r for r in rows if (r.scope, r.sequences) == (scope, sequences)])
    save_figure(figure, path)


def _draw(axes: Any, scope: str, sequences: int, rows: Sequence[Row]) -> None:
    for form in dict.fromkeys(row.form for row in rows):
        points = [(row.length, row.seconds) for row in rows if row.form == form and row.seconds]
        axes.plot(*zip(*points, strict=True) if points else ((), ()), marker="o", label=form)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("seconds")
    axes.set_title(f"{scope}, {sequences} sequence{'s' if sequences > 1 else ''}")
    axes.legend(fontsize="small")
