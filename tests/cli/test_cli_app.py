"""The command line as a whole: help, exit codes, and what may be imported before a command runs."""

import shlex
import subprocess
import sys

import pytest
import typer

from graphcache import __version__
from graphcache.cli.app import app

HEAVY = ("torch", "vllm", "numpy", "pydantic", "yaml", "diskcache_community", "matplotlib")


def walk(command, path=("graphcache",)):
    """Yield every command that does something, with the words that lead to it."""
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            yield from walk(child, (*path, name))
    else:
        yield path, command


COMMANDS = dict(walk(typer.main.get_command(app)))


def examples(command):
    first, *lines = (command.epilog or "").split("\n\n")
    return first, lines


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_and_ends_with_an_example(path, run):
    command = COMMANDS[path]
    assert command.help
    first, lines = examples(command)
    assert first in ("Example:", "Examples:")
    assert lines
    assert run(*path[1:], "--help").code == 0


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_option_says_what_it_does(path):
    assert all(parameter.help for parameter in COMMANDS[path].params)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_are_of_the_command_and_parse(path):
    for line in examples(COMMANDS[path])[1]:
        words = shlex.split(line.partition(" > ")[0])
        assert tuple(words[: len(path)]) == path
        COMMANDS[path].make_context(path[-1], words[len(path) :])


def test_the_version(run):
    assert run("--version").out == f"graphcache {__version__}\n"


def test_no_command_prints_the_help(run):
    ran = run()
    assert ran.code == 2
    assert "Usage: graphcache" in ran.out + ran.err


@pytest.mark.parametrize("arguments", [["polcy"], ["policy", "lst"], ["ls", "--stor", "x"], ["show"]])
def test_a_wrong_command_is_a_usage_error(run, arguments):
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


def test_an_error_of_ours_is_one_line_without_a_traceback(run):
    ran = run("ls", "--store", "/nowhere/at/all")
    assert ran == (1, "", "graphcache: '/nowhere/at/all': no such store\n")


def test_a_value_that_makes_no_sense_is_a_usage_error(run):
    ran = run("policy", "show", "dynamic")
    assert ran.code == 2
    assert ran.err.startswith("graphcache: policy: 'dynamic' is not known; known: ")


def test_help_imports_next_to_nothing():
    code = (
        "import sys; from graphcache.cli import main\n"
        "try: main(['--help'])\n"
        f"except SystemExit: sys.exit(','.join(set({HEAVY!r}) & set(sys.modules)) or 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Commands" in ran.stdout
