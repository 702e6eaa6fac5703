"""Exported programs as bytes without weights, and their compilation, which needs nothing of the model.

`export` runs beside the model, `compile_exported` in any process.  Importing this module imports the exporter
and, on the first compile, Inductor: what only loads compiled graphs must not import it.
"""

from __future__ import annotations

import gc
import io
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from graphcache.backends import flex
from graphcache.backends.bind import OWN_PREFIX, Spec, find
from graphcache.backends.payload import LIBRARY, OPERATORS, OWN, Payload
from graphcache.backends.program import Program, Template
from graphcache.backends.target import ISAS, NATIVE, NO_COMPILER, PLANNED_THREADS, Target, compiler_version
from graphcache.errors import ConfigError
from graphcache.key import GraphKey

_inductor = threading.Lock()


def export(
    program: Program, key: GraphKey, *, strict: bool = False, template: Template | None = None
) -> bytes:
    """Export one graph of a model, without its weights, whatever their size: some hundred kilobytes.

    With a ``template``, the dimensions that it leaves open are open, and `fixed` closes them.

    Raises:
        ConfigError: a tensor that the module uses is neither parameter, buffer nor literal, or an input
            or output is no tensor.
        Exception: the exporter's own, with its own message.
    """
    module, inputs = program.module(key), program.inputs(key)
    shapes = template.dynamic_shapes if template else program.dynamic_shapes(key)
    alive = _tensors_alive()
    with torch.inference_mode(False), torch.no_grad(), _known_warnings():
        exported = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=strict)
        _check(exported, module, alive)
        _drop_weights(exported)
        buffer = io.BytesIO()
        torch.export.save(exported, buffer)
    return buffer.getvalue()


def fixed(program: Program, key: GraphKey) -> list[Any]:
    """Return, as plain JSON, what fixes a template to one key.

    Per input, that is its `Spec` and, by dimension, the names and least sizes of what stays dynamic.
    """
    inputs, shapes = program.inputs(key), program.dynamic_shapes(key)
    leaves = pytree.tree_leaves(shapes, is_leaf=lambda shape: shape is None or isinstance(shape, dict))
    leaves = leaves if shapes is not None else [None] * len(inputs)
    return [
        [
            Spec.of(tensor).as_json(),
            {str(place): [dim.__name__, dim.min] for place, dim in (leaf or {}).items()},
        ]
        for tensor, leaf in zip(inputs, leaves, strict=True)
    ]


def compile_job(
    exported: bytes,
    *,
    target: dict[str, Any],
    options: dict[str, Any],
    imports: list[str],
    inputs: list[Any] | None = None,
) -> bytes:
    """Do a `Job`: compile what `export` made, in a process that does that and nothing else.

    ``imports`` are modules that register the operators of others; ``inputs`` are what `fixed` returned, where
    a template was exported.  Headers are compiled once, into the process's own temporary directory, which
    halves every compile but the first.
    """
    for module in imports:
        import_module(module)
    precompile = shutil.which("openssl") is not None  # Inductor takes a header's digest with it.
    return compile_exported(
        exported, Target(**target), {"aot_inductor.precompile_headers": precompile, **options}, inputs
    )


def compile_exported(
    exported: bytes, target: Target, options: Mapping[str, Any], inputs: list[Any] | None = None
) -> bytes:
    """Compile what `export` made, for a resolved target, after fixing a template; return the payload.

    ``options`` are Inductor's own, by their dotted names; they come on top of those that follow from the
    target.  One compile runs at a time in one process.

    Raises:
        ConfigError: the target's compiler is not on this host.
        Exception: the compiler's own, with its own message.
    """
    _check_compiler(target)
    with _inductor, torch.inference_mode(False), torch.no_grad(), _known_warnings():
        program = torch.export.load(io.BytesIO(exported))
        _allocate_weights(program)
        return _payload(program if inputs is None else _fix(program, inputs), target, options)


def compile_live(program: Program, key: GraphKey, target: Target, options: Mapping[str, Any]) -> bytes:
    """Export and compile one graph beside its model, where its program can't be written down.

    FlexAttention's are such: ``torch.export.save`` refuses them.

    Raises:
        ConfigError: as `export` and `compile_exported` do.
        Exception: the exporter's or the compiler's own, with its own message.
    """
    _check_compiler(target)
    module, alive = program.module(key), _tensors_alive()
    with _inductor, torch.inference_mode(False), torch.no_grad(), _known_warnings():
        exported = torch.export.export(module, program.inputs(key), strict=True)
        _check(exported, module, alive)
        return _payload(exported, target, options)


def _payload(program: ExportedProgram, target: Target, options: Mapping[str, Any]) -> bytes:
    about, own = _describe(program), _own_constants(program)
    directory = Path(tempfile.mkdtemp(prefix="graphcache-compile-"))
    try:
        files = _compile(program, directory, target, options)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    about["target"], about["torch"] = dict(target.facts()), torch.__version__
    return Payload({**files, OWN: own}, about).pack()


def _fix(program: ExportedProgram, inputs: list[Any]) -> ExportedProgram:
    """Export a template again, for inputs of these shapes alone, and with its attention in full."""
    module = _module(program)
    dims: dict[str, Any] = {}
    tensors, shapes = [], []
    for (dtype, sizes, strides), dynamic in inputs:
        tensors.append(
            torch.empty_strided(sizes, strides, dtype=getattr(torch, dtype.removeprefix("torch.")))
        )
        for name, least in dynamic.values():
            dims.setdefault(name, torch.export.Dim(name, min=least))
        shapes.append({int(place): dims[name] for place, (name, _) in dynamic.items()} or None)
    return torch.export.export(
        module, tuple(tensors), dynamic_shapes=tuple(shapes), strict=flex.expand(module)
    )


def _tensors_alive() -> list[Any]:
    """Return every plain tensor that exists; while they are held, no new one can lie where one does."""
    return [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]


def _place(tensor: Any) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # A tensor without storage, such as a sparse one.
        return 0


def _check(exported: ExportedProgram, module: Any, alive: list[Any]) -> None:
    """Refuse to compile in what can change: a tensor that is neither the module's nor a literal."""
    places = {_place(tensor) for tensor in alive} - {0}
    for name, constant in exported.constants.items():
        literal = name.startswith(OWN_PREFIX) and _place(constant) not in places
        if not literal and find(module, name) is None:
            raise ConfigError(
                f"{name} {list(constant.shape)}: the value of a tensor that is no attribute of a module would"
                " be compiled in; register it as a buffer, or make it an input"
            )
    outputs = [output.arg for output in exported.graph_signature.output_specs if _is_output(output)]
    for argument in [*_user_inputs(exported), *outputs]:
        if argument.__class__.__name__ != "TensorArgument":
            raise ConfigError.of("an input or output of the model", argument, "a tensor")


def _is_output(output: Any) -> bool:
    return output.kind is torch.export.graph_signature.OutputKind.USER_OUTPUT


def _user_inputs(exported: ExportedProgram) -> list[Any]:
    user = torch.export.graph_signature.InputKind.USER_INPUT
    return [spec.arg for spec in exported.graph_signature.input_specs if spec.kind is user]


def _drop_weights(exported: ExportedProgram) -> None:
    """Put tensors without storage in the place of weights, buffers and example inputs."""
    for held in (exported._state_dict, exported._constants):
        for name, tensor in held.items():
            if not name.startswith(OWN_PREFIX):
                held[name] = _like(tensor, "meta")
    arguments, named = exported.example_inputs
    exported._example_inputs = (tuple(_like(tensor, "meta") for tensor in arguments), named)


def _allocate_weights(program: ExportedProgram) -> None:
    """Put uninitialised tensors in the place of those without storage: the compiler never reads them."""
    for held in (program._state_dict, program._constants):
        for name, tensor in held.items():
            if tensor.device.type == "meta":
                held[name] = _like(tensor, "cpu")
    arguments, named = program.example_inputs
    program._example_inputs = (tuple(_like(tensor, "cpu") for tensor in arguments), named)


def _like(tensor: Any, device: str) -> Any:
    fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return torch.nn.Parameter(fresh, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else fresh


def _describe(program: ExportedProgram) -> dict[str, Any]:
    """Return what a load has to know: inputs, outputs, and what each constant must look like."""
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    constants = {**program.state_dict, **program.constants}
    return {
        "inputs": [Spec.of(values[argument.name]).as_json() for argument in _user_inputs(program)],
        "outputs": pytree.treespec_dumps(program.call_spec.out_spec),
        "constants": {name: Spec.of(tensor).as_json() for name, tensor in constants.items()},
    }


def _own_constants(program: ExportedProgram) -> bytes:
    """Return the values of the constants that are the program's own, in the order of their names."""
    own = sorted(name for name in program.constants if name.startswith(OWN_PREFIX))
    return b"".join(
        bytes(program.constants[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        for name in own
    )


def _compile(
    program: ExportedProgram, directory: Path, target: Target, options: Mapping[str, Any]
) -> dict[str, bytes]:
    arguments, named = program.example_inputs
    with _vector_instructions(str(target.isa)):
        made = torch._inductor.aot_compile(
            _module(program),
            arguments,
            named,
            options={**_settings(target), **options, "aot_inductor.output_path": str(directory)},
        )
    paths = [Path(path) for path in made if isinstance(path, str)]
    library = next(path for path in paths if path.suffix == ".so")
    operators = library.with_suffix(".json")
    files = {LIBRARY: library.read_bytes()}
    if operators in paths:
        files[OPERATORS] = operators.read_bytes()
    return files


def _module(program: ExportedProgram) -> Any:
    """Return the program as a module whose every tensor is registered, or it would lose its name."""
    module = program.module(check_guards=False)
    registered = dict(module.named_buffers(remove_duplicate=False))
    for name in program.constants.keys() - registered.keys():
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        delattr(owner, attribute)
        owner.register_buffer(attribute, program.constants[name], persistent=False)
    return module


_SINCE_TORCH_2_9 = ("aot_inductor.enable_line_tables", "aot_inductor.enable_frame_pointer", "cpp.march")
"""Inductor's settings that the oldest torch lacks; without ``cpp.march`` it compiles for this processor."""


def _settings(target: Target) -> dict[str, Any]:
    """Return Inductor's options for a graph without weights, for the target, and without its own caches."""
    native = target.march == NATIVE
    settings = {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.precompile_headers": False,
        "aot_inductor.enable_line_tables": False,
        "aot_inductor.enable_frame_pointer": False,
        # A value must never be compiled in: here the weights are uninitialised.
        "always_keep_tensor_constants": True,
        "joint_graph_constant_folding": False,
        "force_disable_caches": True,
        "cpp.threads": PLANNED_THREADS if target.threads is None else target.threads,
        "cpp.dynamic_threads": target.threads is None,
        "cpp.march": None if native else target.march,
        "cpp.simdlen": _vec_isa(str(target.isa)).bit_width() if target.isa in ISAS else None,
        "cpp.cxx": (None, target.cxx),
    }
    return {name: value for name, value in settings.items() if name not in _SINCE_TORCH_2_9 or _known(name)}


def _known(setting: str) -> bool:
    """Say whether this torch's Inductor has a setting."""
    import torch._inductor.config

    section, _, name = setting.partition(".")
    return hasattr(getattr(torch._inductor.config, section), name)


@cache
def _vec_isa(name: str) -> Any:
    """Return Inductor's object for the named vector instructions, which asks nothing of this host."""
    from torch._inductor import cpu_vec_isa

    base, _, flags = ISAS[name]
    methods = {
        "__bool__": lambda self: True,
        "__hash__": cpu_vec_isa.VecISA.__hash__,
        "build_arch_flags": lambda self: flags,
    }
    return type(base, (getattr(cpu_vec_isa, base),), methods)()


@contextmanager
def _vector_instructions(name: str) -> Iterator[None]:
    """Make Inductor choose the named vector instructions, whatever this host has."""
    from torch._inductor import cpu_vec_isa

    if name not in ISAS:
        yield
        return
    chosen = [] if name == "none" else [_vec_isa(name)]
    with patch.object(cpu_vec_isa, "valid_vec_isa_list", lambda: chosen):
        yield


def _check_compiler(target: Target) -> None:
    here = compiler_version(target.cxx)
    if here == NO_COMPILER:
        raise ConfigError.of(
            "cxx",
            target.cxx,
            "a C++ compiler on this host, to compile with (loading needs none): install the package g++"
            " (Debian, Ubuntu) or gcc-c++ (Fedora, SUSE)",
        )
    if here != target.compiler:
        raise ConfigError.of("compiler", target.compiler, f"{here}, which is what compiles on this host")


@contextmanager
def _known_warnings() -> Iterator[None]:
    """Silence what torch says about its own use of its own deprecated names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        warnings.filterwarnings("ignore", message="The given buffer is not writable", category=UserWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
