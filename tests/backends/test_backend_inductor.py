from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import CAUSAL, CUSTOM, HIDDEN, TinyProgram, same

from graphcache.backends.inductor import InductorBackend, takes_march
from graphcache.backends.payload import LIBRARY, OPERATORS, Payload
from graphcache.backends.program import Template
from graphcache.backends.protocol import Artifact, EvictUnit
from graphcache.compile.process import Limits, WorkerProcess
from graphcache.errors import ConfigError, HostError, LoadError
from graphcache.key import GraphKey

HERE = Path(__file__).parent

ELSEWHERE = """
import sys
from tiny_model import CAUSAL, CUSTOM, TinyProgram, same
from graphcache.backends.inductor import InductorBackend
from graphcache.backends.protocol import Artifact

program = TinyProgram(seed=5)
backend = InductorBackend(program)
graphs = {}
for key, path in zip((CAUSAL, CUSTOM), sys.argv[1:]):
    with open(path, "rb") as file:
        graphs[key] = backend.load(key, Artifact(payload=file.read()))
# torch's own way to call a custom operator of Python, in the loop below, imports it.
assert not {"torch._inductor", "torch._dynamo"} & set(sys.modules)
for key, graph in graphs.items():
    assert same(graph(*program.inputs(key)), program.model(*program.inputs(key))), key
"""


def python(code: str, *arguments: Path, **environment: str) -> None:
    """Run code in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(HERE), **environment}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_graphs_run_in_another_process_that_never_imports_the_compiler(
    compiled: dict[GraphKey, bytes], tmp_path: Path
) -> None:
    for key in (CAUSAL, CUSTOM):
        (tmp_path / key.mode).write_bytes(compiled[key])
    python(ELSEWHERE, tmp_path / CAUSAL.mode, tmp_path / CUSTOM.mode)


def test_graphs_of_one_template_are_traced_once(
    program: TinyProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphcache.backends import exported

    traced, honest = [], exported.export
    monkeypatch.setattr(exported, "export", lambda *a, **o: traced.append(a[1]) or honest(*a, **o))
    backend = InductorBackend(program)
    longer = GraphKey(1, 48)
    jobs = [backend.job(key) for key in (CAUSAL, longer, CUSTOM, CAUSAL)]
    assert traced == [CAUSAL, CUSTOM]
    assert jobs[0].data is jobs[1].data is jobs[3].data is not jobs[2].data
    payload = exported.compile_job(jobs[1].data, **jobs[1].arguments)
    graph = backend.load(longer, Artifact(payload=payload))
    assert same(graph(*program.inputs(longer)), program.model(*program.inputs(longer)))
    more_slots = program.inputs(longer, slots=200)
    assert same(graph(*more_slots), program.model(*program.inputs(longer, slots=200)))
    with pytest.raises(ValueError, match="48"):
        graph(*program.inputs(CAUSAL))


def test_a_model_whose_lengths_can_not_be_open_is_traced_key_by_key(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = TinyProgram()
    shapes = ({1: torch.export.Dim("length", min=33)}, {}, {})
    monkeypatch.setattr(program, "template", lambda key: Template("longer ones", shapes))
    backend = InductorBackend(program)
    jobs = [backend.job(key) for key in (CAUSAL, GraphKey(1, 48))]
    assert jobs[0].data != jobs[1].data
    assert "inputs" not in jobs[0].arguments
    assert [record.message for record in caplog.records if "longer ones" in record.message] != []


def test_a_worker_compiles_the_same_without_the_weights(
    compiled: dict[GraphKey, bytes],
    inductor: InductorBackend,
    program: TinyProgram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE), str(HERE.parents[1]))))
    inductor.imports = ["tiny_model"]
    inductor.options = {"aot_inductor.precompile_headers": False}  # Which pays from the third graph on.
    worker = WorkerProcess(tmp_path, Limits(nice=0))
    try:
        payload = worker.run(inductor.job(CAUSAL))
    finally:
        worker.end()
    graph = inductor.load(CAUSAL, Artifact(payload=payload))
    assert same(graph(*program.inputs(CAUSAL)), program.model(*program.inputs(CAUSAL)))
    assert Payload.unpack(payload).about == Payload.unpack(compiled[CAUSAL]).about
    # The number of threads of the process that compiles is in nothing: the very same code comes out.
    assert abs(len(payload) - len(compiled[CAUSAL])) < 256
    assert b"GOMP_parallel" in payload


def test_an_exported_program_is_small_whatever_the_weights(inductor: InductorBackend) -> None:
    small = len(inductor.export(CAUSAL))
    inductor.program.model.embedding.weight.data = torch.zeros(200_000, HIDDEN)
    assert len(inductor.export(CAUSAL)) < small + 1024


def test_a_graph_with_operators_of_others_carries_their_list(compiled: dict[GraphKey, bytes]) -> None:
    assert OPERATORS in Payload.unpack(compiled[CUSTOM]).files
    assert OPERATORS not in Payload.unpack(compiled[CAUSAL]).files


def test_nothing_is_left_in_the_directory_it_loads_from(inductor: InductorBackend, tmp_path: Path) -> None:
    inductor.load(CUSTOM, inductor.compile(CUSTOM))
    assert list(tmp_path.iterdir()) == []


def test_loading_again_maps_nothing_again(inductor: InductorBackend) -> None:
    first = inductor.load(CAUSAL, inductor.compile(CAUSAL))
    before = mappings()
    for _ in range(50):
        first.close()
        assert inductor.load(CAUSAL, inductor.compile(CAUSAL)) is first
    assert mappings() == before


def test_bytes_are_those_of_the_code_and_stay_mapped(inductor: InductorBackend) -> None:
    artifact = inductor.compile(CAUSAL)
    code = len(Payload.unpack(artifact.payload or b"").files[LIBRARY])
    assert inductor.load(CAUSAL, artifact).nbytes == code < 1 << 20
    assert inductor.evict_unit is EvictUnit.NEVER


def wider(model: Any) -> None:
    model.layers[1].out.weight.data = torch.zeros(HIDDEN, HIDDEN + 1)


def other_dtype(model: Any) -> None:
    model.norm.data = model.norm.data.to(torch.bfloat16)


def transposed(model: Any) -> None:
    model.layers[0].out.weight.data = torch.zeros(HIDDEN, HIDDEN).T


def missing(model: Any) -> None:
    del model.layers[0].rotary.cos


WRONG = {
    wider: r"layers\.1\.out\.weight.*\[64, 64\].*\[64, 65\]",
    other_dtype: r"norm.*float32.*bfloat16",
    transposed: r"layers\.0\.out\.weight.*strides \[64, 1\].*strides \[1, 64\]",
    missing: r"rotary\.cos.*has none",
}


@pytest.mark.parametrize("change", WRONG)
def test_weights_of_another_model_are_refused(
    inductor: InductorBackend, change: Callable[[Any], None]
) -> None:
    change(inductor.program.model)
    with pytest.raises(LoadError, match=WRONG[change]):
        inductor.load(CAUSAL, inductor.compile(CAUSAL))


def test_replaced_weights_are_bound_anew(inductor: InductorBackend, program: TinyProgram) -> None:
    graphs = {key: inductor.load(key, inductor.compile(key)) for key in (CAUSAL, CUSTOM)}
    for weight in program.model.parameters():
        weight.data = torch.rand_like(weight)
    inductor.rebind()
    for key, graph in graphs.items():
        assert same(graph(*program.inputs(key)), program.model(*program.inputs(key)))


def test_replaced_weights_that_do_not_fit_leave_all_graphs_as_they_were(
    inductor: InductorBackend, program: TinyProgram
) -> None:
    graph = inductor.load(CAUSAL, inductor.compile(CAUSAL))
    before = {name: tensor.clone() for name, tensor in graph(*program.inputs(CAUSAL)).items()}
    program.model.norm.data = torch.rand(HIDDEN)
    wider(program.model)
    with pytest.raises(LoadError):
        inductor.rebind()
    assert same(graph(*program.inputs(CAUSAL)), before)


def test_wrong_inputs_are_refused_before_they_run(inductor: InductorBackend, program: TinyProgram) -> None:
    graph = inductor.load(CAUSAL, inductor.compile(CAUSAL))
    tokens, caches, slots = program.inputs(CAUSAL)
    with pytest.raises(ConfigError, match="input 0"):
        graph(tokens[:, :16], caches, slots)
    with pytest.raises(ConfigError, match="input 1"):
        graph(tokens, caches.transpose(0, 1), slots)
    with pytest.raises(ConfigError, match="3 tensors"):
        graph(tokens, caches)


def test_damaged_code_is_refused_and_not_mapped(inductor: InductorBackend) -> None:
    payload = inductor.compile(CAUSAL).payload or b""
    for damaged in (payload[: len(payload) // 2], payload[:-1] + b"?", b"", b"ELF"):
        with pytest.raises(LoadError):
            inductor.load(CAUSAL, Artifact(payload=damaged))
    nonsense = Payload({LIBRARY: b"\x7fELF", "own": b""}, Payload.unpack(payload).about)
    with pytest.raises(LoadError):
        inductor.load(CAUSAL, Artifact(payload=nonsense.pack()))


@pytest.mark.parametrize(
    "about", [{"torch": "1.0"}, {"target": {"machine": "vax", "isa": "none", "march": "vax"}}, {"inputs": 3}]
)
def test_code_for_elsewhere_is_refused(inductor: InductorBackend, about: dict[str, Any]) -> None:
    payload = Payload.unpack(inductor.compile(CAUSAL).payload or b"")
    changed = Payload(payload.files, {**payload.about, **about})
    with pytest.raises(LoadError):
        inductor.load(CAUSAL, Artifact(payload=changed.pack()))


def test_a_directory_mounted_noexec_is_named(
    inductor: InductorBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = os.statvfs(tmp_path)
    noexec = os.statvfs_result([*there[:8], there.f_flag | os.ST_NOEXEC, there.f_namemax])
    monkeypatch.setattr(os, "statvfs", lambda path: noexec)
    with pytest.raises(HostError, match=f"{tmp_path} is mounted noexec.*unpack_dir"):
        inductor.load(CAUSAL, inductor.compile(CAUSAL))


def test_a_directory_that_is_gone_is_named(program: TinyProgram, compiled: dict[GraphKey, bytes]) -> None:
    backend = InductorBackend(program, unpack_dir="/no/such/directory")
    with pytest.raises(HostError, match=r"unpack_dir.*/no/such/directory"):
        backend.load(CAUSAL, Artifact(payload=compiled[CAUSAL]))


def test_a_missing_compiler_is_named_with_its_package(program: TinyProgram) -> None:
    with pytest.raises(ConfigError, match=r"no-such-compiler.*package g\+\+"):
        InductorBackend(program, cxx="no-such-compiler").compile(CAUSAL)


def test_another_compiler_than_the_namespace_s_is_refused(program: TinyProgram) -> None:
    with pytest.raises(ConfigError, match=r"g\+\+ 1\.0"):
        InductorBackend(program, compiler="g++ 1.0").compile(CAUSAL)


def test_what_the_exporter_says_of_a_model_is_raised(program: TinyProgram) -> None:
    class Branches(torch.nn.Module):
        def forward(self, tokens: torch.Tensor, caches: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
            return caches if tokens.sum() > 3 else caches + 1

    program.model = Branches()  # type: ignore[assignment]
    with pytest.raises(Exception, match=r"data-dependent"):
        InductorBackend(program).compile(CAUSAL)


def test_a_tensor_that_no_name_leads_to_is_refused(program: TinyProgram) -> None:
    class Hidden(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = {"cache": torch.rand(HIDDEN)}

        def forward(self, tokens: torch.Tensor, caches: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
            return caches * self.tables["cache"]

    program.model = Hidden()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="register it as a buffer"):
        InductorBackend(program).compile(CAUSAL)


needs_march = pytest.mark.skipif(
    not takes_march(), reason="this torch's Inductor compiles for this host only"
)


@pytest.mark.skipif(takes_march(), reason="this torch's Inductor takes an architecture")
def test_an_architecture_that_torch_can_not_compile_for_is_refused(program: TinyProgram) -> None:
    with pytest.raises(ConfigError, match="march: 'x86-64-v3' is not allowed; allowed: native"):
        InductorBackend(program, march="x86-64-v3")
    assert InductorBackend(program).target.march == "native"


@pytest.mark.parametrize(
    "option",
    [
        {"threads": 2},
        pytest.param({"march": "native"}, marks=needs_march),
        {"isa": "none"},
        {"compiler": "g++ 1.0"},
        {"strict": True},
        {"options": {"max_autotune": True}},
    ],
)
def test_every_option_that_changes_code_changes_the_fingerprint(
    program: TinyProgram, option: dict[str, Any]
) -> None:
    assert InductorBackend(program, **option).fingerprint() != InductorBackend(program).fingerprint()


def test_where_it_unpacks_and_what_weighs_nothing_is_no_fact(program: TinyProgram, tmp_path: Path) -> None:
    there = InductorBackend(program, unpack_dir=tmp_path).fingerprint()
    assert there == InductorBackend(TinyProgram(seed=9)).fingerprint()
