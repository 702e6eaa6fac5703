"""One at a time per key: whoever asks for what is under way waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from graphcache.key import GraphKey

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs at most one call per key at once; those who come meanwhile get its result, or its error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[GraphKey, Future[T]] = {}

    def do(self, key: GraphKey, call: Callable[[], T]) -> T:
        """Return ``call()``, or the result of the call for this key that is under way.

        Raises:
            Exception: what the call raised, for all who waited.
        """
        with self._lock:
            flight = self._flights.get(key)
            leads = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        if not leads:
            return flight.result()
        try:
            flight.set_result(call())
        except BaseException as error:
            flight.set_exception(error)
        finally:
            with self._lock:
                del self._flights[key]
        return flight.result()
