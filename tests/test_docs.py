"""The documentation is true: its code runs, its commands exist, its links lead somewhere."""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
import yaml

from graphcache.cli.app import app
from graphcache.cli.reference import pages as reference_pages
from graphcache.config import Config, load_config, shipped_policies
from graphcache.key import COVERS, MaskMode

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INDEX = ROOT / "docs" / "README.md"

FENCE = re.compile(r"^```(?P<language>\w*)(?P<words>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block: its language, the words behind it, and what is in it.

    ``title=NAME`` makes it a file of that name, ``no-run`` exempts Python that needs more than a test has.
    """

    language: str
    words: tuple[str, ...]
    text: str

    @property
    def title(self):
        return next((word.removeprefix("title=") for word in self.words if word.startswith("title=")), None)


def blocks(page):
    return [
        Block(match["language"], tuple(match["words"].split()), match["text"])
        for match in FENCE.finditer(page.read_text())
    ]


def name(page):
    return str(page.relative_to(ROOT))


def of(language):
    return [page for page in PAGES if any(block.language == language for block in blocks(page))]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Work in an empty directory, whose modules can be imported, and forget them afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GRAPHCACHE_STORE", str(tmp_path / "store"))
    known = set(sys.modules)
    yield tmp_path
    for module in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]


@pytest.mark.parametrize("page", of("python"), ids=name)
def test_the_code_of_a_page_runs_from_top_to_bottom_and_prints_what_it_says(page, workplace):
    namespace, printed = {"__name__": "__main__"}, io.StringIO()
    for block in blocks(page):
        if block.title:
            (workplace / block.title).write_text(block.text)
        elif block.language == "python" and "no-run" not in block.words:
            code = compile(block.text, f"{name(page)}: {block.text[:40]!r}", "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
        elif block.language == "text" and printed.getvalue():
            assert printed.getvalue() == block.text
            printed = io.StringIO()


@pytest.mark.parametrize("page", of("yaml"), ids=name)
def test_the_configurations_of_a_page_are_valid(page):
    fields_known = {field.alias or field_name for field_name, field in Config.model_fields.items()}
    for block in blocks(page):
        fields = yaml.safe_load(block.text) if block.language == "yaml" else {}
        if fields.keys() & fields_known:
            load_config({"policy": "static-mask", **fields})


def commands(page):
    """Yield the words of each command that a page shows, without the variables set before it."""
    for block in blocks(page):
        for line in block.text.replace("\\\n", " ").splitlines():
            if block.language == "console" and line.startswith("$ "):
                words = shlex.split(line.removeprefix("$ ").split(" > ")[0].split(" | ")[0], comments=True)
                while words and re.match(r"\w+=", words[0]):
                    words = words[1:]
                yield words


@pytest.mark.parametrize("page", of("console"), ids=name)
def test_the_commands_of_a_page_exist(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for program, *words in commands(page):
        if program == "make":
            assert [word for word in words if "=" not in word and word not in targets] == []
        elif program == "graphcache":
            parse(typer.main.get_command(app), words)


def parse(command, words):
    """Parse a command line as the program would, without running it."""
    if "--help" in words or "--version" in words:
        return
    while hasattr(command, "commands"):
        assert words
        assert words[0] in command.commands
        command, words = command.commands[words[0]], words[1:]
    command.make_context("graphcache", list(words))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_lead_somewhere(page):
    text = FENCE.sub("", page.read_text())
    for match in LINK.finditer(text):
        target, _, anchor = match["target"].partition("#")
        if target.startswith(("http:", "https:")):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), match["target"]
        assert not anchor or anchor in anchors(file), match["target"]


def anchors(page):
    """Return the anchors of a page's headings, as they are made on a page of Markdown."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent not in (ROOT, INDEX.parent)], ids=name
)
def test_every_page_is_in_the_index(page):
    assert f"]({page.relative_to(INDEX.parent)})" in INDEX.read_text()


@pytest.mark.parametrize("page", reference_pages())
def test_the_reference_is_what_the_program_says(page):
    assert (ROOT / "docs" / "reference" / page).read_text() == reference_pages()[page], "run `make reference`"


def test_the_table_of_what_serves_what_is_the_declaration():
    text = (ROOT / "docs/explanation/how-it-works.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE)
    told = {
        mode: set(re.findall("|".join(MaskMode), served)) for mode, served in rows if mode in set(MaskMode)
    }
    assert told == {mode: {cover.mode for cover in covers} for mode, covers in COVERS.items()}


def test_the_readme_tells_the_policies_that_ship():
    text = (ROOT / "README.md").read_text()
    assert {name for name in shipped_policies() if f"| `{name}` |" not in text} == set()


def test_a_page_that_says_what_is_not_so_is_found(tmp_path, workplace):
    page = ROOT / "docs" / "README.md"
    assert page in PAGES
    false = tmp_path / "false.md"
    false.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n\n```console\n$ graphcache lst\n```\n")
    (python, text, console) = blocks(false)
    assert (python.language, text.text, console.language) == ("python", "2\n", "console")
    with pytest.raises(AssertionError):
        parse(typer.main.get_command(app), next(commands(false))[1:])
