import pytest

from graphcache.costs import CostTable, Measured, PaddedWork
from graphcache.errors import ConfigError, UnknownNameError
from graphcache.key import GraphKey, MaskMode
from graphcache.profiles import load_profile, save_profile, shipped

PUBLISHED = {
    128: (0.4321, 0.3875),
    256: (0.5265, 0.4624),
    512: (0.7542, 0.6364),
    1024: (1.1718, 0.9279),
    2048: (2.2332, 1.6695),
    4096: (5.0411, 3.3526),
    8192: (15.7709, 10.5187),
    16384: (39.9780, 21.9717),
}


@pytest.mark.parametrize("name", list(shipped()))
def test_every_shipped_profile_is_read(name):
    costs = load_profile(name)
    assert costs.name == name
    assert costs.measured


def test_the_tenstorrent_profile_has_the_published_seconds():
    costs = load_profile("tenstorrent-qwen3-embedding-4b")
    for seq_len, (custom, causal) in PUBLISHED.items():
        assert costs.run_seconds(GraphKey(1, seq_len, mode=MaskMode.CUSTOM)) == custom
        assert costs.run_seconds(GraphKey(1, seq_len)) == causal
        assert costs.compile_seconds(GraphKey(1, seq_len)) == 60
    assert len(costs.measured) == 2 * len(PUBLISHED)


def test_on_two_cores_a_mask_costs_and_rows_cost_less_than_packing():
    costs = load_profile("cpu-2-cores")
    for seq_len in (1024, 2048, 4096):
        causal, custom = (
            costs.run_seconds(GraphKey(1, seq_len, mode=mode)) for mode in (MaskMode.CAUSAL, MaskMode.CUSTOM)
        )
        assert causal < custom
        assert costs.run_seconds(GraphKey(4, seq_len // 4)) < custom


def test_an_unknown_name_shows_the_known_ones():
    with pytest.raises(UnknownNameError, match="tenstorrent-qwen3-embedding-4b"):
        load_profile("tenstorent")


def test_a_path_is_read_as_a_file_named_after_it(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("keys:\n  prefill/causal/1x128: {run_seconds: 1, bytes: 5}\n")
    costs = load_profile(path)
    assert costs.name == "mine"
    assert costs.run_seconds(GraphKey(1, 128)) == 1
    assert costs.nbytes(GraphKey(1, 256)) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys: {}", "keys: .*at least 1"),
        ("defaults: {}", "keys: is missing"),
        ("keys:\n  prefill/causal/1x128: {run_seconds: 0}", "file.yaml:2: .*run_seconds: 0 .*greater than 0"),
        ("keys:\n  prefill/causal/1x128: {run_seconds: .inf}", "file.yaml:2: .*run_seconds"),
        ("keys:\n  prefill/causal/1x128: {run_second: 1}", "did you mean 'run_seconds'"),
        ("keys:\n  causal-128: {run_seconds: 1}", "KIND/MODE/ROWSxSEQ_LEN"),
        ("keys:\n  prefill/causal/1x128: {run_seconds: fast}", "'fast'"),
        ("- 1", "file.yaml:1: .*allowed: fields"),
    ],
)
def test_a_wrong_file_is_refused_by_line_field_and_value(tmp_path, text, message):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_profile(path)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: can't be read"):
        load_profile(tmp_path / "none.yaml")


def test_what_was_measured_survives_a_file(tmp_path):
    measured = {
        GraphKey(1, 128, mode=MaskMode.CUSTOM): Measured(0.25, 0.003, 14.0, 1000),
        GraphKey(8, 1, 2048, kind="decode", flags=("greedy",)): Measured(run_seconds=1e-3),
    }
    costs = CostTable(measured, nominal=PaddedWork(load_seconds=0.5, compile_seconds=33.0, nbytes=9))
    save_profile(costs, tmp_path / "saved.yaml", "a machine")
    read = load_profile(tmp_path / "saved.yaml")
    assert read.measured == measured
    assert read.compile_seconds(GraphKey(1, 1, kind="other")) == 33.0
    assert read.load_seconds(GraphKey(1, 1, kind="other")) == 0.5
    assert read.nbytes(GraphKey(1, 1, kind="other")) == 9


def test_a_table_that_measured_nothing_is_no_profile(tmp_path):
    with pytest.raises(ConfigError, match="has measured something"):
        save_profile(CostTable({}), tmp_path / "empty.yaml")
