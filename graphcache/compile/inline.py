"""Graphs fetched in line: from the store where it has them, else compiled while the caller waits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from graphcache.backends.protocol import Artifact, Backend, Graph
from graphcache.compile.protocol import Failed, Supplied, Urgency
from graphcache.compile.single_flight import SingleFlight
from graphcache.errors import (
    CompileError,
    ConfigError,
    CorruptError,
    HostError,
    LoadError,
    StoreError,
    StoreFullError,
)
from graphcache.fingerprint import Facts, entry_digest, facts, namespace_digest
from graphcache.key import GraphKey
from graphcache.stats import Stats
from graphcache.store.protocol import Record, Store, Stored
from graphcache.together import ALONE, Together

Found = TypeVar("Found")
Exclusive = Callable[[str], AbstractContextManager[object]]


def backend_facts(backend: Backend) -> Facts:
    """Return the namespace's facts: this package's own, then the backend's."""
    return facts(backend.fingerprint())


class Shelf:
    """One namespace of one store, as a backend's artifacts: no fault of the store gets past it."""

    def __init__(
        self, store: Store | None, backend: Backend, stats: Stats, together: Together = ALONE
    ) -> None:
        self.facts = backend_facts(backend)
        self.namespace = namespace_digest(self.facts)
        self._store = store if backend.persists else None
        self._stats = stats
        self._together = together

    def digest(self, key: GraphKey) -> str:
        """Return the digest under which the store keeps this key."""
        return entry_digest(self.namespace, key)

    def get(self, key: GraphKey) -> Stored | None:
        """Return this key's verified entry, or None: a bad one is counted, and is a miss."""
        stored = self._ask(self._store.get, key) if self._store is not None else None
        return stored if stored and self._is_of(stored.record, key) else None

    def has(self, key: GraphKey) -> bool:
        """Say whether this key has an entry, as far as its header tells; a bad one is counted."""
        record = self._ask(self._store.peek, key) if self._store is not None else None
        return record is not None and self._is_of(record, key)

    def _ask(self, ask: Callable[[str], Found | None], key: GraphKey) -> Found | None:
        try:
            return ask(self.digest(key))
        except CorruptError as error:
            self._stats.fault("corrupt-entry", error)
        except (StoreError, OSError) as error:
            self._stats.fault("store-read", error)
        return None

    def _is_of(self, record: Record, key: GraphKey) -> bool:
        its_own = (record.namespace, record.key) == (self.namespace, str(key))
        if not its_own:
            self._stats.fault("wrong-entry", CorruptError(f"the entry of {key} is another key's"))
        return its_own

    def put(self, key: GraphKey, artifact: Artifact, seconds: float) -> None:
        """Keep an artifact; a full or broken store costs the next process a compile, and is counted."""
        if self._store is None or artifact.payload is None:
            return
        record = Record(
            namespace=self.namespace,
            key=str(key),
            payload_bytes=len(artifact.payload),
            payload_digest=hashlib.sha256(artifact.payload).hexdigest(),
            seconds=seconds,
            created=time.time(),
            facts=self.facts,
            meta=artifact.meta,
            group=self._together.digests(self.namespace, key),
        )
        try:
            self._store.put(self.digest(key), record, artifact.payload)
        except StoreFullError as error:
            self._stats.fault("store-full", error)
        except (StoreError, OSError) as error:
            self._stats.fault("store-write", error)

    def drop(self, key: GraphKey) -> None:
        """Remove an entry that can't be loaded, so that it is compiled anew."""
        if self._store is not None:
            try:
                self._store.delete(self.digest(key))
            except (StoreError, OSError) as error:
                self._stats.fault("store-delete", error)


class Failures(Protocol):
    """Where failed compiles are remembered for other processes: a store's ledger."""

    def failure(self, digest: str, compiler: str, ttl_seconds: float) -> Any:
        """Return the failure of this very compiler if it is not too old, with its ``message``, or None."""
        ...

    def remember_failure(self, digest: str, compiler: str, message: str) -> None:
        """Note that this version of the compiler failed on an entry."""
        ...

    def forget_failure(self, digest: str) -> None:
        """Forget a failure: the compile worked."""
        ...


class InlineSupplier:
    """Fetches each graph while its caller waits: one at a time per key, the store before the compiler.

    ``exclusive`` returns, for an entry's digest, a context that only one process of this host enters at a
    time.  A compile that failed is remembered for ``forget_seconds`` of ``clock``, and in ``failures`` for
    other processes.  The store serves what is ``together`` or nothing of it.
    """

    background = False
    due = False

    def __init__(
        self,
        backend: Backend,
        store: Store | None = None,
        *,
        stats: Stats | None = None,
        exclusive: Exclusive | None = None,
        clock: Callable[[], float] = time.monotonic,
        forget_seconds: float = 300.0,
        failures: Failures | None = None,
        together: Together = ALONE,
    ) -> None:
        self.backend = backend
        self.stats = stats or Stats()
        self.shelf = Shelf(store, backend, self.stats, together)
        self._exclusive = exclusive or (lambda digest: nullcontext())
        self._clock = clock
        self._forget_seconds = forget_seconds
        self._flight: SingleFlight[Supplied] = SingleFlight()
        self._failures: dict[GraphKey, tuple[float, CompileError]] = {}
        self._ledger = failures
        self._compiler = dict(self.shelf.facts).get("compiler", "")

    def prepare(self, keys: Iterable[GraphKey]) -> int:
        """Do nothing: what compiles in line is traced in line."""
        return 0

    def fetch(self, key: GraphKey) -> Supplied:
        """Load or compile one graph, and wait for it.

        Raises:
            CompileError: the compiler failed, now or less than ``forget_seconds`` ago.
            LoadError: what was compiled just now can't be loaded; or, as `HostError`, nothing can.
        """
        return self._flight.do(key, lambda: self._loaded(key) or self._compiled(key))

    def stored(self, key: GraphKey) -> bool:
        """Say whether the store has an entry for this key, as far as its header tells."""
        return self.shelf.has(key)

    def request(self, key: GraphKey, urgency: Urgency = Urgency.UPGRADE) -> None:
        """Do nothing: there is nobody to work in the background."""

    def ready(self) -> Sequence[Supplied | Failed]:
        """Return nothing: there is nobody to work in the background."""
        return ()

    def close(self) -> None:
        """Hold nothing that would have to be given back."""

    def _loaded(self, key: GraphKey) -> Supplied | None:
        began = self._clock()
        stored = self.shelf.get(key)
        if stored is None:
            return None
        try:
            graph = self.backend.load(key, Artifact(payload=stored.payload, meta=stored.record.meta))
        except HostError:
            raise  # The entry is as good as ever, and a compile would not help.
        except LoadError as error:
            self.stats.fault("load", error)
            self.shelf.drop(key)
            return None
        seconds = self._clock() - began
        return Supplied(key, graph, "load", seconds, max(0.0, stored.record.seconds - seconds))

    def _compiled(self, key: GraphKey) -> Supplied:
        self._raise_remembered(key)
        with self._exclusive(self.shelf.digest(key)) as turn:
            self.note_turn(turn)
            made_meanwhile = self._loaded(key)
            if made_meanwhile:
                return made_meanwhile
            began = self._clock()
            artifact = self._compile(key)
            graph: Graph = self.backend.load(key, artifact)
            seconds = self._clock() - began
            self.shelf.put(key, artifact, seconds)
            if self._ledger is not None:
                self._ledger.forget_failure(self.shelf.digest(key))
        return Supplied(key, graph, "load" if artifact.reused else "compile", seconds)

    def note_turn(self, turn: object) -> None:
        """Count why this process compiles without the turn to do so, if it does."""
        reason = getattr(turn, "reason", "").partition(":")[0]
        if reason:
            self.stats.errors[f"lock-{reason}"] += 1

    def _compile(self, key: GraphKey) -> Artifact:
        try:
            return self.backend.compile(key)
        except Exception as cause:
            raise self._remember(key, cause) from cause

    def _remember(self, key: GraphKey, cause: Exception) -> CompileError:
        error = CompileError(key, cause)
        self._failures[key] = (self._clock() + self._forget_seconds, error)
        if self._ledger is not None and not isinstance(cause, ConfigError):  # that is mended by hand
            self._ledger.remember_failure(self.shelf.digest(key), self._compiler, str(cause))
        return error

    def _raise_remembered(self, key: GraphKey) -> None:
        until, error = self._failures.get(key, (0.0, None))
        if error is not None and self._clock() < until:
            raise error
        self._failures.pop(key, None)
        if error is None and self._ledger is not None:
            digest = self.shelf.digest(key)
            known = self._ledger.failure(digest, self._compiler, self._forget_seconds)
            if known is not None:
                raise CompileError(key, f"{known.message} (remembered from another process)")
