"""The sample model's graphs without a compiler, for tests of what measures them."""

from contextlib import contextmanager

from graphcache.backends.eager import EagerBackend
from graphcache.bench.concurrent import SMALL
from graphcache.bench.graphs import SampleGraphs
from graphcache.bench.sample import SampleProgram
from graphcache.compile.inline import InlineSupplier
from graphcache.errors import CompileError


class NoFlex(EagerBackend):
    """Fails as a device without FlexAttention does."""

    def compile(self, key):
        raise CompileError(key, "no FlexAttention here")


def eager_graphs(sizes=SMALL):
    program = SampleProgram(sizes)
    graphs = SampleGraphs(program)
    graphs._plain, graphs._flex = InlineSupplier(EagerBackend(program)), InlineSupplier(NoFlex(program))
    return graphs


@contextmanager
def opened(store=None, sizes=SMALL):
    yield eager_graphs()
