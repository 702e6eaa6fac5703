"""Configurations: what they mean, and how a mistake in one is told."""

import json
import re
from pathlib import Path

import pytest

from graphcache.config import Config, load_config, shipped_policies
from graphcache.errors import ConfigError, LadderError, UnknownNameError
from graphcache.ladder import Ladder
from graphcache.policy.protocol import Budget, Ladders


@pytest.fixture
def load(tmp_path):
    """Load a YAML text from a file called x.yaml, in the working directory of the test."""

    def load(text):
        path = tmp_path / "x.yaml"
        path.write_text(text)
        return load_config(path)

    return load


def ladder(text):
    return load_config({"policy": "static-mask", "ladder": text}).ladders().prefill


# -- what the fields mean ---------------------------------------------------------------------------


def test_a_policy_is_all_that_is_needed(load):
    config = load("policy: static-mask")
    assert config.policy.name == "static-mask"
    assert config.budget == Budget(None, None)
    assert config.eviction.name == "lru"
    assert (config.on_miss, config.frozen_on_miss, config.max_slowdown) == ("compile", None, None)
    assert config.store is not None
    assert config.backend.name == "inductor"


def test_every_field_is_read(load):
    config = load(
        """
policy: {name: static-causal, options: {several: refuse}}
ladders: {prefill: {max: 512}, rows: {kind: explicit, sizes: [1, 3]}, decode: {kind: linear, max: 4, step: 2}}
budget: {graphs: 6, bytes: 2GiB}
eviction: lfu
on_miss: fallback
frozen_on_miss: raise
max_slowdown: 2.5
store: {path: ~/graphs, max_bytes: 20GB, read_only: true, shared: true, seal: {key_file: [a.key, b.key]}}
backend: {name: eager, options: {threads: 2}}
profile: tenstorrent-qwen3-embedding-4b
record: steps.jsonl
strict: true
"""
    )
    assert config.policy.options == {"several": "refuse"}
    assert config.ladders() == Ladders(Ladder.pow2(128, 512), Ladder([1, 3]), Ladder([2, 4]))
    assert config.budget == Budget(6, 2 * 2**30)
    assert config.eviction.name == "lfu"
    assert (config.on_miss, config.frozen_on_miss, config.max_slowdown) == ("fallback", "raise", 2.5)
    assert config.store.path == Path("~/graphs")
    assert config.store.max_bytes == 20 * 10**9
    assert (config.store.read_only, config.store.shared) == (True, True)
    assert config.store.seal.key_file == [Path("a.key"), Path("b.key")]
    assert config.backend.options == {"threads": 2}
    assert (config.profile, config.record) == ("tenstorrent-qwen3-embedding-4b", Path("steps.jsonl"))
    assert config.strict is True


def test_no_store_is_said_with_null(load):
    assert load("policy: static-mask\nstore: null").store is None


def test_a_dumped_configuration_loads_again():
    for name in shipped_policies():
        config = load_config(name)
        fields = config.model_dump(by_alias=True)
        assert load_config(fields).model_dump(by_alias=True) == fields


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("pow2", Ladder.pow2(128, 16384)),
        ({}, Ladder.pow2(128, 16384)),
        ({"kind": "pow2", "min": 64, "max": 256}, Ladder([64, 128, 256])),
        ({"max": 64}, Ladder([64])),
        ({"kind": "linear", "max": 1024, "step": 512}, Ladder([512, 1024])),
        ({"kind": "linear", "min": 1, "max": 3, "step": 1}, Ladder([1, 2, 3])),
        ({"kind": "explicit", "sizes": [5, 7]}, Ladder([5, 7])),
    ],
)
def test_ladders(text, sizes):
    assert ladder(text) == sizes


def test_the_servers_limits_stand_in_for_what_is_left_out():
    config = load_config({"policy": "static-mask", "ladder": {"min": 64}})
    assert config.ladders(max_tokens=300, max_rows=5, max_cached=200) == Ladders(
        Ladder([64, 128, 256, 300]), Ladder([1, 2, 4, 5]), Ladder([128, 200])
    )
    assert config.ladders().decode is None
    assert config.ladders(max_tokens=100).prefill == Ladder([64, 100])
    with pytest.raises(LadderError, match="max: 32 is not allowed; allowed: at least min, which is 64"):
        config.ladders(max_tokens=32)


def test_a_ladder_that_ends_by_itself_ignores_the_servers_limit():
    config = load_config({"policy": "static-mask", "ladder": {"min": 64, "max": 128}})
    assert config.ladders(max_tokens=4096).prefill == Ladder([64, 128])


def fibonacci(count):
    sizes = [1, 2]
    while len(sizes) < count:
        sizes.append(sizes[-1] + sizes[-2])
    return Ladder(sizes)


def no_ladder():
    return [1, 2]


def test_a_users_own_ladder_is_named_by_its_module():
    assert ladder({"kind": f"{__name__}:fibonacci", "options": {"count": 5}}) == Ladder([1, 2, 3, 5, 8])
    with pytest.raises(
        ConfigError, match=r"ladder\.options: \{'size': 5\} is not allowed: .*unexpected keyword"
    ):
        ladder({"kind": f"{__name__}:fibonacci", "options": {"size": 5}})
    with pytest.raises(LadderError, match=r"gave \[1, 2\], which is no Ladder"):
        ladder({"kind": f"{__name__}:no_ladder"})


def test_a_ladder_is_learned_from_a_servers_steps(tmp_path):
    path = tmp_path / "steps.jsonl"
    steps = [[200]] * 90 + [[500, 400]] * 10 + [[5000]]
    lines = (
        json.dumps({"step": n, "t": n, "new": new, "cached": [0] * len(new)}) for n, new in enumerate(steps)
    )
    path.write_text("\n".join(lines))
    learned = {"kind": "learned", "trace": str(path), "graphs": 3, "multiple": 32}
    config = load_config({"policy": "dynamic-dual", "ladder": learned})
    assert config.ladders(max_tokens=1000).prefill == Ladder([224, 928, 1024])
    profile = "tenstorrent-qwen3-embedding-4b"
    config = load_config({"policy": "dynamic-dual", "ladder": {**learned, "graphs": 2}, "profile": profile})
    assert config.ladders(max_tokens=1000).prefill == Ladder([224, 1024])


def test_a_ladder_is_learned_from_a_trace():
    learned = {"kind": "learned", "trace": "azure-conv", "graphs": 4, "max": 8192, "load": 0.3}
    ladder = load_config({"policy": "dynamic-dual", "ladder": learned}).ladders().prefill
    assert len(ladder) == 4
    assert ladder.top == 8192
    assert all(size % 128 == 0 for size in ladder)


def test_a_ladder_that_can_not_be_built_is_told_with_its_line(load, tmp_path):
    config = load("policy: static-mask\nladder: {kind: learned, trace: gone.csv, graphs: 2}")
    with pytest.raises(ConfigError, match=rf"^{tmp_path}/x\.yaml:2: ladder: .*gone\.csv"):
        config.ladders()


# -- the policies that ship -------------------------------------------------------------------------


def test_the_policies_that_ship():
    assert {"static-mask", "static-causal", "dynamic-dual"} <= shipped_policies().keys()


@pytest.mark.parametrize("name", shipped_policies())
def test_a_shipped_policy_is_named_after_what_it_configures(name):
    path = shipped_policies()[name]
    by_name, by_path, by_text = (load_config(source).model_dump() for source in (name, path, str(path)))
    assert by_name["policy"]["name"] == name
    assert by_name == by_path == by_text


@pytest.mark.parametrize("name", shipped_policies())
def test_a_shipped_policy_says_what_it_is_for(name):
    text = shipped_policies()[name].read_text()
    assert text.startswith("# ")
    assert "\n# For " in text


# -- mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("policy: dynmic-dual", UnknownNameError, "x.yaml:1: policy: 'dynmic-dual' is not known; known: "),
        ("policy: {name: dual}", UnknownNameError, "x.yaml:1: policy: 'dual' is not known; known: "),
        ("policy: ''", UnknownNameError, "x.yaml:1: policy: '' is not known"),
        ("policy:", ConfigError, "x.yaml:1: policy: None is not allowed; allowed: a name, or {name:"),
        ("policy: {options: {}}", ConfigError, "x.yaml:1: policy.name: is missing"),
        (
            "polcy: x",
            ConfigError,
            "x.yaml:1: polcy: no such field; did you mean 'policy'?; allowed: backend, ",
        ),
        ("eviction: lru", ConfigError, "x.yaml:1: policy: is missing"),
        ("{}", ConfigError, "x.yaml:1: policy: is missing"),
        ("P\n1: 2", ConfigError, "x.yaml:2: 1: no such field; allowed: "),
        ("P\neviction: lur", UnknownNameError, "x.yaml:2: eviction: 'lur' is not known; known: lfu, lru"),
        (
            "P\nbackend: induktor",
            UnknownNameError,
            "x.yaml:2: backend: 'induktor' is not known; known: ",
        ),
        (
            "P\nladder: pow3",
            UnknownNameError,
            "x.yaml:2: ladder: 'pow3' is not known; known: explicit, learned, linear, pow2",
        ),
        (
            "P\nladder:\n  kind: pow2\n  mn: 3",
            ConfigError,
            "x.yaml:4: ladder.mn: no such field; did you mean 'min'?",
        ),
        ("P\nladder: 128", ConfigError, "x.yaml:2: ladder: 128 is not allowed; allowed: "),
        ("P\nladder: {min: 0}", ConfigError, "x.yaml:2: ladder.min: 0 is not allowed; allowed: at least 1"),
        (
            "P\nladder: {min: '8'}",
            ConfigError,
            "x.yaml:2: ladder.min: '8' is not allowed; allowed: a valid integer",
        ),
        (
            "P\nladder: {max: 99999999}",
            ConfigError,
            "x.yaml:2: ladder.max: 99999999 is not allowed; allowed: at most",
        ),
        (
            "P\nladder: {min: 64, max: 32}",
            LadderError,
            "x.yaml:2: ladder: max: 32 is not allowed; allowed: at least",
        ),
        (
            "P\nladder:\n  kind: explicit\n  sizes: [128, 256, 256]",
            LadderError,
            "x.yaml:2: ladder: 256 after 256 is not allowed; allowed: sizes that increase",
        ),
        (
            "P\nladder:\n  kind: explicit\n  sizes:\n  - 128\n  - 0",
            ConfigError,
            "x.yaml:6: ladder.sizes.1: 0 is not allowed; allowed: at least 1",
        ),
        (
            "P\nladder: {kind: explicit, sizes: []}",
            ConfigError,
            "x.yaml:2: ladder.sizes: [] is not allowed; allowed: at",
        ),
        ("P\nladder: {kind: linear}", ConfigError, "x.yaml:2: ladder.step: is missing"),
        (
            "P\nladder: {kind: [1]}",
            ConfigError,
            "x.yaml:2: ladder.kind: [1] is not allowed; allowed: a valid string",
        ),
        (
            "P\nladders: {rows: {min: -1}}",
            ConfigError,
            "x.yaml:2: ladders.rows.min: -1 is not allowed; allowed: at",
        ),
        (
            "P\nladder: {}\nladders:\n  prefill: {}",
            ConfigError,
            "x.yaml:3: ladders: prefill is given beside ladder",
        ),
        ("P\nbudget: 8", ConfigError, "x.yaml:2: budget: 8 is not allowed; allowed: a mapping of fields"),
        (
            "P\nbudget:\n  graphs: 0",
            ConfigError,
            "x.yaml:3: budget.graphs: 0 is not allowed; allowed: at least 1",
        ),
        (
            "P\nbudget:\n  graphs: true",
            ConfigError,
            "x.yaml:3: budget.graphs: True is not allowed; allowed: a valid int",
        ),
        (
            "P\nbudget:\n  bytes: 0",
            ConfigError,
            "x.yaml:3: budget.bytes: 0 is not allowed; allowed: a whole number",
        ),
        (
            "P\nbudget: {bytes: 2Gig}",
            ConfigError,
            "x.yaml:2: budget.bytes: '2Gig' is not allowed; allowed: a whole",
        ),
        (
            "P\non_miss: compil",
            ConfigError,
            "x.yaml:2: on_miss: 'compil' is not allowed; allowed: 'compile', 'fallback'",
        ),
        (
            "P\nmask: sparse",
            ConfigError,
            "x.yaml:2: mask: 'sparse' is not allowed; allowed: 'ids', 'dense' or 'flex'",
        ),
        (
            "P\ncompile: {nice: 20}",
            ConfigError,
            "x.yaml:2: compile.nice: 20 is not allowed; allowed: 0 to 19, or idle",
        ),
        (
            "P\ncompile: {nice: lazy}",
            ConfigError,
            "x.yaml:2: compile.nice: 'lazy' is not allowed; allowed: 0 to 19, or idle",
        ),
        (
            "P\nmax_slowdown: 0.5",
            ConfigError,
            "x.yaml:2: max_slowdown: 0.5 is not allowed; allowed: at least 1",
        ),
        ("P\nmax_slowdown: .nan", ConfigError, "x.yaml:2: max_slowdown: nan is not allowed; allowed: "),
        ("P\nstore: ~/x", ConfigError, "x.yaml:2: store: '~/x' is not allowed; allowed: a mapping of fields"),
        ("P\nstore:\n  path: 3", ConfigError, "x.yaml:3: store.path: 3 is not allowed; allowed: a path"),
        (
            "P\nstore: {max_bytes: -1}",
            ConfigError,
            "x.yaml:2: store.max_bytes: -1 is not allowed; allowed: a whole",
        ),
        ("P\nstore:\n  seal: {}", ConfigError, "x.yaml:3: store.seal.key_file: is missing"),
        ("P\nstrict: 'no'", ConfigError, "x.yaml:2: strict: 'no' is not allowed; allowed: a valid boolean"),
        ("P\nP", ConfigError, "x.yaml:2: policy: given twice"),
    ],
)
def test_a_mistake_names_file_line_field_value_and_what_is_allowed(load, tmp_path, text, error, message):
    with pytest.raises(ConfigError) as raised:
        load(text.replace("P", "policy: static-mask"))
    assert str(raised.value).startswith(f"{tmp_path}/{message}")
    assert "\n" not in str(raised.value)
    assert raised.type is error


def test_all_mistakes_are_told_at_once(load):
    with pytest.raises(ConfigError) as raised:
        load("policy: dual\nbudget:\n  graphs: 0\non_miss: nothing\n")
    places = re.findall(r"x\.yaml:(\d): (\S+):", str(raised.value))
    assert places == [("1", "policy"), ("3", "budget.graphs"), ("4", "on_miss")]
    assert raised.type is ConfigError


def test_an_unknown_field_hides_no_other_mistake(load):
    with pytest.raises(ConfigError) as raised:
        load(
            "strct: true\npolicy: {nam: lru}\nbudget:\n  bites: 3\n  graphs: 0\n  x: 1\n"
            "ladder:\n  kind: linear\n  stop: 1\n"
        )
    assert re.findall(r"x\.yaml:(\d): (\S+): (no such|is missing|0 is)", str(raised.value)) == [
        ("1", "strct", "no such"),
        ("2", "policy.nam", "no such"),
        ("4", "budget.bites", "no such"),
        ("5", "budget.graphs", "0 is"),
        ("6", "budget.x", "no such"),
        ("9", "ladder.stop", "no such"),
    ]


def test_a_long_value_is_cut(load):
    with pytest.raises(ConfigError) as raised:
        load(f"policy: static-mask\nbudget: {'x' * 1000}")
    assert len(str(raised.value)) < 300


def test_a_name_that_does_not_ship_lists_those_that_do():
    with pytest.raises(
        UnknownNameError, match=r"'dynamic' is not known; known: .*dynamic-dual, .*; a YAML file is"
    ):
        load_config("dynamic")


def test_a_path_that_is_not_there():
    with pytest.raises(ConfigError, match=r"^/nowhere/x\.yaml: can't be read: No such file or directory$"):
        load_config("/nowhere/x.yaml")


def test_fields_from_python_are_checked_alike():
    with pytest.raises(ConfigError, match=r"^configuration: budget\.graphs: 0 is not allowed"):
        load_config({"policy": "static-mask", "budget": {"graphs": 0}})


def test_a_place_is_told_for_values_that_are_used_later(load, tmp_path):
    config = load("policy: static-mask\nbudget:\n  graphs: 3\n")
    assert config.place("budget", "graphs") == f"{tmp_path}/x.yaml:3: budget.graphs"


# -- the schema -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "valid"),
    [
        ({"policy": "x"}, True),
        ({"policy": {"name": "x", "options": {"a": 1}}}, True),
        ({"policy": "x", "ladder": "pow2"}, True),
        ({"policy": "x", "ladder": {"kind": "pow2"}}, True),
        ({"policy": "x", "ladder": {"kind": "explicit", "sizes": [1]}}, True),
        ({"policy": "x", "ladder": {"kind": "my_module:ladder", "options": {}}}, True),
        ({"policy": "x", "budget": {"bytes": "2GiB"}}, True),
        ({"policy": "x", "store": None}, True),
        ({}, False),
        ({"policy": "x", "budget": {"graphs": 0}}, False),
        ({"policy": "x", "ladder": {"kind": "linear"}}, False),
        ({"policy": "x", "polcy": 1}, False),
    ],
)
def test_the_schema_says_the_same_to_an_editor(fields, valid):
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(Config.model_json_schema(by_alias=True))
    assert validator.is_valid(fields) == valid
