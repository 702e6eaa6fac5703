import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.errors import ConfigError, UnknownNameError
from graphcache.key import GraphKey
from graphcache.ladder import Ladder
from graphcache.policy.protocol import Budget
from graphcache.simulate import (
    Limits,
    format_budget,
    load_costs,
    load_requests,
    load_steps,
    parse_budget,
    parse_budgets,
    parse_ladder,
)
from graphcache.trace import generate

VTC = "arrived_at_s,client,prompt_len,output_len\n0.0,13,13,199\n0.2,2,900,137\n0.3,2,36,137\n"
STEPS = '{"step":0,"t":0.0,"new":[5,7],"cached":[0,0]}\n{"step":1,"t":0.25,"new":[900],"cached":[0]}\n'


@pytest.fixture
def costs():
    return load_costs("tenstorrent-qwen3-embedding-4b")


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("8", Budget(8)),
        ("2GiB", Budget(None, 2 << 30)),
        ("8/2GiB", Budget(8, 2 << 30)),
        ("500MB/3", Budget(3, 500_000_000)),
        ("all", Budget()),
    ],
)
def test_budgets_are_read(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "0", "-3", "8/8", "1GiB/2GiB", "2 graphs", "8/", "none", "8/2GiB/1"])
def test_what_is_no_budget_shows_what_is(text):
    with pytest.raises(ConfigError, match="8/2GiB"):
        parse_budget(text)


@given(
    st.builds(Budget, st.none() | st.integers(1, 99), st.none() | st.integers(1, 999).map(lambda n: n << 20))
)
def test_a_budget_is_written_as_it_is_read(budget):
    assert parse_budget(format_budget(budget)).graphs == budget.graphs
    assert (parse_budget(format_budget(budget)).bytes or 0) == pytest.approx(budget.bytes or 0, rel=0.05)


def test_several_budgets_where_one_can_be_are_refused():
    assert parse_budgets(["4"], one=True) == [Budget(4)]
    assert parse_budgets(["4", "8"]) == [Budget(4), Budget(8)]
    with pytest.raises(ConfigError, match="4,8"):
        parse_budgets(["4", "8"], one=True)


@pytest.mark.parametrize(
    ("text", "ladder"),
    [
        ("128:1000", Ladder((128, 256, 512, 1000))),
        ("128:512:128", Ladder((128, 256, 384, 512))),
        ("32,100,4096", Ladder((32, 100, 4096))),
        ("512", Ladder((512,))),
    ],
)
def test_ladders_are_read(text, ladder):
    assert parse_ladder(text) == ladder


@pytest.mark.parametrize("text", ["", "a", "1:2:3:4", "1:", "128:256,512", "512:128", "5,5", "0:8"])
def test_what_is_no_ladder_is_refused(text):
    with pytest.raises(ConfigError):
        parse_ladder(text)


def test_a_name_is_generated_and_a_path_is_read(tmp_path):
    (tmp_path / "t.csv").write_text(VTC)
    assert len(load_requests(str(tmp_path / "t.csv"))) == 3
    assert len(load_requests(str(tmp_path / "t.csv"), limit=2)) == 2
    made = load_requests("azure-code", limit=7, seed=3)
    assert made.prompt_tokens.tolist() == generate("azure-code", 7, seed=3).prompt_tokens.tolist()
    with pytest.raises(UnknownNameError, match=r"'azure' is no file, and no known name; known: .*azure-code"):
        load_requests("azure")
    with pytest.raises(ConfigError, match="limit: 0"):
        load_requests("azure-code", limit=0)


def test_requests_longer_than_the_ladder_are_left_out_and_counted(tmp_path, costs):
    (tmp_path / "t.csv").write_text(VTC)
    steps = load_steps(load_requests(str(tmp_path / "t.csv")), Ladder((128, 512)), costs)
    assert (steps.new.tolist(), steps.left_out) == ([13, 36], 1)


def test_recorded_steps_keep_their_times_and_batches(tmp_path, costs):
    (tmp_path / "t.jsonl").write_text(STEPS)
    recorded = load_requests(str(tmp_path / "t.jsonl"))
    steps = load_steps(recorded, Ladder((128, 1024)), costs)
    assert (steps.new.tolist(), steps.started_seconds.tolist()) == ([5, 7, 900], [0, 0.25])
    assert load_steps(recorded, Ladder((128,)), costs).left_out == 1
    with pytest.raises(ConfigError, match="recorded steps keep their times"):
        load_steps(recorded, Ladder((128, 1024)), costs, load=0.3)


@pytest.mark.parametrize(("name", "text"), [("t.csv", VTC), ("t.jsonl", STEPS)])
def test_a_trace_with_nothing_within_the_ladder_is_refused(tmp_path, costs, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=r"at most 4 tokens, the ladder's top; allowed: a ladder with a"):
        load_steps(load_requests(str(tmp_path / name)), Ladder((4,)), costs)


def test_cached_tokens_of_recorded_steps_are_told_to_be_left_aside(tmp_path, costs):
    (tmp_path / "t.jsonl").write_text(STEPS.replace('"cached":[0,0]', '"cached":[0,16]'))
    steps = load_steps(load_requests(str(tmp_path / "t.jsonl")), Ladder((128, 1024)), costs)
    assert steps.notes == ("1 sequences had cached tokens before their new ones, which are not simulated",)


def test_the_server_is_as_fast_as_its_best_graphs(costs):
    steps = load_steps(generate("azure-conv", 200), Ladder((16384,)), costs, limits=Limits(1))
    gaps = set((steps.started_seconds[1:] - steps.started_seconds[:-1]).round(4))
    assert gaps == {round(costs.run_seconds(GraphKey(1, 16384)), 4)}


def test_one_compile_time_can_stand_for_all():
    assert load_costs("tenstorrent-qwen3-embedding-4b", 5).compile_seconds(GraphKey(1, 128)) == 5
