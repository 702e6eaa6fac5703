"""What every test starts from."""

from collections import namedtuple

import pytest
from hypothesis import settings

# A test never asserts on time: on a machine that others use too, any example can be slow.
settings.register_profile("graphcache", deadline=None)
settings.load_profile("graphcache")

Ran = namedtuple("Ran", "code out err")


@pytest.fixture(scope="session", autouse=True)
def own_store(tmp_path_factory):
    """Keep the tests, and each process that they start, out of the user's store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHCACHE_STORE", str(tmp_path_factory.mktemp("user") / "store"))
        yield


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run one command in this process, with the store of the test; returns its exit code and output."""
    monkeypatch.setenv("GRAPHCACHE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        from graphcache.cli import main

        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Ran(left.value.code or 0, out, err)

    return run
