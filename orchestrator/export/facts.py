"""What a model card says of a trained network: all from the store, but for the licence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.analysis.statistics import intervals
from lp_sweep.analysis.statistics.intervals import Interval
from lp_sweep.analysis.statistics.networks import Network, answers_of
from lp_sweep.orchestrator.export.places import HUB, full_spec, hub_source
from lp_sweep.storage.identity import trial_id
from lp_sweep.storage.specs import TrialSpec
from lp_sweep.storage.store import Store
from lp_sweep.trials.tasks import TaskSource


class Speed(NamedTuple):
    """How many times as fast as all layers: median and quartiles over the pairs."""

    quantity: str  # finetune, inference
    batch: int
    length: int  # tokens of each row
    times: float
    low: float
    high: float
    device: str
    precision: str


class Base(NamedTuple):
    """The pre-trained model."""

    name: str  # a hub id, or the last part of a folder's name
    of_hub: bool
    revision: str | None
    licence: str | None


class Facts(NamedTuple):
    """Beside what the record says."""

    base: Base
    dataset: TaskSource | None  # of the hub
    label_names: Sequence[str]
    interval: Interval  # points
    full: Mapping[str, Any] | None  # the record of all layers: same recipe, same seed
    speeds: Sequence[Speed]
    chosen: str  # how this network was chosen
    another: str | None = None  # why it is not quite the record's


def base_of(fingerprint: str, name: str, folder: str | None, *, offline: bool) -> Base:
    """`folder`: where the model is, if that is known."""
    if fingerprint.startswith(HUB):
        repo_id, _, revision = fingerprint.removeprefix(HUB).rpartition("@")
        return Base(repo_id, True, revision, _hub_licence(repo_id, revision, offline=offline))
    return Base(Path(name).name or "model", False, None, folder and _licence(Path(folder)))


def dataset_of(fingerprint: str) -> TaskSource | None:
    """None for files of one's own."""
    return hub_source(fingerprint) if fingerprint.startswith(HUB) else None


def interval_of(
    record: Mapping[str, Any], examples: np.ndarray, labels: np.ndarray, predicted: np.ndarray
) -> Interval:
    """For the score of one network on other dev rows, as in `table intervals`; (n,) each."""
    metric = record["metric"]
    network = Network(record["trial_id"], metric, "", 100 * record["last"])
    if (positive := record.get("positive_label")) is not None:  # the class that f1 scores
        labels, predicted = labels == positive, predicted == positive
    answers = answers_of(metric, examples, labels, predicted)
    return intervals.interval_of([network], lambda _: answers)


def full_record(store: Store, spec: TrialSpec, depth: int) -> dict[str, Any] | None:
    """That of all layers; None where it is not there or is this one."""
    whole = full_spec(spec, depth)
    rows = None if whole == spec else store.find("trials", trial_id(whole))
    return rows[0] if rows else None


def speeds_of(store: Store, record: Mapping[str, Any]) -> list[Speed]:
    """What was measured of the record's network, in the store's order."""
    listed = store.read_all("profiles").rows.to_pylist()
    own = [row for row in listed if row["measure"] == "speed" and _is_of(row, record)]
    return [
        Speed(
            timing["quantity"],
            timing["batch"],
            row["max_length"],
            timing["speedup"],
            timing["speedup_q25"],
            timing["speedup_q75"],
            row["device_name"],
            row["precision_used"],
        )
        for row in own
        for timing in row["timings"] or ()
    ]


def _is_of(row: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    names = ("model_fingerprint", "kept_layers")
    return not row["removed_feed_forwards"] and all(row[name] == record[name] for name in names)


def _hub_licence(repo_id: str, revision: str, *, offline: bool) -> str | None:
    """From the model's card, which is small and mostly not in the cache."""
    from huggingface_hub import constants, hf_hub_download

    local = offline or constants.HF_HUB_OFFLINE
    try:
        card = hf_hub_download(repo_id, "README.md", revision=revision, local_files_only=local)
    except Exception:  # errors of three libraries; a card without a licence is better than none
        return None
    return _licence(Path(card).parent)


def _licence(folder: Path) -> str | None:
    """As the front matter of the folder's README.md names it."""
    import yaml
    from huggingface_hub import metadata_load

    try:
        told = (metadata_load(folder / "README.md") or {}).get("license")
    except (OSError, ValueError, yaml.YAMLError):  # no card, or no front matter
        return None
    return told if isinstance(told, str) else None
