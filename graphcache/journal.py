"""Keeps what a cache counts and learns, from time to time and at the end, away from its hot path."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence

from graphcache.errors import StoreError
from graphcache.stats import Stats


class Journal:
    """Calls each of ``writers`` every ``period_seconds`` in a thread of its own, and once more at ``close``.

    A writer that fails is counted, never heard of by the caller.  The process's exit closes it.
    """

    def __init__(
        self, writers: Sequence[Callable[[], None]], stats: Stats, *, period_seconds: float = 30.0
    ) -> None:
        self._writers = writers
        self._stats = stats
        self._period_seconds = period_seconds
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="graphcache-journal", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """Write for the last time; closing twice is closing once."""
        if self._end.is_set():
            return
        atexit.unregister(self.close)
        self._end.set()
        self._thread.join()
        self.write()

    def write(self) -> None:
        """Call every writer once."""
        for writer in self._writers:
            try:
                writer()
            except (StoreError, OSError) as error:
                self._stats.errors["journal"] += 1
                if self._stats.strict:
                    raise error

    def _run(self) -> None:
        while not self._end.wait(self._period_seconds):
            self.write()
