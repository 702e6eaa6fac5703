"""``graphcache policy``."""

import json

import pytest

from graphcache.config import shipped_policies


def test_list_tells_each_policy_and_its_purpose(run):
    ran = run("policy", "list")
    assert ran.code == 0
    assert all(name in ran.out for name in shipped_policies())
    assert "Two graphs per length" in ran.out


def test_list_as_json(run):
    found = json.loads(run("policy", "list", "--json").out)
    assert found.keys() == shipped_policies().keys()
    assert all(row["purpose"].endswith(".") for row in found.values())


def test_show_prints_the_file_as_it_is(run):
    assert run("policy", "show", "dynamic-dual").out == shipped_policies()["dynamic-dual"].read_text()


def test_show_as_json_fills_in_the_defaults(run):
    fields = json.loads(run("policy", "show", "dynamic-dual", "--json").out)
    assert fields["budget"] == {"graphs": 16, "bytes": 2 * 2**30}
    assert fields["frozen_on_miss"] is None


def test_show_of_a_file_that_is_not_there(run):
    ran = run("policy", "show", "/nowhere/x.yaml")
    assert ran == (2, "", "graphcache: /nowhere/x.yaml: can't be read: No such file or directory\n")


@pytest.mark.parametrize("name", shipped_policies())
def test_every_shipped_policy_passes_its_check(run, name):
    ran = run("policy", "check", name)
    assert ran.code == 0
    assert ran.out.startswith(f"{name}: ok; sizes 128, 256,")


def test_check_tells_every_mistake_on_a_line_of_its_own(run, tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("policy: dynamic-dual\nbudget: {graphs: 0}\non_miss: wait\n")
    ran = run("policy", "check", path)
    assert (ran.code, ran.out) == (1, "")
    assert [line.split(" is not")[0] for line in ran.err.splitlines()] == [
        f"{path}:2: budget.graphs: 0",
        f"{path}:3: on_miss: 'wait'",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("policy: {name: dynamic-dual, options: {sevral: 1}}", "no such option of dynamic-dual"),
        ("policy: my_module_that_is_not_there:Mine", "can't be imported"),
        ("policy: static-mask\nprofile: cray-1", "profile: 'cray-1' is no"),
    ],
)
def test_check_also_builds_what_needs_no_model(run, tmp_path, text, message):
    path = tmp_path / "my.yaml"
    path.write_text(text)
    ran = run("policy", "check", path)
    assert (ran.code, ran.out) == (1, "")
    assert message in ran.err


def test_the_schema_is_json(run):
    assert json.loads(run("policy", "schema").out)["required"] == ["policy"]
