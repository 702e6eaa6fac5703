"""Nothing that is read can run: no pickle, no eval, no shell, anywhere in the package."""

import ast
from pathlib import Path

import pytest

import graphcache

PACKAGE = Path(graphcache.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load"}
TORCH_LOADS = {"torch.load"}


def forbidden(source):
    """Yield what may not be in a module, as ``line: what``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        for name in names:
            if name.partition(".")[0] in MODULES:
                yield f"{node.lineno}: import {name}"
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if name in CALLS or keywords.get("shell") == "True":
                yield f"{node.lineno}: {name}()"
            if name in TORCH_LOADS and keywords.get("weights_only") != "True":
                yield f"{node.lineno}: {name}() without weights_only=True"


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_nothing_that_is_read_can_run(path):
    assert list(forbidden(path.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import torch, shelve",
        "eval('1')",
        "exec(text)",
        "subprocess.run('x', shell=True)",
        "yaml.load(file)",
        "torch.load(path)",
        "os.system('x')",
    ],
)
def test_what_can_run_is_found(line):
    assert list(forbidden(line))
