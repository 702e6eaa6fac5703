"""The environment's variables, and what an empty one means."""

from pathlib import Path

import pytest

from graphcache.config import Environment


def test_nothing_is_set():
    assert Environment.read({}) == Environment(None, None, False, None)


def test_every_variable_is_read():
    variables = {
        "GRAPHCACHE_POLICY": "dynamic-dual",
        "GRAPHCACHE_PLATFORM": "cpu",
        "GRAPHCACHE_DISABLE": "1",
        "GRAPHCACHE_STORE": "/graphs",
    }
    assert Environment.read(variables) == Environment("dynamic-dual", "cpu", True, Path("/graphs"))


def test_an_empty_variable_is_not_set():
    names = ("POLICY", "PLATFORM", "DISABLE", "STORE")
    assert Environment.read({f"GRAPHCACHE_{name}": "" for name in names}) == Environment()


@pytest.mark.parametrize(("text", "disabled"), [("1", True), ("true", True), ("0", False), ("False", False)])
def test_disable_can_be_said_to_be_off(text, disabled):
    assert Environment.read({"GRAPHCACHE_DISABLE": text}).disabled is disabled


def test_the_process_is_read_unless_told_otherwise(monkeypatch):
    monkeypatch.setenv("GRAPHCACHE_POLICY", "static-mask")
    assert Environment.read().policy == "static-mask"
