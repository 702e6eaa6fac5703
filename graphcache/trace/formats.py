"""Readers of the public trace formats, and of ours; each is recognised by what its first line holds."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np

from graphcache.errors import ConfigError
from graphcache.trace.requests import Lengths, Times, Trace
from graphcache.trace.steps import Steps

MOONCAKE_GRID_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Columns:
    """The values of a format's fields, one list a field; ``seed`` is for what a file leaves open."""

    path: Path
    first_line: int
    values: dict[str, list[Any]]
    seed: int
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The trace's name: the file's, without its suffix."""
        return self.path.stem

    def numbers(self, field: str) -> Times:
        """Return one field as finite numbers."""
        values = self.values[field]
        try:
            numbers = np.array(values, dtype=np.float64)
        except (TypeError, ValueError):
            numbers = np.array([_number(value) for value in values])
        bad = np.flatnonzero(~np.isfinite(numbers))
        if len(bad):
            self.refuse(field, int(bad[0]), "a number")
        return numbers

    def lengths(self, field: str) -> Lengths:
        """Return one field as whole numbers of tokens."""
        numbers = self.numbers(field)
        bad = np.flatnonzero((numbers != np.floor(numbers)) | (np.abs(numbers) > 2**53))
        if len(bad):
            self.refuse(field, int(bad[0]), "a whole number")
        return numbers.astype(np.int64)

    def refuse(self, field: str, row: int, allowed: str) -> NoReturn:
        """Fail on one value.

        Raises:
            ConfigError: always; names file, line, field, value and what is allowed.
        """
        value = self.values[field][row]
        raise ConfigError(
            f"{self.path}:{self.first_line + row}: {field}: {value!r} is not allowed; allowed: {allowed}"
        )


@dataclass(frozen=True, slots=True)
class Format:
    """One format: the fields that it is recognised by, and what is made of them."""

    name: str
    syntax: str
    fields: tuple[str, ...]
    build: Callable[[Columns], Trace | Steps]

    def __str__(self) -> str:
        joined = ",".join(self.fields)
        shown = joined if self.syntax == "csv" else "{" + ", ".join(f'"{f}": …' for f in self.fields) + "}"
        return f"{self.name} ({self.syntax}): {shown}"


def read_trace(path: str | Path, *, seed: int = 0) -> Trace | Steps:
    """Read a request trace, or recorded steps; the format is recognised from the first line.

    Requests come back sorted, their first arrival at 0; what was assumed or left out is in ``notes``.
    Lengths without times get Poisson arrivals at 1 a second, drawn with ``seed``.

    Raises:
        ConfigError: no such file, an unknown format (the message shows those that are accepted), or a
            value that is wrong (it names line, field and value).
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read(path, file, seed)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a trace: {error}") from None


def _read(path: Path, file: TextIO, seed: int) -> Trace | Steps:
    first = file.readline()
    if first.lstrip().startswith("{"):
        known = _object(first) or {}
        format = _recognise(path, "jsonl", known)
        rows, notes = _json_rows(path, chain([first], file), format.fields)
        first_line = 1
    else:
        header = [name.strip() for name in next(csv.reader([first]), [])]
        format = _recognise(path, "csv", header)
        rows, notes = _csv_rows(path, csv.reader(file), [header.index(field) for field in format.fields]), ()
        first_line = 2
    columns = map(list, zip(*rows, strict=True)) if rows else ([] for _ in format.fields)
    return format.build(
        Columns(path, first_line, dict(zip(format.fields, columns, strict=True)), seed, notes)
    )


def _recognise(path: Path, syntax: str, names: Any) -> Format:
    for format in FORMATS:
        if format.syntax == syntax and set(format.fields) <= set(names):
            return format
    accepted = "\n".join(f"  {format}" for format in FORMATS)
    raise ConfigError(
        f"{path}: {sorted(names)!r} is no known trace; accepted, by the first line:\n{accepted}"
    )


def _csv_rows(path: Path, reader: Iterator[list[str]], at: list[int]) -> list[tuple[str, ...]]:
    rows = []
    for line, row in enumerate(reader, 2):
        try:
            rows.append(tuple([row[index] for index in at]))
        except IndexError:
            raise ConfigError(
                f"{path}:{line}: {row!r} is not allowed; allowed: {max(at) + 1} columns"
            ) from None
    return rows


def _json_rows(
    path: Path, lines: Iterator[str], fields: tuple[str, ...]
) -> tuple[list[tuple[Any, ...]], tuple[str, ...]]:
    """Read one object a line; a last line that was cut off is left out, with a note."""
    rows: list[tuple[Any, ...]] = []
    for number, line in enumerate(lines, 1):
        row = _object(line)
        if row is None and not line.endswith("\n"):
            return rows, ("the last line was cut off, and is left out",)
        if row is None or not row.keys() >= set(fields):
            raise ConfigError(f"{path}:{number}: {line[:80]!r} is not allowed; allowed: {', '.join(fields)}")
        rows.append(tuple([row[field] for field in fields]))
    return rows, ()


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def _seconds(columns: Columns, arrived: str, prompt: str, output: str) -> Trace:
    """Build a trace from times in seconds."""
    return Trace.of(
        columns.name,
        columns.numbers(arrived),
        columns.lengths(prompt),
        columns.lengths(output),
        columns.notes,
    )


def _named_seconds(arrived: str, prompt: str, output: str) -> Callable[[Columns], Trace]:
    return lambda columns: _seconds(columns, arrived, prompt, output)


def _azure(columns: Columns) -> Trace:
    """Build a trace from times that are dates."""
    stamps: list[datetime] = []
    for row, text in enumerate(columns.values["TIMESTAMP"]):
        try:
            stamps.append(datetime.fromisoformat(text))
            seconds = (stamps[-1] - stamps[0]).total_seconds()
        except (TypeError, ValueError):
            columns.refuse("TIMESTAMP", row, "a date and time such as 2023-11-16 18:17:03.9799600")
        columns.values["TIMESTAMP"][row] = seconds
    return _seconds(columns, "TIMESTAMP", "ContextTokens", "GeneratedTokens")


def _mooncake(columns: Columns) -> Trace:
    """Build a trace from times in milliseconds; equal ones on the 3 s grid are spread over their 3 s."""
    arrived = columns.numbers("timestamp") / 1000
    notes = columns.notes
    if len(arrived) and not (arrived % MOONCAKE_GRID_SECONDS).any():
        _, place, counts = np.unique(arrived, return_inverse=True, return_counts=True)
        order = np.argsort(place, kind="stable")
        rank = np.empty(len(arrived))
        rank[order] = np.arange(len(arrived)) - np.repeat(np.cumsum(counts) - counts, counts)
        arrived = arrived + MOONCAKE_GRID_SECONDS * rank / counts[place]
        notes = (
            *notes,
            "arrivals are recorded on a grid of 3 s, and are spread evenly within each step of it",
        )
    prompt, output = columns.lengths("input_length"), columns.lengths("output_length")
    return Trace.of(columns.name, arrived, prompt, output, notes)


def _lengths(columns: Columns) -> Trace:
    """Build a trace from lengths alone."""
    prompt, output = columns.lengths("num_prefill_tokens"), columns.lengths("num_decode_tokens")
    gaps = np.random.default_rng(columns.seed).exponential(1.0, len(prompt))
    note = f"the file has no times: Poisson arrivals at 1 a second, drawn with seed {columns.seed}"
    return Trace.of(columns.name, np.cumsum(gaps), prompt, output, (*columns.notes, note))


def _steps(columns: Columns) -> Steps:
    """Build the steps that a server recorded."""
    new, cached = columns.values["new"], columns.values["cached"]
    for row, (fresh, old) in enumerate(zip(new, cached, strict=True)):
        if not (_counts(fresh, 1) and _counts(old, 0) and len(fresh) == len(old) > 0):
            columns.refuse(
                "new" if not _counts(fresh, 1) or not fresh else "cached", row, "as many counts in both"
            )
    flat = [np.fromiter(chain.from_iterable(lists), dtype=np.int64) for lists in (new, cached)]
    ends = np.cumsum([len(lengths) for lengths in new], dtype=np.int64)
    return Steps(columns.name, columns.numbers("t"), ends, flat[0], flat[1], notes=columns.notes)


def _counts(values: Any, least: int) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= least for value in values)


FORMATS = (
    Format("azure", "csv", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _azure),
    *(
        Format(name, syntax, fields, _named_seconds(*fields))
        for name, syntax, fields in (
            ("burstgpt", "csv", ("Timestamp", "Request tokens", "Response tokens")),
            ("servegen", "csv", ("arrived_at_s", "input_tokens", "output_tokens")),
            ("vtc", "csv", ("arrived_at_s", "prompt_len", "output_len")),
            ("requests", "jsonl", ("arrived_seconds", "prompt_tokens", "output_tokens")),
        )
    ),
    Format("lengths", "csv", ("num_prefill_tokens", "num_decode_tokens"), _lengths),
    Format("mooncake", "jsonl", ("timestamp", "input_length", "output_length"), _mooncake),
    Format("steps", "jsonl", ("step", "t", "new", "cached"), _steps),
)
"""Every format that is read; the first whose fields all stand in the first line is taken."""
