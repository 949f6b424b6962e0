"""The quickstart for real: it trains its networks and prints what README.md and its page show."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.docpages import ROOT, Block, blocks, commands, read
from tests.support.docuser import User

PAGES = ("README.md", "quickstart/README.md")
pytestmark = [pytest.mark.slow, pytest.mark.ray, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    """After `make quickstart` with the packages that are installed here."""
    home = tmp_path_factory.mktemp("home")
    user = User(tmp_path_factory.mktemp("user"), home)
    for name in (".package", ".ready"):  # an environment that nothing has to be installed into
        (home / name).touch()
    store = user.folder / "quickstart-store"
    subprocess.run(
        ["make", "quickstart", f"VENV={home}", f"STORE={store}"],
        cwd=ROOT,
        env=user.environment,
        check=True,
    )
    return user


def session(page: str) -> Block:
    """The commands of a page after `make quickstart`."""
    by_this = f"run by tests/docs/{Path(__file__).name}"
    [found] = [
        block
        for block in blocks(read(page), page)
        if block.mark("not run: ") == by_this and block.text.startswith("$ ")
    ]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_is_printed(user: User, page: str) -> None:
    """Scores are those of two cores of one kind of processor: another may round otherwise."""
    shown = session(page)
    ran = user.does(shown)
    assert ran.code == 0, ran.printed
    pairs = zip(commands(shown), ran.printed, strict=True)
    assert [wrong for pair in pairs if (wrong := user.mismatch(*pair))] == []


def test_the_table_of_scores(user: User) -> None:
    """Its last command prints Markdown, which the page shows below the fence."""
    done = user.does(session(PAGES[1]))
    table = "\n".join(line for line in done.printed[-1].splitlines() if line.startswith("|"))
    assert table
    assert table in read(PAGES[1])


def test_each_answer_is_plausible_for_two_neighbouring_numbers_of_layers(user: User) -> None:
    """So that a page says what a task needs, and not that more seeds would tell."""
    done = subprocess.run(
        ["lp-sweep", "table", "min-layers-interval", "--store", "quickstart-store", "--json"],
        cwd=user.folder,
        env=user.environment,
        capture_output=True,
        check=True,
    )
    rows = [row for row in json.loads(done.stdout) if (row["delta"], row["strategy"]) == (1, "top")]
    sets = {row["task"]: [12 - k for k in row["credible"]] for row in rows}
    assert sets["toy-sentiment"] == [4, 3]
    assert sets["toy-similarity"] in ([5], [5, 4])
