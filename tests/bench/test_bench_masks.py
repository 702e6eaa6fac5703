import json

import pytest
from bench_eager import eager_graphs, opened

from graphcache.bench import mask_table
from graphcache.bench.masks import BATCH_FORMS, LONE_FORMS, Limits, MaskBench, Row, cells, graph_key
from graphcache.errors import ConfigError
from graphcache.key import GraphKey, MaskMode
from graphcache.profiles import load_profile


@pytest.fixture(scope="module")
def rows():
    return list(MaskBench(eager_graphs(), repeats=1).measure([16, 128]))


def test_a_length_has_every_form_of_one_sequence_and_every_layout_of_several():
    found = [(cell.sequences, cell.form) for cell in cells(1024, "model")]
    assert found == [(1, form) for form in LONE_FORMS] + [
        (n, form) for n in (2, 4, 8) for form in BATCH_FORMS
    ]
    assert {cell.sequences for cell in cells(12, "model")} == {1, 2, 4}
    assert {cell.length for cell in cells(1024, "model")} == {1024}


@pytest.mark.parametrize(
    ("form", "sequences", "expected"),
    [
        ("causal", 1, "attention/causal/1x512"),
        ("custom-ids", 1, "attention/custom/1x512"),
        ("custom-dense", 1, "attention/custom/1x512[dense]"),
        ("custom-flex", 4, "attention/custom/1x512[flex]"),
        ("packed", 4, "attention/custom/1x512"),
        ("rows", 4, "attention/causal/4x128"),
        ("split", 4, "attention/causal/1x128"),
    ],
)
def test_the_graph_of_a_cell(form, sequences, expected):
    assert str(graph_key(Row(512, sequences, form, "attention"))) == expected


def test_every_cell_is_measured_or_skipped(rows):
    assert [row._replace(seconds=None) for row in rows] == [
        cell for scope in ("attention", "model") for length in (16, 128) for cell in cells(length, scope)
    ]
    skipped = {row.form for row in rows if row.seconds is None}
    assert skipped == {"custom-flex"}
    assert all(row.seconds > 0 for row in rows if row.form != "custom-flex")


def test_a_compiler_without_flexattention_is_told_and_any_other_failure_is_raised(monkeypatch):
    bench = MaskBench(eager_graphs(), repeats=1)
    list(bench.measure([128], ["attention"]))
    assert "no FlexAttention here" in bench.notes["FlexAttention"]
    bench.graphs._plain = bench.graphs._flex
    with pytest.raises(Exception, match="no FlexAttention here"):
        list(bench.measure([128], ["attention"]))


def test_masks_above_the_limit_are_skipped_and_nothing_else():
    bench = MaskBench(eager_graphs(), repeats=1, limits=Limits(mask_bytes=4 * 32**2))
    seconds = {(r.length, r.form): r.seconds for r in bench.measure([32, 64], ["model"]) if r.sequences <= 2}
    masks = {"custom-dense", "custom-ids", "packed"}
    assert {form for (length, form), value in seconds.items() if length == 64 and not value} == {
        *masks,
        "custom-flex",
    }
    assert all(seconds[32, form] for form in masks)


def test_what_ran_too_long_is_skipped_and_its_like_of_more_tokens_not_tried(monkeypatch):
    bench = MaskBench(eager_graphs(), repeats=1, limits=Limits(run_seconds=0.0))
    tried = []
    found = list(bench.measure([16, 32], ["model"], lambda what, done, total: tried.append((done, total))))
    assert {row.seconds for row in found} == {None}
    assert tried[-1] == (32, 32)
    assert {key.tokens for key in bench.graphs.supplied} == {16, 8, 4, 2}


def test_an_unknown_scope_is_named():
    with pytest.raises(ConfigError, match="scope: 'mlp' is not allowed; allowed: attention, model"):
        list(MaskBench(eager_graphs()).measure([16], ["mlp"]))


@pytest.mark.parametrize("length", [0, 4096])
def test_a_length_that_the_model_does_not_take_is_named(length):
    with pytest.raises(ConfigError, match=f"length: {length} is not allowed; allowed: 1 to 2048"):
        list(MaskBench(eager_graphs()).measure([length], ["model"]))


def test_a_profile_has_the_model_s_graphs(rows, tmp_path, run):
    bench = MaskBench(eager_graphs(), repeats=1)
    found = list(bench.measure([16], ["model"]))
    table = bench.profile(found)
    assert sorted(map(str, table.measured)) == [
        "prefill/causal/1x16",
        "prefill/causal/2x8",
        "prefill/causal/4x4",
        "prefill/causal/8x2",
        "prefill/custom/1x16",
    ]
    causal = next(row.seconds for row in found if row.form == "causal")
    assert table.run_seconds(GraphKey(1, 16, mode=MaskMode.CAUSAL)) == causal
    with pytest.raises(ConfigError, match="scope of a profile"):
        bench.profile([row for row in rows if row.scope == "attention"])


@pytest.fixture
def bench_masks(run, monkeypatch):
    monkeypatch.setattr("graphcache.bench.graphs.sample_graphs", opened)
    return lambda *arguments: run("bench", "masks", "--repeats", 1, "--lengths", "16,128", *arguments)


def test_json_has_the_rows(bench_masks):
    ran = bench_masks("--json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert list(found) == ["rows"]
    assert [set(row) for row in found["rows"]] == [set(Row._fields)] * (2 * 2 * 16)
    assert "threads" in ran.err


def test_tables_show_threads_skipped_cells_and_the_published_ratios(bench_masks):
    out = bench_masks("--scope", "attention").out
    assert "threads on both sides" in out
    assert "skipped" in out
    assert "1.12x" in out
    assert "model" not in out


def test_a_profile_and_a_picture_are_written(bench_masks, tmp_path):
    assert bench_masks("--save-profile", tmp_path / "here.yaml", "--plot", tmp_path / "masks.png").code == 0
    assert load_profile(tmp_path / "here.yaml").measured
    assert (tmp_path / "masks.png").read_bytes().startswith(b"\x89PNG")


def test_bad_options_are_named(bench_masks, run, tmp_path):
    assert bench_masks("--scope", "mlp").code == 2
    assert bench_masks("--max-memory", "lots").code == 2
    assert "FILE" not in bench_masks("--plot", tmp_path / "masks.txt").err
    ran = run("bench", "masks", "--lengths", "128,long")
    assert (ran.code, "lengths: '128,long' is not allowed" in ran.err) == (2, True)


def test_the_published_ratios_are_those_of_the_profile():
    ratios = mask_table.published()
    assert list(ratios) == [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    assert ratios[16384] == pytest.approx(1.82, abs=0.005)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_compiled_graphs_of_every_form_and_a_warm_store(run, tmp_path):
    options = ["--lengths", "128", "--scope", "attention", "--repeats", 1, "--store", tmp_path / "store"]
    rows = []
    for _ in range(2):
        ran = run("bench", "masks", *options, "--json")
        assert (ran.code, ran.err.count("FlexAttention")) == (0, 0)
        rows.append(json.loads(ran.out)["rows"])
    assert all(row["seconds"] > 0 for row in (*rows[0], *rows[1]))
