"""Every command in the docs is run, or a mark above its fence says why not; and it prints what is
shown below it. The marks are in docpages.py."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from lp_sweep.orchestrator.cli.__main__ import app
from tests.support.docpages import (
    NOT_RUN,
    ROOT,
    RUN_BY,
    Block,
    blocks,
    commands,
    inline,
    loose_marks,
    mistake,
    pages,
    read,
    words_after,
)
from tests.support.docuser import User, break_off_once, make_folder, words_of

BLOCKS = {page: blocks(read(page), page) for page in pages()}
RUN = [page for page, found in BLOCKS.items() if any(block.is_run for block in found)]
WHAT_TO_DO = f"""
Fix the command or the page. What can't be run here says so on the line before its fence:
<!-- not run: KIND --> with one of {", ".join(NOT_RUN)};
or <!-- not run: {RUN_BY}tests/test_x.py -->. Other marks: tests/support/docpages.py."""


# -- what is run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose sweep has been run, on a real Ray."""
    folder = tmp_path_factory.mktemp("finished")
    make_folder(folder)
    (run,) = blocks("```\nlp-sweep run sweep.yaml\n```\n", "docs/sql.md")
    ran = User(folder, tmp_path_factory.mktemp("home")).does(run)
    assert ran.code == 0, ran.printed
    break_off_once(folder)
    return folder


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_page(page: str, finished: Path, tmp_path: Path) -> None:
    wrong = played(page, finished, tmp_path)
    assert wrong is None, wrong + WHAT_TO_DO


def played(page: str, finished: Path, folder: Path) -> str | None:
    """The first difference of a page from its real output. Its blocks run in their order, in one
    folder unless a mark begins a new one."""
    user = User(folder / "0", folder / "home", words_of(finished))
    shutil.copytree(finished, user.folder, symlinks=True)
    for number, found in enumerate(BLOCKS[page], start=1):
        if found.mark("new folder") is not None:
            user.folder = folder / str(number)
            shutil.copytree(finished, user.folder, symlinks=True)
        if name := found.mark("file: "):
            (user.folder / name).write_text(found.text, encoding="utf-8")
        elif found.is_run and (wrong := wrong_with(found, user)):
            return f"{found.place}: {wrong}"
    return None


def wrong_with(found: Block, user: User) -> str | None:
    """The difference between a block and its real output."""
    if wrong := mistake(found):
        return wrong
    code = int(found.mark("exit ") or 0)
    ran = user.does(found)
    if ran.code != code:
        return f"exit code {ran.code}, and not {code}:\n" + "".join(ran.printed)
    pairs = zip(commands(found), ran.printed, strict=False)
    return next(filter(None, (user.mismatch(*pair) for pair in pairs)), None)


# -- what is only written


@pytest.mark.parametrize("page", BLOCKS)
def test_a_page_names_what_there_is(page: str) -> None:
    """Its marks, commands, options, make targets, scripts and tests, run or not."""
    wrong = [f"{found.place}: {what}" for found in BLOCKS[page] if (what := mistake(found))]
    assert not wrong, "\n".join(wrong) + WHAT_TO_DO
    assert loose_marks(read(page), page) == []
    for words in written(page, "lp-sweep"):
        assert unknown(words) == [], " ".join(words)
    for words in written(page, "make"):
        for target in (word for word in words if "=" not in word):
            assert re.search(rf"^{re.escape(target)}:", read("Makefile"), re.MULTILINE), target
    for words in written(page, "python"):
        if words and words[0].startswith("benchmarks/"):
            source = read(words[0])
            for option in (word for word in words if word.startswith("--")):
                assert f'"{option}"' in source, " ".join(words)
    for name in re.findall(r"\btest_[\w*]+\.py", read(page)):
        assert list((ROOT / "tests").rglob(name)), name


def written(page: str, program: str) -> list[list[str]]:
    """The words behind the program wherever the page writes it: run or not, or in running text."""
    shell = [
        command.typed for found in BLOCKS[page] if found.is_commands for command in commands(found)
    ]
    texts = (*shell, *inline(read(page), program))
    return [words for text in texts for words in words_after(program, text)]


EXAMPLES = sorted(path.name for path in (ROOT / "examples").iterdir() if path.suffix != ".ipynb")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_read_and_names_what_there_is(name: str) -> None:
    """Python, bash or YAML reads it; lp-sweep knows the commands and options in it."""
    text = read(f"examples/{name}")
    if name.endswith(".py"):
        compile(text, name, "exec")
    elif name.endswith(".sh"):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    else:
        assert yaml.safe_load(text)
    calls = [words for words in words_after("lp-sweep", text) if words]
    for words in calls:
        assert unknown(words) == [], " ".join(words)
    assert "lp-sweep run" not in text or "run" in {words[0] for words in calls}


ROOT_COMMAND: Any = get_command(app)


def unknown(words: list[str]) -> list[str]:
    """Unknown commands and options among the words after `lp-sweep`."""
    command, rest = ROOT_COMMAND, list(words)
    while rest and hasattr(command, "commands"):
        name = rest.pop(0)
        if name not in command.commands:
            return [] if name.startswith("-") else [name]
        command = command.commands[name]
    options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    given = {word.partition("=")[0] for word in rest if word.startswith("--")}
    return sorted(given - options - {"--help"})


def test_the_messages_that_a_page_explains_are_printed() -> None:
    """Some are typed over several lines of source: the page quotes the part on one of them."""
    rooms = ("analysis", "orchestrator", "storage", "trials")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    files.append(ROOT / "tests" / "messages.golden")
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    page = read("docs/troubleshooting.md")
    first_cells = re.findall(r"^\| ([^|]*`[^|]*) \|", page, re.MULTILINE)
    quoted = [quote for cell in first_cells for quote in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 30
    assert [quote for quote in quoted if quote not in source] == []
