"""What is built and installed: the wheel has all it needs, and works where there is no torch."""

import os
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from graphcache import __version__

ROOT = Path(__file__).parents[1]


def check_output(*command, **options):
    ran = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def build(kind, source, folder):
    check_output(sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", folder, source)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_is_named_after_the_distribution(wheel):
    assert wheel.name == f"vllm_graphcache-{__version__}-py3-none-any.whl"


def test_the_wheel_holds_the_package_and_nothing_else(contents):
    tops = {name.split("/")[0] for name in contents}
    assert tops == {"graphcache", f"vllm_graphcache-{__version__}.dist-info"}
    assert not [name for name in contents if name.endswith(".pyc")]


def test_every_module_and_file_of_the_package_is_in_the_wheel(contents):
    package = ROOT / "graphcache"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert {f"graphcache/{path.relative_to(package)}" for path in files} <= contents.keys()


def test_the_policies_travel_in_the_wheel(contents):
    shipped = {path.name: path.read_bytes() for path in (ROOT / "policies").glob("*.yaml")}
    assert shipped
    assert {name: contents[f"graphcache/policies/{name}"] for name in shipped} == shipped


def test_the_wheel_says_what_it_is(contents):
    info = f"vllm_graphcache-{__version__}.dist-info"
    metadata = Parser().parsestr(contents[f"{info}/METADATA"].decode())
    assert (metadata["Name"], metadata["Version"]) == ("vllm-graphcache", __version__)
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra")) >= {"torch", "vllm", "plot", "dev"}
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert not [line for line in required if line.startswith(("torch", "vllm"))]
    assert f"{info}/licenses/LICENSE" in contents
    assert "graphcache = graphcache.cli:main" in contents[f"{info}/entry_points.txt"].decode()


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(contents, tmp_path):
    archive = build("sdist", ROOT, tmp_path / "sdist")
    check_output("tar", "xf", archive, "-C", tmp_path)
    rebuilt = build("wheel", tmp_path / archive.name.removesuffix(".tar.gz"), tmp_path / "wheel")
    with zipfile.ZipFile(rebuilt) as again:
        assert {name: again.read(name) for name in again.namelist() if "RECORD" not in name} == {
            name: content for name, content in contents.items() if "RECORD" not in name
        }


@pytest.mark.slow
def test_the_wheel_works_where_there_is_no_torch(wheel, tmp_path):
    check_output(sys.executable, "-m", "venv", tmp_path / "venv")
    python, program = tmp_path / "venv/bin/python", tmp_path / "venv/bin/graphcache"
    check_output(python, "-m", "pip", "install", "--quiet", wheel)
    environment = {**os.environ, "GRAPHCACHE_STORE": str(tmp_path / "store")}
    options = {"cwd": tmp_path, "env": environment}
    assert (
        "No module named 'torch'"
        in subprocess.run([python, "-c", "import torch"], capture_output=True, text=True, check=False).stderr
    )
    assert "Usage: graphcache" in check_output(program, "--help", **options)
    assert "dynamic-dual" in check_output(program, "policy", "list", **options)
    assert "ok" in check_output(program, "policy", "check", "dynamic-dual", **options)
    code = "from graphcache.config import shipped_policies as s; print(s()['dynamic-dual'])"
    assert str(tmp_path / "venv") in check_output(python, "-c", code, **options)
