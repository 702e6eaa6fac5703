"""The ``inductor`` backend: whole graphs compiled ahead of time for the CPU, without the model's weights."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from graphcache.backends.bind import InputCheck, Spec, constants, own_constants
from graphcache.backends.payload import LIBRARY, OWN, Payload, payload_digest
from graphcache.backends.program import Program, Templated
from graphcache.backends.protocol import Artifact, EvictUnit, Graph, Job
from graphcache.backends.target import NATIVE, Target, check_host
from graphcache.errors import ConfigError, HostError, LoadError
from graphcache.key import GraphKey

logger = logging.getLogger("graphcache")


@dataclass(slots=True)
class _Loaded:
    """One mapped library: its runner, what it says of itself, and the tensors that it points at."""

    key: GraphKey
    runner: Any
    specs: Mapping[str, Spec]
    own: Mapping[str, Any]
    graph: Graph
    bound: Mapping[str, Any]


class InductorBackend:
    """Compiles graphs through AOTInductor, and binds every one of them to the live model's own weights.

    ``options`` are Inductor's own, by dotted name; `Target` has the rest.  ``unpack_dir`` is where a graph's
    library lies for the moment in which it is mapped; it must not be mounted ``noexec``.  ``strict`` exports
    through dynamo, which FlexAttention needs.  ``imports`` are the modules that register the model's custom
    operators, for processes that compile without it, beside those that the program names in ``operators``.

    A library can't be unmapped again, so a graph that is let go is kept (`EvictUnit.NEVER`), and loading it
    again costs microseconds.

    Raises:
        ConfigError: an option that is not allowed.
    """

    name = "inductor"
    persists = True
    evict_unit = EvictUnit.NEVER

    def __init__(
        self,
        program: Program,
        *,
        threads: int | None = None,
        march: str | None = None,
        isa: str | None = None,
        cxx: str = "",
        compiler: str | None = None,
        strict: bool = False,
        imports: Iterable[str] = (),
        unpack_dir: str | os.PathLike[str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.program = program
        self.target = Target(threads, _march(march), isa, cxx, compiler).resolved()
        self.strict = strict
        self.imports = [*imports, *getattr(program, "operators", ())]
        self.options = dict(options or {})
        self._unpack_dir = Path(unpack_dir or tempfile.gettempdir())
        self._loaded: dict[tuple[GraphKey, bytes], _Loaded] = {}
        self._templates: dict[str, bytes | None] = {}

    def fingerprint(self) -> list[tuple[str, str]]:
        """Return the facts of torch, this backend's options, its target, and the program."""
        return [
            ("backend", self.name),
            ("torch", torch.__version__),
            ("export", "strict" if self.strict else "traced"),
            ("options", json.dumps(self.options, sort_keys=True, default=str)),
            *self.target.facts(),
            *self.program.facts(),
        ]

    def export(self, key: GraphKey) -> bytes:
        """Trace one graph of the live model to bytes without weights, which any process can compile.

        Raises:
            Exception: the exporter's own, with its own message.
        """
        from graphcache.backends.exported import export

        return export(self.program, key, strict=self.strict)

    def job(self, key: GraphKey) -> Job:
        """Trace the live model, and return what is left to do for one graph as a job for another process.

        The graphs of one `Template` share a trace, in which their lengths are open.

        Raises:
            Exception: the exporter's own, with its own message.
        """
        arguments = {"target": asdict(self.target), "options": self.options, "imports": self.imports}
        task, template = "graphcache.backends.exported:compile_job", self._template(key)
        if template is None:
            return Job(task, self.export(key), arguments)
        from graphcache.backends.exported import fixed

        return Job(task, template, {**arguments, "inputs": fixed(self.program, key)})

    def _template(self, key: GraphKey) -> bytes | None:
        """Return the export that this key shares with others, made once; None where it has none."""
        if self.strict or not isinstance(self.program, Templated):
            return None
        from graphcache.backends.exported import export

        template = self.program.template(key)
        if template.name not in self._templates:
            try:
                self._templates[template.name] = export(self.program, key, template=template)
            except Exception as error:  # whatever the exporter raises, each key by itself may still do
                logger.warning("%s: each graph is traced by itself: %s", template.name, error)
                self._templates[template.name] = None
        return self._templates[template.name]

    def compile(self, key: GraphKey) -> Artifact:
        """Export and compile one graph in this process.

        Raises:
            ConfigError: no C++ compiler on this host.
            Exception: the exporter's or the compiler's own, with its own message.
        """
        from graphcache.backends.exported import compile_exported

        job = self.job(key)
        inputs = job.arguments.get("inputs")
        return Artifact(payload=compile_exported(job.data, self.target, self.options, inputs))

    def load(self, key: GraphKey, artifact: Artifact) -> Graph:
        """Map a graph's library and bind it to the live weights; one that was let go is bound anew.

        Raises:
            LoadError: another torch's or processor's code, damaged bytes, weights that differ in name,
                dtype, shape or strides.
            HostError: a directory from which no code can be mapped, or into which nothing can be written.
        """
        if artifact.payload is None:
            raise LoadError(f"{key}: the artifact has no payload")
        digest = payload_digest(artifact.payload)
        loaded = self._loaded.get((key, digest))
        if loaded is None:
            loaded = self._map(key, Payload.unpack(artifact.payload))
            self._loaded[key, digest] = loaded
        self._bind(loaded, self._constants(loaded))
        return loaded.graph

    def rebind(self) -> None:
        """Bind every mapped graph to the model's weights as they are now: call it after they were replaced.

        Raises:
            LoadError: they differ in name, dtype, shape or strides; then every graph keeps the old ones.
        """
        bindings = [(loaded, self._constants(loaded)) for loaded in self._loaded.values()]
        for loaded, bound in bindings:
            self._bind(loaded, bound)

    def _map(self, key: GraphKey, payload: Payload) -> _Loaded:
        try:
            about = payload.about
            if about["torch"] != torch.__version__:
                raise LoadError(f"{key}: compiled for torch {about['torch']}, this is {torch.__version__}")
            check_host(about["target"])
            specs = {name: Spec.read(spec) for name, spec in about["constants"].items()}
            check = InputCheck(Spec.read(spec) for spec in about["inputs"])
            outputs = pytree.treespec_loads(about["outputs"])
            own = own_constants(specs, payload.files[OWN])
            nbytes = len(payload.files[LIBRARY])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LoadError(f"{key}: the graph's description is not understood: {error!r}") from error
        runner = self._runner(payload)
        graph = Graph(_callable(runner, check, outputs), nbytes=nbytes)
        return _Loaded(key, runner, specs, own, graph, {})

    def _runner(self, payload: Payload) -> Any:
        """Map the library from a private directory that is gone when this returns: mappings outlive names."""
        try:
            noexec = os.statvfs(self._unpack_dir).f_flag & os.ST_NOEXEC
            directory = Path(tempfile.mkdtemp(prefix="graphcache-load-", dir=self._unpack_dir))
        except OSError as error:
            raise HostError(f"unpack_dir: compiled graphs can't be unpacked: {error}") from error
        try:
            if noexec:
                raise HostError(
                    f"{self._unpack_dir} is mounted noexec, so that no compiled graph can be mapped from it:"
                    " set the backend's unpack_dir, or TMPDIR, to a directory that is not"
                )
            payload.write(directory)
            return torch._C._aoti.AOTIModelContainerRunnerCpu(str(directory / LIBRARY), 1)
        except OSError as error:
            raise HostError(f"unpack_dir: a compiled graph can't be unpacked: {error}") from error
        except RuntimeError as error:
            raise LoadError(f"the graph's library can't be mapped: {error}") from error
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _constants(self, loaded: _Loaded) -> dict[str, Any]:
        names = loaded.runner.get_constant_names_to_original_fqns()
        module = self.program.module(loaded.key)
        found = constants(names.values(), loaded.specs, module, loaded.own)
        # Aliases of their own: assigning to a parameter's ``data`` would free what the code points at.
        return {name: found[original].detach() for name, original in names.items()}

    def _bind(self, loaded: _Loaded, bound: dict[str, Any]) -> None:
        if _same_memory(loaded.bound, bound):  # and binding anew would leave memory behind
            return
        loaded.runner.update_constant_buffer(bound, False, True, user_managed=True)
        loaded.bound = bound


def _same_memory(bound: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Say whether these are the tensors that are bound: what is bound keeps its memory from being reused."""
    return bound.keys() == found.keys() and all(
        bound[name].data_ptr() == tensor.data_ptr() for name, tensor in found.items()
    )


def _callable(runner: Any, check: InputCheck, outputs: Any) -> Callable[..., Any]:
    """Return the function that runs a graph on positional tensors, and returns what its module returns."""
    run = runner.run

    def call(*tensors: Any) -> Any:
        check(tensors)
        return pytree.tree_unflatten(run(list(tensors)), outputs)

    def call_for_one(*tensors: Any) -> Any:
        check(tensors)
        return run(list(tensors))[0]

    return call_for_one if outputs.is_leaf() else call


def takes_march() -> bool:
    """Say whether this torch's Inductor compiles for a given architecture; that of torch 2.9 does not.

    Its configuration is read, not imported: that would be a second of every start.
    """
    return "march" in Path(torch.__file__).with_name("_inductor").joinpath("config.py").read_text()


def _march(march: str | None) -> str | None:
    if takes_march():
        return march
    if march in (None, NATIVE):
        return NATIVE
    raise ConfigError.of("march", march, f"native; the Inductor of torch {torch.__version__} takes no other")
