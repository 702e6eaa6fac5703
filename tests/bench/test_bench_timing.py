from graphcache.bench.timing import interleaved, least, medians, timed


def test_every_round_calls_each_once_and_begins_with_another():
    called = []
    works = {name: lambda name=name: called.append(name) for name in "abc"}
    seconds = interleaved(works, 4)
    assert "".join(called) == "abcbcacababc"
    assert {name: len(taken) for name, taken in seconds.items()} == {"a": 4, "b": 4, "c": 4}
    assert all(value >= 0 for taken in seconds.values() for value in taken)


def test_nothing_to_measure_is_no_fault():
    assert medians({}, 3) == {} == least({}, 3)


def test_the_least_is_not_above_the_median(monkeypatch):
    moments = iter([0, 3, 3, 4, 4, 6] * 2)
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    assert medians({"work": lambda: None}, 3) == {"work": 2}
    assert least({"work": lambda: None}, 3) == {"work": 1}


def test_what_a_call_takes(monkeypatch):
    moments = iter([5.0, 7.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    assert timed(lambda: None) == 2.5
