import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphcache.batch import Batch, Sequence
from graphcache.trace import StepRecorder, read_trace

BATCH = Batch((Sequence(5), Sequence(7, 16)))
BATCHES = st.lists(
    st.lists(st.builds(Sequence, st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4).map(
        lambda sequences: Batch(tuple(sequences))
    ),
    min_size=1,
    max_size=20,
)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        self.now += 0.5
        return self.now


@given(BATCHES, st.integers(1, 8))
def test_what_is_recorded_is_read_back(tmp_path_factory, batches, buffered):
    path = tmp_path_factory.mktemp("record") / "steps.jsonl"
    with StepRecorder(path, buffered_steps=buffered, clock=Clock()) as recorder:
        for batch in batches:
            recorder.record(batch)
    steps = read_trace(path)
    assert list(steps.batches()) == batches
    assert steps.started_seconds.tolist() == [0.5 * index for index in range(len(batches))]
    assert (recorder.recorded, recorder.dropped) == (len(batches), 0)


def test_a_line_is_plain_json(tmp_path):
    with StepRecorder(tmp_path / "new" / "folder" / "steps.jsonl") as recorder:
        recorder.record(BATCH)
    line = (tmp_path / "new" / "folder" / "steps.jsonl").read_text()
    assert json.loads(line) == {"step": 0, "t": 0.0, "new": [5, 7], "cached": [0, 16]}


def test_nothing_is_written_before_the_buffer_is_full(tmp_path):
    path = tmp_path / "steps.jsonl"
    recorder = StepRecorder(path, buffered_steps=3)
    recorder.record(BATCH)
    recorder.record(BATCH)
    assert path.read_text() == ""
    recorder.record(BATCH)
    assert len(path.read_text().splitlines()) == 3
    recorder.close()


def test_the_file_ends_at_its_bound_on_a_whole_line(tmp_path):
    path = tmp_path / "steps.jsonl"
    with StepRecorder(path, max_bytes=200, buffered_steps=4) as recorder:
        for _ in range(50):
            recorder.record(BATCH)
    assert path.stat().st_size <= 200
    assert len(read_trace(path)) == recorder.recorded > 0
    assert recorder.recorded + recorder.dropped == 50


def test_a_place_that_can_not_be_written_costs_the_record_only(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with StepRecorder(tmp_path / "file" / "steps.jsonl", buffered_steps=2) as recorder:
        for _ in range(5):
            recorder.record(BATCH)
    assert (recorder.recorded, recorder.dropped) == (0, 5)
    assert len(caplog.records) == 1


def test_a_fault_of_the_disk_ends_the_record_and_is_logged_once(tmp_path, caplog):
    recorder = StepRecorder(tmp_path / "steps.jsonl", buffered_steps=1)
    recorder.record(BATCH)
    recorder._file = FullDisk(recorder._file)
    for _ in range(4):
        recorder.record(BATCH)
    recorder.close()
    assert (recorder.recorded, recorder.dropped) == (1, 4)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


class FullDisk:
    def __init__(self, file):
        self.close = file.close

    def write(self, text):
        raise OSError(28, "No space left on device")


def test_closing_twice_is_closing_once(tmp_path):
    recorder = StepRecorder(tmp_path / "steps.jsonl")
    recorder.record(BATCH)
    recorder.close()
    recorder.close()
    assert recorder.recorded == 1


@pytest.mark.parametrize("steps", [0, 1])
def test_a_record_of_no_step_is_an_empty_file(tmp_path, steps):
    with StepRecorder(tmp_path / "steps.jsonl") as recorder:
        for _ in range(steps):
            recorder.record(BATCH)
    assert len((tmp_path / "steps.jsonl").read_text().splitlines()) == steps


def test_no_record_is_written_over(tmp_path):
    paths = []
    for tokens in (1, 2, 3):
        with StepRecorder(tmp_path / "steps.jsonl") as recorder:
            recorder.record(Batch.of([tokens]))
        paths.append(recorder.path)
    assert [path.name for path in paths] == ["steps.jsonl", "steps-2.jsonl", "steps-3.jsonl"]
    assert [read_trace(path).tokens.tolist() for path in paths] == [[1], [2], [3]]


def test_processes_that_record_at_once_have_a_file_each(tmp_path):
    script = (
        "import sys; from pathlib import Path; from graphcache.batch import Batch;"
        "from graphcache.trace.record import StepRecorder\n"
        "with StepRecorder(Path(sys.argv[1]), buffered_steps=1) as recorder:\n"
        "    for _ in range(200): recorder.record(Batch.of([int(sys.argv[2])]))\n"
    )
    path = tmp_path / "steps.jsonl"
    running = [subprocess.Popen([sys.executable, "-c", script, path, str(rank)]) for rank in (1, 2)]
    assert [process.wait(60) for process in running] == [0, 0]
    read = [read_trace(file).tokens.tolist() for file in tmp_path.iterdir()]
    assert sorted(read) == [[1] * 200, [2] * 200]
