"""Who may import whom; what may be imported at all; and the names that are public."""

import ast
import functools
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import graphcache

ROOT = Path(graphcache.__file__).parent
FILES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

CORE = {
    "errors",
    "_version",
    "key",
    "ladder",
    "batch",
    "fingerprint",
    "names",
    "bytesize",
    "costs",
    "stats",
    "together",
}
"""What everything rests on; imports nothing of ours but itself."""

MAY_USE = {
    "policy": {"eviction"},
    "eviction": set(),
    "store": set(),
    "backends": set(),
    "compile": {"backends.protocol", "backends.program", "store.protocol"},
    "trace": set(),
}
"""The parts, and what each may use beside the core and itself: they meet in the cache, not in each other."""

TOPS = {"cli": {"__main__"}, "vllm": {"run", "bench"}}
"""What nothing imports but those named, which run a whole server."""

USE_TORCH = ("backends", "vllm", "bench")
"""What may import torch at once; the command line gets to them only when a command runs."""

READ_ENVIRONMENT = {
    "graphcache.config.environment",
    "graphcache.backends.target",  # CXX, the compiler's own variable
    "graphcache.backends.xla",  # torch-xla's own variables
    "graphcache.doctor",  # the same as the first
    "graphcache.compile.process",  # all of it, for the compile worker that it starts
    "graphcache.child",  # all of it, for the engine that it starts
    "graphcache.store.private",  # HOME and XDG_CACHE_HOME
    "graphcache.store.lock",  # XDG_RUNTIME_DIR
}

PUBLIC = [
    "Batch",
    "GraphCache",
    "GraphKey",
    "Ladder",
    "Launch",
    "Layout",
    "MaskMode",
    "OnMiss",
    "Outcome",
    "Plan",
    "Sequence",
    "__version__",
    "dominates",
]


@functools.cache
def tree(module):
    return ast.parse(FILES[module].read_text())


def imported(node):
    """Return the modules that one import statement names, ours as far as they are modules."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        names = {f"{node.module}.{alias.name}" for alias in node.names}
        return {name if name in FILES else node.module for name in names}
    return set()


def imports(module):
    """Return all that a module imports, at its top or inside a function."""
    return set().union(*(imported(node) for node in ast.walk(tree(module))))


def imports_at_once(module):
    """Return what importing a module imports with it: not what waits in a function, or for a type checker."""
    waiting = (ast.FunctionDef, ast.AsyncFunctionDef, ast.If)
    found, nodes = set(), [tree(module)]
    while nodes:
        node = nodes.pop()
        found |= imported(node)
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, waiting)]
    return found


def part(module):
    """Return the first word behind ``graphcache``."""
    return module.split(".")[1] if "." in module else ""


def ours(names):
    return {name for name in names if name == "graphcache" or name.startswith("graphcache.")}


@pytest.mark.parametrize("module", [m for m in FILES if part(m) in CORE])
def test_the_core_rests_on_itself(module):
    assert {part(name) for name in ours(imports(module))} <= CORE


def test_errors_import_nothing_of_ours():
    assert not ours(imports("graphcache.errors"))


@pytest.mark.parametrize("module", [m for m in FILES if part(m) in MAY_USE])
def test_parts_know_the_core_and_not_each_other(module):
    own = part(module)
    allowed = {f"graphcache.{name}" for name in {own, *MAY_USE[own], *CORE}}
    strangers = {
        name for name in ours(imports(module)) if not any(f"{name}.".startswith(f"{a}.") for a in allowed)
    }
    assert strangers == set()


@pytest.mark.parametrize("module", FILES)
def test_nothing_imports_the_command_line_or_the_plugin(module):
    for top, servers in TOPS.items():
        assert part(module) in (top, *servers) or top not in {part(name) for name in ours(imports(module))}


@pytest.mark.parametrize("module", FILES)
def test_only_the_plugin_imports_vllm(module):
    assert part(module) == "vllm" or "vllm" not in {name.split(".")[0] for name in imports(module)}


@pytest.mark.parametrize("module", FILES)
def test_only_what_works_with_models_imports_torch_at_once(module):
    tops = {name.split(".")[0] for name in imports_at_once(module)}
    assert part(module) in USE_TORCH or not tops & {"torch", "torch_xla"}


def test_no_module_waits_for_itself():
    graph = {module: ours(imports_at_once(module)) - {module, "graphcache"} for module in FILES}
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) >= set(FILES) - {"graphcache"}


@pytest.mark.parametrize("module", FILES)
def test_only_the_configuration_reads_the_environment(module):
    reads = {
        node.attr
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert module in READ_ENVIRONMENT or not reads


def test_the_public_names():
    assert sorted(graphcache.__all__) == graphcache.__all__ == PUBLIC
    assert all(hasattr(graphcache, name) for name in PUBLIC)


def test_all_else_imports_without_torch_or_vllm():
    modules = [m for m in FILES if part(m) not in USE_TORCH and not m.endswith("__main__")]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "sys.exit(' '.join({'torch', 'vllm'} & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
