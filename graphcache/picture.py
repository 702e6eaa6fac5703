"""Pictures of results: the optional matplotlib, and what can go wrong when one is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphcache.errors import ConfigError


def new_figure(width: float, height: float) -> Any:
    """Return an empty matplotlib figure, of so many inches.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plot: matplotlib is missing; install 'vllm-graphcache[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure; the suffix of ``path`` says which kind of picture: ``.png``, ``.svg``, ``.pdf``.

    Raises:
        ConfigError: no such kind of picture, or a path that can't be written.
    """
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"plot: {path} can't be written: {error}") from None
