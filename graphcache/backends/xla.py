"""The ``xla`` backend: graphs on a torch-xla device, as TPUs and Tenstorrent's cards are reached."""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.debug import metrics

from graphcache.backends.dynamo import Entry, find_compiler
from graphcache.backends.program import Program
from graphcache.backends.protocol import Artifact, EvictUnit, Graph
from graphcache.backends.watch import SAME_INPUTS, Cache, Watch, Watched, describe
from graphcache.backends.xla_probe import Persistence, persistence
from graphcache.errors import ConfigError, LoadError
from graphcache.fingerprint import facts, namespace_digest
from graphcache.key import GraphKey

logger = logging.getLogger("graphcache")

OPENXLA = "openxla"
"""The compiler of ``torch.compile`` that torch-xla itself brings; Tenstorrent's is ``tt``."""

OTHER_GRAPHS = 64
"""Room in torch-xla's own cache for graphs that are not the cache's: samplers, poolers, copies."""

LET_GO = "torch-xla's own cache had let it go: raise other_graphs"

_SIZE, _PATH = "XLA_COMPILATION_CACHE_SIZE", "XLA_PERSISTENT_CACHE_PATH"
_EVICTED = "Failed to get computation by hash"


class Budgeted(Cache, Protocol):
    """A cache whose budget is known: a `GraphCache`."""

    @property
    def view(self) -> Any:
        """What decisions look at now; of it, ``budget.graphs``."""
        ...


def compiles() -> int:
    """Return how many graphs torch-xla has compiled in this process."""
    return metrics.counter_value("UncachedCompile") or 0


def cache_in_use() -> bool:
    """Say whether torch-xla has compiled by now; its cache's size and directory are fixed from then on."""
    return bool(torch_xla._XLAC._xla_computation_cache_is_initialized())


def describe_sharded(value: Any) -> str:
    """Return an input's dtype, shape and sharding: what a graph is compiled for."""
    text = describe(value)
    if isinstance(value, torch.Tensor) and value.device.type == "xla":
        sharding = torch_xla._XLAC._get_xla_sharding_spec(value)
        return f"{text} {sharding}" if sharding else text
    return text


def on_device(outputs: Any) -> list[Any]:
    """Return the tensors among a module's outputs that are on the device."""
    leaves = pytree.tree_leaves(outputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla"]


class Revived:
    """A compiled callable that is made anew when torch-xla's own cache has let its graph go.

    Raises on a call:
        FrozenError: that would compile, and the cache is frozen.
    """

    __slots__ = ("_call", "_key", "_make", "_watch")

    def __init__(self, key: GraphKey, make: Callable[[], Entry], watch: Watch) -> None:
        self._key = key
        self._make = make
        self._call = make()
        self._watch = watch

    def free(self) -> None:
        """Give up the callable; the executable stays in torch-xla's own cache until that is full."""
        self._call.free()

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        try:
            return self._call(*inputs)
        except RuntimeError as error:
            if _EVICTED not in str(error):
                raise
        if self._watch.frozen:
            raise self._watch.forbidden(self._key, LET_GO)
        logger.warning("%s: %s", self._key, LET_GO)
        self._call = self._make()
        return self._call(*inputs)


class Traced:
    """A callable whose operations torch-xla records, and compiles when they are needed.

    So it is with plain modules, and with those that compile themselves, such as after
    ``model.compile(backend="tt")``.

    Raises on a call:
        FrozenError: what it recorded is not what was compiled, and the cache is frozen.
    """

    __slots__ = ("_key", "_known", "_module", "_watch")

    def __init__(self, key: GraphKey, module: Callable[..., Any], watch: Watch) -> None:
        self._key = key
        self._module = module
        self._watch = watch
        self._known: set[bytes] = set()

    def free(self) -> None:
        """Hold nothing that could be given up."""

    def __call__(self, *inputs: Any) -> Any:
        """Record the operations, and have them compiled and run."""
        with torch.no_grad():
            outputs = self._module(*inputs)
        recorded = on_device(outputs)
        graph = bytes(torch_xla._XLAC._get_graph_hash(recorded))
        if graph not in self._known:
            if self._known and self._watch.frozen:
                raise self._watch.forbidden(self._key, SAME_INPUTS)
            self._known.add(graph)
        torch_xla._XLAC._xla_sync_multi(recorded, devices=[], wait=False, sync_xla_data=True)
        return outputs


class XlaBackend:
    """Compiles each key by running its module once, on dummies made on the host and moved to the device.

    ``compiler`` is a backend of ``torch.compile``; None leaves the module as it is: it is traced, or
    compiles itself.  ``options`` are facts of the namespace: whatever else changes the code, such as a mesh
    or the plugin's compile options.  A module's inputs are all that changes from call to call; metadata that
    it reads from a context belongs among them (wrap the module).

    torch-xla frees a graph only when its own cache is full.  So `EvictUnit.NEVER` is declared, and that
    cache's size follows from the budget, with room for ``other_graphs``.  ``drop`` frees a graph where the
    device's plugin can; say so by ``evict_unit``.

    With ``cache_dir``, torch-xla keeps executables below it, apart for each namespace.  Where the device's
    plugin can't read them back, that is said once, ``persistence`` tells it, and the StableHLO of each
    graph is kept instead.

    Raises:
        ConfigError: torch knows no such compiler, or torch-xla compiled before it knew its ``cache_dir``.
    """

    name = "xla"
    persists = False

    def __init__(
        self,
        program: Program,
        *,
        compiler: str | None = OPENXLA,
        options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        other_graphs: int = OTHER_GRAPHS,
        nbytes: Callable[[GraphKey], int] = lambda key: 0,
        drop: Callable[[GraphKey], None] = lambda key: None,
        evict_unit: EvictUnit | str = EvictUnit.NEVER,
    ) -> None:
        self.program = program
        self.options = dict(options or {})
        self.evict_unit = EvictUnit(evict_unit)
        self.persistence: Persistence | None = None
        self._compiler_name = compiler
        self._compiler = find_compiler(compiler) if compiler else None
        self._other_graphs = other_graphs
        self._nbytes = nbytes
        self._drop = drop
        self._watch = Watch()
        self._namespace = namespace_digest(facts(self.fingerprint()))
        self._stablehlo: Path | None = None
        if cache_dir is not None:
            self._keep(Path(cache_dir).expanduser())

    @property
    def device(self) -> torch.device:
        """The device that graphs run on."""
        return torch_xla.device()

    def watch(self, cache: Budgeted) -> None:
        """Report to this cache what is compiled without a miss, obey its freeze, and follow its budget.

        Must come before the first compile: torch-xla fixes its own cache's size then.
        """
        self._watch.cache = cache
        graphs = cache.view.budget.graphs
        if graphs is None:
            return
        size = graphs + self._other_graphs
        if not cache_in_use():
            os.environ[_SIZE] = str(size)
        elif os.environ.get(_SIZE) != str(size):
            logger.warning(
                "torch-xla has compiled already: its cache keeps its size, and can't take %d", size
            )

    def fingerprint(self) -> list[tuple[str, str]]:
        """Return the facts of torch-xla, its device and flags, the compiler, the options and the program."""
        return [
            ("backend", self.name),
            ("torch", torch.__version__),
            ("torch_xla", torch_xla.__version__),
            ("device", str(xr.device_type())),
            ("spmd", str(xr.is_spmd())),
            ("XLA_FLAGS", os.environ.get("XLA_FLAGS", "")),
            ("dynamo compiler", str(self._compiler_name)),
            ("options", json.dumps(self.options, sort_keys=True, default=str)),
            *self.program.facts(),
        ]

    def inputs(self, key: GraphKey) -> tuple[Any, ...]:
        """Return the key's dummies on the device: data there, not operations that would make them."""
        return tuple(
            value.cpu().to(self.device) if isinstance(value, torch.Tensor) else value
            for value in self.program.inputs(key)
        )

    def compile(self, key: GraphKey) -> Artifact:
        """Run the module once on its dummy inputs, which compiles it, unless torch-xla has it still.

        Raises:
            Exception: torch-xla's or the compiler's own, with its own message.
        """
        torch_xla.sync()
        self._keep_stablehlo(key)
        before, inputs = compiles(), self.inputs(key)
        call = self._callable(key)
        call(*inputs)
        xm.wait_device_ops()
        compiled = compiles() - before
        if compiled > 1:
            self._watch.report(key, f"it makes {compiled} graphs, not one", 0.0, compiled - 1)
        watched = Watched(
            key, call, inputs, meter=compiles, watch=self._watch, free=call.free, describe=describe_sharded
        )
        return Artifact(live=watched, reused=not compiled)

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        """Return the callable as a graph of tensors on the device.

        Raises:
            LoadError: the artifact is not this process's.
        """
        if artifact.live is None:
            raise LoadError(f"{key}: a graph of torch-xla does not outlive its process")
        return Graph(artifact.live, nbytes=self._nbytes(key), close=lambda: self._let_go(key, artifact.live))

    def _let_go(self, key: GraphKey, graph: Watched) -> None:
        graph.free()
        self._drop(key)

    def _callable(self, key: GraphKey) -> Traced | Revived:
        module = self.program.module(key)
        if self._compiler is None:
            return Traced(key, module, self._watch)
        compiler = self._compiler
        return Revived(key, lambda: Entry(key, module, compiler, {}, self._watch), self._watch)

    def _keep(self, cache_dir: Path) -> None:
        """Have torch-xla keep executables, or keep StableHLO ourselves where they could not be read back."""
        directory = cache_dir / self._namespace
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(cache_dir, directory)
        self.persistence = persistence(cache_dir)
        if self.persistence.persists:
            _keep_executables(directory / "executables")
            return
        logger.warning("%s: each start compiles anew; StableHLO is kept", self.persistence.reason)
        self._stablehlo = directory / "stablehlo"
        self._stablehlo.mkdir(mode=0o700, exist_ok=True)

    def _keep_stablehlo(self, key: GraphKey) -> None:
        """Write one graph's StableHLO, from tracing its module; a module that compiles itself tells none."""
        if self._stablehlo is None or self._compiler is None:
            return
        path = self._stablehlo / f"{str(key).replace('/', '-')}.mlirbc"
        if path.exists():
            return
        with torch.no_grad():
            outputs = self.program.module(key)(*self.inputs(key))
        text = xm.get_stablehlo_bytecode(on_device(outputs))
        with tempfile.NamedTemporaryFile(dir=self._stablehlo, prefix=".new-", delete=False) as file:
            file.write(text)
        os.replace(file.name, path)


def _check_private(*directories: Path) -> None:
    """Make sure that nobody else can write where executables are read from: they are code.

    Raises:
        ConfigError: somebody else can.
    """
    for directory in directories:
        status = directory.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigError.of("cache_dir", str(directory), "a directory that only its user can write")


def _keep_executables(directory: Path) -> None:
    """Set torch-xla's own cache up, once in a process.

    Raises:
        ConfigError: it has been used already, or is another namespace's.
    """
    set_up = os.environ.get(_PATH)
    if set_up == str(directory):
        return
    if set_up or cache_in_use():
        used = f"that of {set_up}" if set_up else "none: torch-xla has compiled in this process already"
        raise ConfigError.of("cache_dir", str(directory), used)
    xr.initialize_cache(str(directory))
