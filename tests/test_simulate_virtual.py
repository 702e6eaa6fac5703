from hypothesis import given
from hypothesis import strategies as st

from graphcache.costs import PaddedWork
from graphcache.key import GraphKey
from graphcache.simulate.virtual import VirtualClock, VirtualSupplier

A, B, C = (GraphKey(1, seq_len) for seq_len in (128, 256, 512))


def supplier(*, background=False):
    clock = VirtualClock()
    return clock, VirtualSupplier(PaddedWork(compile_seconds=60, nbytes=7), clock, background=background)


def keys(ready):
    return [supplied.key for supplied in ready]


def test_waiting_for_a_compile_takes_its_seconds():
    clock, compiler = supplier()
    supplied = compiler.fetch(A)
    assert clock() == 60
    assert (supplied.key, supplied.source, supplied.seconds, supplied.graph.nbytes) == (A, "compile", 60, 7)


def test_a_requested_graph_is_ready_its_compile_seconds_later():
    clock, compiler = supplier(background=True)
    clock.spend(5)
    compiler.request(A)
    clock.wait_until(64.9)
    assert keys(compiler.ready()) == []
    clock.wait_until(65)
    assert keys(compiler.ready()) == [A]
    assert keys(compiler.ready()) == []
    assert clock() == 65


def test_requests_are_compiled_one_after_the_other():
    clock, compiler = supplier(background=True)
    for key in (A, B, A, C):
        compiler.request(key)
    ready = []
    for moment in (60, 120, 180):
        clock.wait_until(moment)
        ready.append(keys(compiler.ready()))
    assert ready == [[A], [B], [C]]


def test_what_is_under_way_is_waited_for_and_not_begun_again():
    clock, compiler = supplier(background=True)
    compiler.request(A)
    clock.spend(50)
    assert compiler.fetch(A).key == A
    assert clock() == 60
    assert keys(compiler.ready()) == []
    assert compiler.delivered == [A]


def test_an_idle_compiler_begins_at_once():
    clock, compiler = supplier(background=True)
    compiler.request(A)
    clock.wait_until(1000)
    compiler.request(B)
    assert keys(compiler.ready()) == [A]
    clock.wait_until(1059)
    assert keys(compiler.ready()) == []
    clock.wait_until(1060)
    assert keys(compiler.ready()) == [B]


@given(st.lists(st.floats(-5, 5)))
def test_waiting_never_goes_back(moments):
    clock = VirtualClock()
    for moment in moments:
        before = clock()
        clock.wait_until(moment)
        assert clock() == max(before, moment)
