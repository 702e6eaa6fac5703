import json

import numpy as np
import pytest

from graphcache.batch import Sequence
from graphcache.errors import ConfigError
from graphcache.trace import FORMATS, Steps, Trace, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.9799600,110,27
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,0,230,1317,Conversation log
118.5,GPT-4,417,276,693,API log
"""
SERVEGEN = "arrived_at_s,client,input_tokens,output_tokens\n0.000,23,213,492\n7.5,15,8545,1920\n"
VTC = "arrived_at_s,client,prompt_len,output_len\n0.0,13,13,199\n0.207938,2,36,137\n"
LENGTHS = "num_prefill_tokens,num_decode_tokens,pd_ratio\n100,5,20\n200,6,33\n300,7,42\n"
MOONCAKE = (
    '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '{"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0]}\n'
    '{"timestamp": 0, "input_length": 7000, "output_length": 1, "hash_ids": []}\n'
    '{"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": []}\n'
    '{"timestamp": 9000, "input_length": 6, "output_length": 2, "hash_ids": []}\n'
    '{"timestamp": 9000, "input_length": 7, "output_length": 2, "hash_ids": []}\n'
)
REQUESTS = (
    '{"arrived_seconds": 1.5, "prompt_tokens": 9, "output_tokens": 0}\n'
    '{"arrived_seconds": 0.5, "prompt_tokens": 8, "output_tokens": 2}\n'
)
STEPS = '{"step":0,"t":0.0,"new":[5,7],"cached":[0,16]}\n{"step":1,"t":0.25,"new":[9],"cached":[0]}\n'


@pytest.fixture
def write(tmp_path):
    def write(text, name="trace.txt"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def rows(trace):
    assert isinstance(trace, Trace)
    columns = (trace.arrived_seconds, trace.prompt_tokens, trace.output_tokens)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE, [(0, 4808, 10), (0.052, 3180, 8), (2, 110, 27)]),
        (BURSTGPT, [(0, 472, 18), (113.5, 417, 276)]),
        (SERVEGEN, [(0, 213, 492), (7.5, 8545, 1920)]),
        (VTC, [(0, 13, 199), (0.207938, 36, 137)]),
        (REQUESTS, [(0, 8, 2), (1, 9, 0)]),
        (
            MOONCAKE,
            [(0, 6758, 500), (1, 7322, 490), (2, 7000, 1), (3, 5, 2), (9, 6, 2), (10.5, 7, 2)],
        ),
    ],
    ids=["azure", "burstgpt", "servegen", "vtc", "requests", "mooncake"],
)
def test_each_format_is_recognised_and_read(write, text, expected):
    for got, want in zip(rows(read_trace(write(text))), expected, strict=True):
        assert got == pytest.approx(want)


def test_a_trace_is_named_after_its_file(write):
    assert read_trace(write(VTC, "arena.csv")).name == "arena"


def test_a_byte_order_mark_and_windows_line_ends_are_taken(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xef\xbb\xbf" + VTC.replace("\n", "\r\n").encode())
    assert len(read_trace(path)) == 2


def test_columns_may_stand_in_any_order(write):
    text = "output_len,extra,prompt_len,arrived_at_s\n199,x,13,0.5\n"
    assert rows(read_trace(write(text))) == [(0, 13, 199)]


def test_mooncake_says_that_it_spread_the_arrivals(write):
    assert any("grid of 3 s" in note for note in read_trace(write(MOONCAKE)).notes)


def test_mooncake_times_off_the_grid_are_left_alone(write):
    trace = read_trace(write(MOONCAKE.replace("3000", "3001")))
    assert trace.arrived_seconds.tolist() == [0, 0, 0, 3.001, 9, 9]
    assert trace.notes == ()


def test_lengths_get_poisson_arrivals_from_the_seed(write):
    path = write("num_prefill_tokens,num_decode_tokens\n" + "10,1\n" * 4000)
    trace = read_trace(path, seed=3)
    again, other = read_trace(path, seed=3), read_trace(path, seed=4)
    gaps = np.diff(trace.arrived_seconds)
    assert gaps.mean() == pytest.approx(1, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(1, rel=0.1)
    assert (trace.arrived_seconds == again.arrived_seconds).all()
    assert (trace.arrived_seconds != other.arrived_seconds).any()
    assert any("seed 3" in note for note in trace.notes)


def test_requests_without_a_prompt_are_left_out_and_told(write):
    assert read_trace(write(BURSTGPT)).notes == ("1 requests without a prompt are left out",)


def test_recorded_steps_come_back_as_steps(write):
    steps = read_trace(write(STEPS))
    assert isinstance(steps, Steps)
    assert steps.started_seconds.tolist() == [0, 0.25]
    assert [batch.sequences for batch in steps.batches()] == [
        (Sequence(5), Sequence(7, 16)),
        (Sequence(9),),
    ]


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_last_line_that_was_cut_off_is_left_out(write, cut):
    steps = read_trace(write(STEPS.rstrip("\n")[:-cut]))
    assert len(steps) == 1
    assert steps.notes == ("the last line was cut off, and is left out",)


@pytest.mark.parametrize("text", ["", "\n", "a,b,c\n1,2,3\n", '{"a": 1}\n', "{\n", "[1, 2]\n", "\x00\x01\n"])
def test_an_unknown_format_shows_what_is_accepted(write, text):
    with pytest.raises(ConfigError) as caught:
        read_trace(write(text))
    message = str(caught.value)
    assert "trace.txt" in message
    for format in FORMATS:
        assert format.name in message
        assert all(field in message for field in format.fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AZURE.replace("3180", "many"), r":3: ContextTokens: 'many' .* a number"),
        (AZURE.replace("3180", "3180.5"), r":3: ContextTokens: '3180.5' .* a whole number"),
        (AZURE.replace("3180", "inf"), r":3: ContextTokens: 'inf'"),
        (AZURE.replace("2023-11-16 18:17:04", "yesterday"), r":3: TIMESTAMP: 'yesterday"),
        (AZURE + "2023-11-16 18:17:06,4\n", r":5: .*3 columns"),
        (VTC + "nan,1,2,3\n", r":4: arrived_at_s: 'nan'"),
        (MOONCAKE.replace('"input_length": 5', '"input_length": null'), r":4: input_length: None"),
        (MOONCAKE.replace('"input_length": 5', '"length": 5'), r":4: .*input_length"),
        (MOONCAKE.replace('{"timestamp": 3000', '{"timestamp": 3000,,'), r":4: "),
        (STEPS.replace("[9]", "[0]"), r":2: new: \[0\]"),
        (STEPS.replace("[9]", "[]"), r":2: new: \[\]"),
        (STEPS.replace("[0,16]", "[0]"), r":1: cached: \[0\]"),
        (STEPS.replace("[0,16]", "[0,-1]"), r":1: cached: \[0, -1\]"),
        (STEPS.replace("[9]", "9"), r":2: new: 9"),
    ],
)
def test_a_wrong_value_is_told_by_line_field_and_value(write, text, message):
    with pytest.raises(ConfigError, match=message):
        read_trace(write(text))


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.csv: can't be read"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="can't be read"):
        read_trace(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a trace"):
        read_trace(tmp_path / "binary")


def test_own_requests_are_plain_json(write):
    line = json.dumps({"arrived_seconds": 0, "prompt_tokens": 3, "output_tokens": 4, "tag": "x"})
    assert rows(read_trace(write(line))) == [(0, 3, 4)]
