"""A live cache that learns its costs from what runs."""

from fakes import FakeBackend

from graphcache.batch import Batch
from graphcache.cache import GraphCache
from graphcache.compile.inline import InlineSupplier
from graphcache.costs import CostLearner
from graphcache.key import GraphKey
from graphcache.ladder import Ladder
from graphcache.policy.dynamic_dual import DynamicDual
from graphcache.policy.protocol import Budget, Ladders
from graphcache.stats import Stats

SHORT, LONG = GraphKey(1, 128), GraphKey(1, 512)


def cache_of(learner, graphs=4):
    return GraphCache(
        DynamicDual(Ladders(Ladder((128, 512)))),
        InlineSupplier(FakeBackend()),
        budget=Budget(graphs),
        learner=learner,
        stats=Stats(strict=True),
    )


def run(cache, tokens, seconds):
    with cache.step(Batch.of([tokens])) as step:
        for launch in step:
            step.ran(launch, seconds)


def test_what_ran_becomes_the_view_after_some_steps_though_every_one_is_a_hit():
    with cache_of(CostLearner()) as cache:
        for _ in range(GraphCache.LEARN_STEPS):
            run(cache, 100, 0.25)
        assert cache.view.costs.run_seconds(SHORT) == 0.25


def test_the_first_run_after_each_load_is_no_measure():
    learner = CostLearner()
    with cache_of(learner, graphs=1) as cache:
        for _ in range(40):
            run(cache, 100, 9.0)
            run(cache, 100, 0.25)
            run(cache, 500, 9.0)
    costs = learner.snapshot()
    assert costs.run_seconds(SHORT) == 0.25
    assert costs.measured[LONG].run_seconds is None


def test_bytes_and_compile_seconds_are_learned():
    learner = CostLearner()
    with cache_of(learner) as cache:
        run(cache, 100, 1.0)
    assert learner.snapshot().nbytes(SHORT) == 128
    assert learner.snapshot().measured[SHORT].compile_seconds > 0


def test_decisions_are_kept_while_nothing_new_is_learned():
    with cache_of(CostLearner()) as cache:
        for _ in range(2 * GraphCache.LEARN_STEPS):
            run(cache, 100, 0.25)
        view = cache.view
        for _ in range(GraphCache.LEARN_STEPS):
            run(cache, 100, 0.2501)
        assert cache.view is view
