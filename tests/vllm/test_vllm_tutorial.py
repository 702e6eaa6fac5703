"""The tutorial is true: its commands run in its order, on a real server, and print what it shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from servers import STOP_SECONDS, Server, apart, free_port, wait_until_it_answers
from test_docs import blocks

PAGE = Path(__file__).parents[2] / "docs" / "tutorial" / "serve-a-model.md"
COMMAND_SECONDS = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Terminals:
    """Two terminals in one directory: one in which a server runs, and one beside it."""

    def __init__(self, folder, port):
        self.folder = folder
        self.port = str(port)
        python = os.path.dirname(sys.executable)
        self._environment = apart(folder) | {"COLUMNS": "200"}
        self._environment["PATH"] = f"{python}:{self._environment['PATH']}"
        self._server = None

    def serve(self, script):
        """Start a server in place of the one that runs; return its log once it answers."""
        self.interrupt()
        log = self.folder / "log"
        with log.open("w") as out:
            self._server = self._start(script, stdout=out, stderr=out, start_new_session=True)
        wait_until_it_answers(Server(f"http://localhost:{self.port}", log), self._server)
        return log.read_text()

    def run(self, script):
        """Run commands to their end; return what they print."""
        process = self._start(script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, err = process.communicate(timeout=COMMAND_SECONDS)
        assert process.returncode == 0, err
        return out

    def interrupt(self):
        """Press Ctrl-C in the server's terminal: each process there gets it."""
        if self._server:
            os.killpg(self._server.pid, signal.SIGINT)
            assert self._server.wait(STOP_SECONDS) == 0

    def kill(self):
        if self._server and self._server.poll() is None:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.wait()

    def _start(self, script, **options):
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        return subprocess.Popen(command, cwd=self.folder, env=self._environment, **options)


@pytest.fixture
def terminals(tmp_path):
    terminals = Terminals(tmp_path, free_port())
    yield terminals
    terminals.kill()


def test_the_tutorial_does_what_it_says(terminals):
    printed = ""
    for block in blocks(PAGE):
        text = block.text.replace("8000", terminals.port)
        if block.title:
            (terminals.folder / block.title).write_text(text)
        elif block.language == "text":
            missing = {line for line in lines(text) if line not in "\n".join(lines(printed))}
            assert missing == set(), printed[-6000:]
        elif "no-run" not in block.words:
            run = terminals.serve if "server" in block.words else terminals.run
            printed = run(re.sub(r"^\$ ", "", text, flags=re.MULTILINE))
    terminals.interrupt()


def lines(text):
    """Return the lines of an output, whatever figures are in it and however wide its columns are."""
    without_figures = re.sub(r"\d[\d.]*", "N", text)
    return [re.sub("─+", "─", " ".join(line.split())) for line in without_figures.splitlines()]
