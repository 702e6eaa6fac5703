"""The ``dynamo`` backend: any backend of ``torch.compile``, by its name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit

from graphcache.backends.program import Program
from graphcache.backends.protocol import Artifact, EvictUnit, Graph
from graphcache.backends.target import Target
from graphcache.backends.watch import SAME_INPUTS, Cache, Watch, Watched
from graphcache.errors import CompileError, ConfigError, LoadError
from graphcache.key import GraphKey

INDUCTOR = "inductor"
"""The compiler whose results ``torch.compiler`` hands out as bytes."""

Compiler = Callable[..., Any]


def find_compiler(name: str | Compiler) -> Compiler:
    """Return a backend of ``torch.compile`` by its name; a function is one already.

    Raises:
        ConfigError: torch knows no such backend: the package that brings it may not be imported.
    """
    if callable(name):
        return name
    try:
        found: Compiler = torch._dynamo.lookup_backend(name)
    except Exception as error:  # whatever the package of a backend raises when it is imported
        known = ", ".join(torch._dynamo.list_backends(exclude_tags=()))
        raise ConfigError(
            f"compiler: {name!r} is no backend of torch.compile ({error}); known: {known}"
        ) from None
    return found


class Entry:
    """One key's module under ``torch.compile``, whole and static, with a code object of its own.

    Dynamo keeps what it compiled at the code object, counts it against its recompile limits there, and
    tries all of it on each call.  With one code object for all keys, the number of graphs would run into
    the limit, and every hit would pay for all of them; with one for each, neither grows with the ladder.

    Raises on a call:
        FrozenError: it would compile, and may not.
        CompileError: dynamo's recompile limit is met: one key is called with ever new inputs.
        Exception: the compiler's own, and dynamo's where the module does not make one graph.
    """

    __slots__ = ("_call", "_compiled", "_entry", "_key")

    def __init__(
        self,
        key: GraphKey,
        module: Callable[..., Any],
        compiler: Compiler,
        options: Mapping[str, Any],
        watch: Watch,
    ) -> None:
        # Dynamo keeps every backend it was given for ever: this one must not hold the entry.
        seen: list[None] = []

        def counted(graph: Any, inputs: Any) -> Any:
            if seen and watch.frozen:
                raise watch.forbidden(key, SAME_INPUTS)
            compiled = compiler(graph, inputs, **options)
            seen.append(None)
            return compiled

        self._key = key
        self._compiled = seen
        self._entry = _own_code(module)
        self._call = torch.compile(self._entry, backend=counted, fullgraph=True, dynamic=False)

    def compiles(self) -> int:
        """Return how often it was compiled."""
        return len(self._compiled)

    def free(self) -> None:
        """Give up what was compiled."""
        torch._dynamo.eval_frame.remove_from_cache(self._entry)

    def __call__(self, *inputs: Any) -> Any:
        """Run the module, compiling it for inputs that it does not know."""
        try:
            with torch.no_grad():
                return self._call(*inputs)
        except BackendCompilerFailed as error:
            raise error.inner_exception from None
        except FailOnRecompileLimitHit as error:
            limit = torch._dynamo.config.recompile_limit
            raise CompileError(
                self._key, f"torch's recompile_limit of {limit} for one graph is met: {error}"
            ) from error


def _own_code(module: Callable[..., Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        return module(*inputs)

    return FunctionType(
        run.__code__.replace(), run.__globals__, run.__name__, run.__defaults__, run.__closure__
    )


class DynamoBackend:
    """Compiles each key's module through ``torch.compile``, whole (``fullgraph``) and with static shapes.

    ``compiler`` is whatever torch knows (``inductor``, ``eager``, ``openxla``, ``tt``) or a function of a
    graph and its inputs; ``options`` are its keyword arguments.  ``nbytes`` says what one graph holds, which
    torch does not tell.  Letting a graph go frees its callable; a compiler that keeps more must be declared
    by ``evict_unit``, and ``drop`` lets that go.

    With ``inductor``, the artifacts of ``torch.compiler`` persist.  They hold pickles that torch itself reads
    back, and are as trustworthy as the store that they come from: use a seal where others can write there.

    Raises:
        ConfigError: torch knows no such compiler.
    """

    name = "dynamo"

    def __init__(
        self,
        program: Program,
        *,
        compiler: str | Compiler = INDUCTOR,
        options: Mapping[str, Any] | None = None,
        nbytes: Callable[[GraphKey], int] = lambda key: 0,
        drop: Callable[[GraphKey], None] = lambda key: None,
        evict_unit: EvictUnit | str = EvictUnit.ENTRY,
    ) -> None:
        self.program = program
        self.options = dict(options or {})
        self.evict_unit = EvictUnit(evict_unit)
        self.persists = compiler == INDUCTOR
        self._compiler = find_compiler(compiler)
        self._compiler_name = compiler if isinstance(compiler, str) else _qualified(compiler)
        self._nbytes = nbytes
        self._drop = drop
        self._watch = Watch()
        self._made: dict[tuple[GraphKey, str], Watched] = {}

    def watch(self, cache: Cache) -> None:
        """Report to this cache what is compiled without a miss; obey its freeze."""
        self._watch.cache = cache

    def fingerprint(self) -> list[tuple[str, str]]:
        """Return the facts of torch, the compiler, its options, this host's code, and the program."""
        host = Target(threads=torch.get_num_threads(), march="native", isa="host").resolved().facts()
        return [
            ("backend", self.name),
            ("torch", torch.__version__),
            ("dynamo compiler", self._compiler_name),
            ("options", json.dumps(self.options, sort_keys=True, default=str)),
            *(host if self._compiler_name == INDUCTOR else []),
            *self.program.facts(),
        ]

    def compile(self, key: GraphKey) -> Artifact:
        """Run the module once on its dummy inputs, which compiles it.

        Raises:
            Exception: dynamo's or the compiler's own, with its own message.
        """
        if not self.persists:
            return Artifact(live=self._run_once(key))
        from torch.compiler._cache import CacheArtifactManager

        with CacheArtifactManager.with_fresh_cache():
            graph = self._run_once(key)
            saved = torch.compiler.save_cache_artifacts()
        if saved is None:
            raise LoadError(f"{key}: torch.compiler handed out no artifacts; is its cache switched off?")
        self._made[key, _digest(saved[0])] = graph
        return Artifact(payload=saved[0])

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        """Make the key's callable, from the artifacts of ``torch.compiler`` where it was not made just now.

        Raises:
            LoadError: the artifact is not this process's, can't be read, or did not spare the compile.
        """
        run = artifact.live
        if artifact.payload is not None and self.persists:
            run = self._made.pop((key, _digest(artifact.payload)), None) or self._restored(
                key, artifact.payload
            )
        if run is None:
            raise LoadError(f"{key}: what {self._compiler_name} compiles does not outlive its process")
        return Graph(run, nbytes=self._nbytes(key), close=lambda: self._let_go(key, run))

    def _let_go(self, key: GraphKey, graph: Watched) -> None:
        graph.free()
        self._drop(key)

    def _run_once(self, key: GraphKey) -> Watched:
        inputs = self.program.inputs(key)
        entry = Entry(key, self.program.module(key), self._compiler, self.options, self._watch)
        entry(*inputs)
        return Watched(key, entry, inputs, meter=entry.compiles, free=entry.free, watch=self._watch)

    def _restored(self, key: GraphKey, payload: bytes) -> Watched:
        from torch._dynamo.utils import counters

        if torch.compiler.load_cache_artifacts(payload) is None:
            raise LoadError(f"{key}: torch.compiler can't read its artifacts")
        missed = counters["inductor"]["fxgraph_cache_miss"]
        graph = self._run_once(key)
        if counters["inductor"]["fxgraph_cache_miss"] > missed:
            raise LoadError(f"{key}: the artifacts of torch.compiler did not fit, and it compiled anew")
        return graph


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _qualified(compiler: Compiler) -> str:
    named = compiler if hasattr(compiler, "__qualname__") else type(compiler)
    return f"{named.__module__}:{named.__qualname__}"
