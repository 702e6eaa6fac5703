"""Recording the steps of a live server, so that they can be simulated later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TextIO

from graphcache.batch import Batch, Sequence

logger = logging.getLogger(__name__)


def _numbered(path: Path) -> Iterator[Path]:
    yield path
    for number in count(2):
        yield path.with_stem(f"{path.stem}-{number}")


class StepRecorder:
    """Writes each step's batch to a new JSONL file, in bulk.

    ``path`` says which; where that is there already, of an earlier process or of another rank, a number is
    put in: ``steps.jsonl``, ``steps-2.jsonl``, ``steps-3.jsonl``, …
    A line is ``{"step": n, "t": seconds, "new": [tokens, …], "cached": [tokens, …]}``, ``t`` counted from
    the first step.  A step costs one append to a list; its line is written when ``buffered_steps`` have
    come together.  The file ends at ``max_bytes``: what comes after is counted in ``dropped``, as is
    everything after a fault of the disk, which is logged once.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 256 * 2**20,
        buffered_steps: int = 512,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.recorded = 0
        self.dropped = 0
        self._buffered_steps = buffered_steps
        self._clock = clock
        self._buffer: list[tuple[float, tuple[Sequence, ...]]] = []
        self._start: float | None = None
        self._bytes = 0
        self._file: TextIO | None = self._open()

    def _open(self) -> TextIO | None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for path in _numbered(self.path):
                try:
                    file = path.open("x", encoding="ascii", buffering=1 << 16)
                except FileExistsError:
                    continue
                logger.info("steps are recorded in %s", path)
                self.path = path
                return file
        except OSError as error:
            logger.warning("steps are not recorded: %s", error)
        return None

    def record(self, batch: Batch) -> None:
        """Take note of one step."""
        buffer = self._buffer
        buffer.append((self._clock(), batch.sequences))
        if len(buffer) >= self._buffered_steps:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        buffer, self._buffer = self._buffer, []
        if buffer and self._start is None:
            self._start = buffer[0][0]
        if self._file is None or not buffer:
            self.dropped += len(buffer)
            return
        lines = [self._line(self.recorded + index, *step) for index, step in enumerate(buffer)]
        kept = self._within_bound(lines)
        try:
            self._file.write("".join(kept))
            self._file.flush()
        except OSError as error:
            logger.warning("recording of steps ends after %d: %s", self.recorded, error)
            self._end()
            kept = []
        self.recorded += len(kept)
        self.dropped += len(lines) - len(kept)
        if self._file is not None and len(kept) < len(lines):
            logger.info("recording of steps ends after %d: %s is full", self.recorded, self.path)
            self._end()

    def _within_bound(self, lines: list[str]) -> list[str]:
        for index, line in enumerate(lines):
            if self._bytes + len(line) > self.max_bytes:
                return lines[:index]
            self._bytes += len(line)
        return lines

    def _line(self, step: int, time: float, sequences: tuple[Sequence, ...]) -> str:
        seconds = round(time - (self._start or 0.0), 6)
        new = ",".join([str(sequence.new) for sequence in sequences])
        cached = ",".join([str(sequence.cached) for sequence in sequences])
        return f'{{"step":{step},"t":{seconds},"new":[{new}],"cached":[{cached}]}}\n'

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                logger.warning("%s could not be closed: %s", self.path, error)

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.flush()
        self._end()

    def __enter__(self) -> StepRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()
