"""A configuration becomes a cache that does what it says."""

import pytest
import torch

from graphcache.backends.protocol import Artifact, EvictUnit, Graph, Job
from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.config import load_config
from graphcache.config.build import build_backend, build_cache, build_policy, build_store
from graphcache.errors import BudgetError, ConfigError, PolicyError, StoreError
from graphcache.eviction.lfu import Lfu
from graphcache.key import GraphKey
from graphcache.miss import OnMiss
from graphcache.policy.static_mask import StaticMask
from graphcache.trace import read_trace


class Toy:
    """A backend whose graphs return their own key; compiles are counted."""

    name = "toy"
    persists = True
    evict_unit = EvictUnit.ENTRY

    def __init__(self, model="m", *, nbytes=1):
        self.model, self.nbytes, self.compiled = model, nbytes, []

    def fingerprint(self):
        return [("toy", self.model)]

    def compile(self, key):
        self.compiled.append(key)
        return Artifact(str(key).encode())

    def load(self, key, artifact):
        return Graph(lambda: artifact.payload.decode(), self.nbytes)


def config(tmp_path, **fields):
    path = tmp_path / "store"
    return load_config({"policy": "static-mask", "store": {"path": str(path)}, "strict": True, **fields})


def serve(cache, *lengths):
    with cache.step(Batch.of(lengths)) as step:
        return [launch.graph() for launch in step]


def test_a_second_process_finds_the_artifacts_in_the_store(tmp_path):
    backends = [Toy(), Toy(), Toy("another model")]
    for backend in backends:
        with build_cache(config(tmp_path), backend) as cache:
            assert serve(cache, 100, 100) == ["prefill/custom/1x256"]
    assert [len(backend.compiled) for backend in backends] == [1, 0, 1]


def test_a_cache_is_built_from_a_file_in_one_call(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("policy: dynamic-dual\nladder: {min: 8, max: 32}\nstore: null\n")
    with GraphCache.from_yaml(path, backend=Toy()) as cache:
        assert serve(cache, 20) == ["prefill/causal/1x32"]
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: can't be read"):
        GraphCache.from_yaml("nowhere.yaml", backend=Toy())


def test_without_a_store_nothing_is_kept(tmp_path):
    backend = Toy()
    for _ in range(2):
        with build_cache(config(tmp_path, store=None), backend) as cache:
            serve(cache, 1)
    assert len(backend.compiled) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_budget_holds(tmp_path):
    with build_cache(config(tmp_path, budget={"graphs": 2}), Toy()) as cache:
        for length in (1, 200, 400, 800):
            serve(cache, length)
        assert len(cache.resident) == 2
    with (
        build_cache(config(tmp_path, budget={"bytes": 5}), Toy(nbytes=6)) as cache,
        pytest.raises(BudgetError),
    ):
        serve(cache, 1)


def test_the_backend_says_what_is_freed_together(tmp_path):
    backend = Toy()
    backend.evict_unit = EvictUnit.NEVER
    with build_cache(config(tmp_path, budget={"graphs": 1}), backend) as cache:
        serve(cache, 1)
        serve(cache, 200)
        assert cache.snapshot()["retained_bytes"] == 1


@pytest.mark.parametrize(("max_slowdown", "served"), [(10.0, "1x128"), (1.0, "1x64")])
def test_a_fallback_may_be_so_much_slower_and_no_more(tmp_path, max_slowdown, served):
    settings = config(tmp_path, on_miss="fallback", max_slowdown=max_slowdown, ladder={"min": 64, "max": 128})
    with build_cache(settings, Toy()) as cache:
        serve(cache, 128)
        assert serve(cache, 64) == [f"prefill/custom/{served}"]


@pytest.mark.parametrize("strict", [False, True])
def test_strict_raises_what_else_is_counted(tmp_path, strict):
    with build_cache(config(tmp_path, strict=strict), Toy()) as cache:
        assert cache.stats.strict is strict


def test_on_miss_and_what_it_becomes(tmp_path):
    settings = config(tmp_path, on_miss="log", frozen_on_miss="raise")
    with build_cache(settings, Toy()) as cache:
        assert cache.on_miss is OnMiss.LOG
        cache.freeze()
        assert cache.on_miss is OnMiss.RAISE


def test_the_policy_gets_its_options_and_its_eviction(tmp_path):
    settings = config(
        tmp_path, policy={"name": "static-causal", "options": {"several": "refuse"}}, eviction="lfu"
    )
    with build_cache(settings, Toy()) as cache:
        assert isinstance(cache.policy.eviction, Lfu)
        with pytest.raises(PolicyError, match="several: refuse"):
            serve(cache, 1, 1)


@pytest.mark.parametrize(
    ("fields", "background"),
    [
        ({"policy": "adaptive"}, False),
        ({"policy": "adaptive", "on_miss": "fallback"}, True),
        ({"policy": {"name": "adaptive", "options": {"background": True}}}, True),
    ],
)
def test_a_policy_is_told_whether_compiles_run_beside_the_steps(tmp_path, fields, background):
    settings = config(tmp_path, **fields)
    assert build_policy(settings, settings.ladders()).background is background


def test_an_eviction_is_told_of_the_costs_and_of_fallbacks(tmp_path):
    profile = "tenstorrent-qwen3-embedding-4b"
    settings = config(tmp_path, eviction="saved-seconds", profile=profile, on_miss="fallback")
    key = GraphKey(1, 128, mode="custom")
    with build_cache(settings, Toy()) as cache:
        assert serve(cache, 1) == [str(key)]
        assert cache.policy.eviction.costs.run_seconds(key) == 0.4321
        assert cache.policy.eviction.fallback is True


def test_a_policy_may_be_an_object(tmp_path):
    settings = config(tmp_path)
    policy = StaticMask(settings.ladders(max_tokens=64))
    with build_cache(settings, Toy(), policy=policy) as cache:
        assert serve(cache, 1) == ["prefill/custom/1x64"]


def test_the_servers_ladders_may_be_given(tmp_path):
    settings = config(tmp_path)
    with build_cache(settings, Toy(), ladders=settings.ladders(max_tokens=64)) as cache:
        assert serve(cache, 1) == ["prefill/custom/1x64"]


def test_costs_come_from_the_profile(tmp_path):
    key = GraphKey(1, 128, mode="custom")
    with build_cache(config(tmp_path, profile="tenstorrent-qwen3-embedding-4b"), Toy()) as cache:
        assert cache.view.costs.run_seconds(key) == 0.4321
    with pytest.raises(ConfigError, match="profile: 'cray-1' is no"):
        build_cache(config(tmp_path, profile="cray-1"), Toy())


@pytest.mark.parametrize("learn", [False, True])
def test_measured_seconds_replace_the_profiles_if_they_may(tmp_path, learn):
    settings = config(tmp_path, profile="tenstorrent-qwen3-embedding-4b", learn_costs=learn)
    with build_cache(settings, Toy()) as cache:
        for _ in range(2 * cache.LEARN_STEPS):
            with cache.step(Batch.of([100])) as step:
                for launch in step:
                    step.ran(launch, 0.25)
        assert cache.view.costs.run_seconds(GraphKey(1, 128, mode="custom")) == (0.25 if learn else 0.4321)


class Leaving(Toy):
    """A backend whose compiles can leave the process."""

    def job(self, key):
        return Job("builtins:bytes", str(key).encode())


def test_compiles_leave_the_process_where_workers_are_asked_for(tmp_path):
    backend = Leaving()
    with build_cache(config(tmp_path, compile={"workers": 1}), backend) as cache:
        assert serve(cache, 1) == ["prefill/custom/1x128"]
        assert cache.stats.of(GraphKey(1, 128, mode="custom")).compiles == 1
    assert backend.compiled == []


@pytest.mark.parametrize(
    ("fields", "workers"),
    [
        ({}, 0),
        ({"on_miss": "fallback"}, 1),
        ({"frozen_on_miss": "fallback"}, 1),
        ({"on_miss": "fallback", "compile": {"workers": 0}}, 0),
        ({"compile": {"workers": 3}}, 3),
    ],
)
def test_a_worker_compiles_beside_the_steps_where_misses_fall_back(tmp_path, fields, workers):
    assert config(tmp_path, **fields).workers == workers


def test_a_backend_that_can_not_leave_the_process_is_told(tmp_path):
    with pytest.raises(
        ConfigError, match="backend: 'toy' is not allowed; allowed: one that compiles in other"
    ):
        build_cache(config(tmp_path, compile={"workers": 1}), Toy())
    with build_cache(config(tmp_path, on_miss="fallback"), Toy()) as cache:
        assert not cache.supplier.background


def test_steps_are_recorded_where_that_is_asked_for(tmp_path):
    path = tmp_path / "records/steps.jsonl"
    with build_cache(config(tmp_path, record=str(path)), Toy()) as cache:
        serve(cache, 100, 100)
        serve(cache, 7)
    assert [batch.tokens for batch in read_trace(path).batches()] == [200, 7]


class Identity:
    """A program whose model returns what it is given."""

    def module(self, key):
        return lambda tensor: tensor

    def inputs(self, key):
        return (torch.ones(key.seq_len),)

    def facts(self):
        return []


class Wrong(Toy):
    """A backend whose graphs compute something else than the program, unless they were just compiled."""

    def __init__(self):
        super().__init__()
        self.program = Identity()

    def load(self, key, artifact):
        return Graph(lambda tensor: tensor + (key not in self.compiled))


@pytest.mark.parametrize(("share", "compiled"), [(0.0, 0), (1.0, 1)])
def test_a_share_of_the_loads_is_compared_with_the_model(tmp_path, share, compiled):
    settings = config(tmp_path, verify_sample=share, strict=False)
    for backend in (Wrong(), Wrong()):
        with build_cache(settings, backend) as cache, cache.step(Batch.of([1])):
            pass
    assert len(backend.compiled) == compiled
    assert bool(cache.stats.errors) is bool(compiled)


def test_what_has_no_model_can_not_be_compared_with_it(tmp_path):
    with pytest.raises(
        ConfigError, match=r"verify_sample: 0\.5 is not allowed; allowed: 0: the backend toy has"
    ):
        build_cache(config(tmp_path, verify_sample=0.5), Toy())


def test_a_backend_is_built_with_its_options(tmp_path):
    settings = config(tmp_path, backend={"name": f"{__name__}:Toy", "options": {"nbytes": 7}})
    backend = build_backend(settings, "model")
    assert (backend.model, backend.nbytes) == ("model", 7)


def test_an_option_that_is_not_taken_is_told_with_those_that_are(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("policy:\n  name: static-causal\n  options:\n    sevral: split\n")
    with pytest.raises(ConfigError) as raised:
        build_policy(load_config(path), load_config(path).ladders())
    where = f"{path}:4: policy.options.sevral"
    assert str(raised.value) == f"{where}: no such option of static-causal; allowed: several, encoder_only"


def test_an_option_of_a_wrong_value_is_told_with_its_place(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("policy:\n  name: static-causal\n  options: {several: drop}\n")
    with pytest.raises(ConfigError) as raised:
        build_policy(load_config(path), load_config(path).ladders())
    where = f"{path}:3: policy.options"
    assert str(raised.value) == f"{where}: several: 'drop' is not allowed; allowed: split, refuse"


def test_a_policy_that_takes_no_ladders_is_told(tmp_path):
    settings = config(tmp_path, policy="builtins:object")
    with pytest.raises(
        ConfigError, match=r"policy: 'builtins:object' can't be made: too many positional arg"
    ):
        build_policy(settings, settings.ladders())


def test_options_of_what_takes_none_are_refused(tmp_path):
    settings = config(tmp_path, eviction={"name": "lru", "options": {"size": 3}})
    with pytest.raises(ConfigError, match="no such option of lru; allowed: no option"):
        build_policy(settings, settings.ladders())


def test_the_environment_says_where_the_store_is_unless_the_file_does(tmp_path, monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_STORE", str(tmp_path / "env"))
    for path, expected in ((None, tmp_path / "env"), (str(tmp_path / "own"), tmp_path / "own")):
        opened = build_store(config(tmp_path, store={"path": path}).store)
        assert opened.disk.path == expected
        opened.close()


def test_a_store_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreError, match="store"):
        build_cache(config(tmp_path), Toy())


def test_a_store_may_be_only_read(tmp_path):
    with build_cache(config(tmp_path), Toy()) as cache:
        serve(cache, 1)
    read_only = config(tmp_path, store={"path": str(tmp_path / "store"), "read_only": True})
    backend = Toy()
    with build_cache(read_only, backend) as cache:
        serve(cache, 1)
    assert backend.compiled == []


def test_a_home_that_is_not_there_is_told(tmp_path):
    with pytest.raises(
        ConfigError, match=r"path: '~nobody_of_ours/x' is not allowed; allowed: a path without ~"
    ):
        build_store(config(tmp_path, store={"path": "~nobody_of_ours/x"}).store)
