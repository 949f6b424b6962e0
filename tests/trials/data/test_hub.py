"""Rows of the Hugging Face hub: from its cache at the commit asked for, or a clear refusal."""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.datasource import LoadedTask, load_task
from lp_sweep.trials.data.tasks import GLUE_REVISION, TASKS, glue_source


class Hub(NamedTuple):
    cache: Path
    asked: list[object]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """An empty cache of the `datasets` library, and what it asks a hub that doesn't answer."""
    from datasets import config
    from datasets import load as loading

    asked: list[object] = []

    def no_network() -> None:
        if not config.HF_HUB_OFFLINE:
            asked.append("a hub call")
        raise ConnectionError("no network")

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(loading, "_raise_if_offline_mode_is_enabled", no_network)
    return Hub(cache=tmp_path / "hub", asked=asked)


def put_in_cache(cache: Path, revision: str, labels: list[int], config: str = "rte") -> Path:
    """RTE as `datasets` leaves it behind; gives the folder."""
    from datasets import ClassLabel, DatasetInfo, Features, SplitDict, SplitInfo, Value
    from datasets.arrow_writer import ArrowWriter

    folder = cache / "nyu-mll___glue" / config / "0.0.0" / revision
    folder.mkdir(parents=True)
    text = Value("string")
    label = ClassLabel(names=["entailment", "not_entailment"])
    features = Features({"sentence1": text, "sentence2": text, "label": label})
    splits = SplitDict(dataset_name="glue")
    for split in ("train", "validation"):
        with ArrowWriter(path=str(folder / f"glue-{split}.arrow"), features=features) as writer:
            for row, value in enumerate(labels):
                writer.write({"sentence1": f"{row}", "sentence2": split, "label": value})
            writer.finalize()
        splits.add(SplitInfo(split, num_examples=len(labels), dataset_name="glue"))
    DatasetInfo(
        features=features,
        splits=splits,
        builder_name="parquet",
        dataset_name="glue",
        config_name=config,
        version="0.0.0",
    ).write_to_directory(str(folder))
    return folder


def load(name: str = "rte", *, offline: bool = True, **changes: str | None) -> LoadedTask:
    """From the pinned commit, but for what is told."""
    source = replace(glue_source(name, None), **changes)
    return load_task(TASKS[name].definition, source, offline=offline)


@pytest.mark.parametrize("offline", [True, False])
def test_rows_of_the_wanted_commit_come_from_the_cache(hub: Hub, offline: bool) -> None:
    """`datasets` by itself would take the latest commit there."""
    os.utime(put_in_cache(hub.cache, GLUE_REVISION, [1, 0, 1]), (1, 1))
    put_in_cache(hub.cache, "a" * 40, [0, 0, 0])
    task = load(offline=offline)
    assert task.train.texts == (["0", "1", "2"], ["train"] * 3)
    assert task.dev["validation"].texts[1] == ["validation"] * 3
    assert task.train.labels.tolist() == [1, 0, 1]
    source = glue_source("rte", None)
    first = load_task(TASKS["rte"].definition, source, offline=offline, most=2)
    assert (first.train.texts[0], first.looked_at) == (["0", "1"], 2)
    assert len(first.dev["validation"]) == 3
    assert not hub.asked


def test_another_cached_revision_is_refused(hub: Hub) -> None:
    put_in_cache(hub.cache, "a" * 40, [1, 0])
    with pytest.raises(MissingInputError, match=r"does not have 'rte' at that.*prefetch"):
        load()
    with pytest.raises(MissingInputError, match=f"did not answer.*has revision {'a' * 40}"):
        load(offline=False)
    assert hub.asked
    with pytest.raises(MissingInputError, match=r"can't load wnli.* hub"):
        load("wnli", offline=False)


def test_fewer_rows_than_were_once_written(hub: Hub) -> None:
    """Arrow reads a stream that was cut between two batches as a shorter one."""
    folder = put_in_cache(hub.cache, GLUE_REVISION, [1, 0, 1])
    shorter = put_in_cache(hub.cache, "a" * 40, [1, 0])
    (shorter / "glue-train.arrow").replace(folder / "glue-train.arrow")
    with pytest.raises(MissingInputError, match=r"2 of 3 rows of split 'train'.*prefetch"):
        load()


CARDS = {
    "named": ("rte", "configs:\n- {config_name: cola, data_files: x}\n"
              "- {config_name: rte, data_files: y, default: true}\n"),
    "only-one": ("rte", "configs:\n- {config_name: rte, data_files: y}\n"),
    "none": ("default", "license: mit\n"),
}  # fmt: skip


@pytest.mark.parametrize(("config", "card"), CARDS.values(), ids=CARDS)
def test_the_default_configuration_is_the_cards(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, config: str, card: str
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(hub.cache / "hub"))
    snapshot = hub.cache / "hub" / "datasets--nyu-mll--glue" / "snapshots" / GLUE_REVISION
    snapshot.mkdir(parents=True)
    (snapshot / "README.md").write_text(f"---\n{card}---\n# GLUE\n")
    put_in_cache(hub.cache, GLUE_REVISION, [0, 0, 0], config="cola")
    put_in_cache(hub.cache, GLUE_REVISION, [1, 0, 1], config=config)
    assert load(config=None).train.labels.tolist() == [1, 0, 1]


def test_a_configuration_is_not_guessed(hub: Hub) -> None:
    put_in_cache(hub.cache, GLUE_REVISION, [0, 0, 0], config="cola")
    with pytest.raises(MissingInputError, match=r"does not have 'default'.*name its config"):
        load(config=None)
    assert not hub.asked


@pytest.mark.parametrize("revision", [None, "main", "abc123"])
def test_rows_of_a_branch_are_not_read(hub: Hub, revision: str | None) -> None:
    put_in_cache(hub.cache, GLUE_REVISION, [1, 0])
    with pytest.raises(MissingInputError, match=r"a branch.*lp-sweep prefetch"):
        load(offline=False, revision=revision)
    assert not hub.asked
