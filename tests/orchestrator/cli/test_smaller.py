"""`lp-sweep run --data`: from a file of rows to a smaller model, in one command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.orchestrator.options import SmallerOptions
from lp_sweep.orchestrator.service.smaller import rounded_up
from tests.support.kindworlds import WRITERS
from tests.support.program import sweep
from tests.support.toyworld import rows, save_model

ASKED = ["--data", "reviews.csv", "--text", "text", "--label", "label", "--model", "model"]
RECIPE = ["recipe.lr=2e-3", "recipe.epochs=3", "seed=42"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = rows(400, 1)
    WRITERS["csv"](tmp_path / "reviews.csv", {key: [row[key] for row in made] for key in made[0]})
    save_model(tmp_path / "model")
    return tmp_path


def run(folder: Path, *words: str, code: int = 0) -> str:
    done = sweep("run", *words, "--inline", cwd=folder)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr + done.stdout


@pytest.mark.parametrize(
    ("words", "nouns"),
    [
        (["--model", "m", "--out", "s"], ["--model, --out: there are no rows", "model=m"]),
        ([*ASKED[:4], "--label", "labl", *ASKED[6:]], ["no column 'labl'", "Did you mean 'label'"]),
        ([*ASKED[:2], "--model", "model"], ["which column", "--text COLUMN --label COLUMN"]),
        ([*ASKED, "--out", "model"], ["model exists and is not an export", "--out"]),
        (["task=reviews,rte", *ASKED], ["task=reviews,rte", "--data"]),
        (["sweep.yaml", "model=model,other", *ASKED], ["model=model,other", "--model"]),
        ([*ASKED, "--out", "small", "--quick"], ["--quick", "leave out --out"]),
        ([*ASKED[:6], "--model", "./no"], ["no model folder", "/no.", "path"]),
        ([*ASKED[:6], "--model", "."], ["has no readable config.json"]),
        ([*ASKED, "--model", "no/such-model", "--offline"], ["unknown model 'no/such-model'"]),
        (["--data", "none.csv", *ASKED[2:]], ["none.csv: no such file"]),
        (["--data", "empty.csv", *ASKED[2:]], ["empty.csv: is an empty file"]),
    ],
)
def test_a_mistake_is_said_before_anything_is_written(
    folder: Path, words: list[str], nouns: list[str]
) -> None:
    (folder / "empty.csv").touch()
    before = {*folder.rglob("*")}
    done = sweep("run", *words, cwd=folder)
    assert done.returncode in (2, 4), done.stderr
    assert all(noun in done.stderr for noun in nouns), done.stderr
    assert {*folder.rglob("*")} == before


def test_the_same_command_goes_on_with_its_file_and_no_other_does(folder: Path) -> None:
    plan = ["--dry-run", "--store", "elsewhere/records"]
    (folder / "elsewhere").mkdir()
    assert ", elsewhere/reviews.yaml" in run(folder, *RECIPE, *ASKED, *plan)
    file = folder / "elsewhere" / "reviews.yaml"
    edited = file.read_text().replace("[42, 43, 44]", "[42, 43]")
    file.write_text(edited)
    assert "used again" in run(folder, *RECIPE, *ASKED, *plan)
    assert file.read_text() == edited
    other = run(folder, *ASKED, *plan, "--within", "3", code=2)
    for noun in ("other rows or options", f"lp-sweep run {file.relative_to(folder)}", "--force"):
        assert noun in other
    with (folder / "reviews.csv").open("a") as more:
        more.write("one more w1,pos\n")
    assert "other rows" in run(folder, *ASKED, *plan, code=2)
    run(folder, *ASKED, *plan, "--within", "3", "--force")
    strategies = yaml.safe_load(file.read_text())["strategies"]
    assert {tuple(entry["within"]) if isinstance(entry["within"], list) else entry["within"]
            for entry in strategies} == {3}  # fmt: skip


def test_a_quick_look_is_a_sweep_of_its_own(folder: Path) -> None:
    said = run(folder, *ASKED, "--quick", "--dry-run")
    assert re.search(r"dev rows, one seed: losses under \d+ points", said)
    content = yaml.safe_load((folder / "reviews-quick.yaml").read_text())
    assert (content["name"], content["seeds"]) == ("reviews-quick", [42])
    assert content["recipe"]["limit_train"] < 1000
    assert len(content["strategies"]) == 1
    assert "deploy" not in content


@pytest.mark.parametrize(
    ("hours", "tried"),
    [("0.002", "seed=42 strategy=top"), ("0.01", "seed=42 strategy=top"), ("0.03", "seed=42")],
)
def test_hours_size_the_sweep_and_more_hours_take_the_rest(
    folder: Path, hours: str, tried: str
) -> None:
    """A training of the toy takes three seconds by the stated rate."""
    told = run(folder, *ASKED, "--dry-run", "--max-hours", hours)
    assert f"tries {tried} alone" in told
    assert ("--max-hours 0.00" in told) == (hours == "0.002"), "that finds no answer"
    seeds = yaml.safe_load((folder / "reviews.yaml").read_text())["seeds"]
    assert len(seeds) == 3, "the file has the whole sweep"
    assert "this run tries" not in run(folder, *ASKED, "--dry-run", "--max-hours", "1")


@pytest.mark.slow
def test_the_same_hours_go_on_where_a_part_is_done(folder: Path) -> None:
    whole, few = [*RECIPE[:2], *ASKED], ["--dry-run", "--max-hours", "0.03"]
    assert "tries seed=42 alone" in run(folder, *whole, *few)
    run(folder, *whole, "seed=42")
    assert "this run tries" not in run(folder, *whole, *few)


def test_few_hours_train_no_embedding(folder: Path) -> None:
    pairs = [
        f"{row['text']},{row['text']} w1,{index % 5}\n" for index, row in enumerate(rows(90, 2))
    ]
    (folder / "pairs.csv").write_text("a,b,score\n" + "".join(pairs))
    words = ["--data", "pairs.csv", "--text", "a", "--text", "b", "--label", "score"]
    words += ["--kind", "embedding", "--model", "model", "--dry-run", "--max-hours", "0.005"]
    assert "tries procedure=untrained alone" in run(folder, *words)


@pytest.mark.slow
def test_rows_become_a_smaller_model(folder: Path) -> None:
    """After a break as well; and the folder is what plain transformers loads."""
    words = [*RECIPE, *ASKED, "--out", "smaller", "--within", "20"]
    told = run(folder, *words, "--max-hours", "0", code=3)
    assert "not trained yet" in told
    assert re.search(r"Go on: lp-sweep run .*--data reviews.csv .*--out smaller", told)
    assert not (folder / "smaller").exists()
    told = run(folder, *words)
    assert "smaller/README.md" in told
    config = json.loads((folder / "smaller" / "config.json").read_text())
    assert config["num_hidden_layers"] < 4
    assert (folder / "smaller" / "model.safetensors").is_file()
    assert "smaller/README.md" in run(folder, *words), "it replaces what it wrote, nothing else"
    (folder / "smaller" / "lp_sweep.json").unlink()
    assert "smaller exists" in run(folder, *words, code=2)


@pytest.mark.slow
def test_the_full_model_is_not_exported_as_a_smaller_one(folder: Path) -> None:
    """No network loses so little, on rows whose labels every layer is needed for."""
    words = [*RECIPE, *ASKED, "--out", "smaller", "--within", "0"]
    told = run(folder, "strategy=top", *words, "k=0")
    assert "the answer is the full model" in told
    assert "lp-sweep export t1-" in told
    assert not (folder / "smaller").exists()


def test_rows_are_needed_for_their_options() -> None:
    assert SmallerOptions(data=Path("a.csv")).from_rows
    assert not SmallerOptions().from_rows


@given(st.floats(0.001, 1000))
def test_advised_hours_are_never_too_few(hours: float) -> None:
    assert hours * 0.999999 <= float(rounded_up(hours)) <= 1.11 * hours
