"""Puts the trained network of a trial into a folder: the stored one, or one trained again."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.export.places import Where, job_of
from lp_sweep.storage.errors import ExportError
from lp_sweep.storage.networks import changed_files, fetch_network, has_network
from lp_sweep.storage.printable import metric_name
from lp_sweep.storage.store import Store
from lp_sweep.storage.underway import EVERY_SECONDS, Looks
from lp_sweep.trials.spec.identity import trial_id
from lp_sweep.trials.spec.specs import TEACHER, TrialSpec
from lp_sweep.trials.worker.job import Answer, Job, Lesson

Tell = Callable[[str], None]
# the files of a kept network that may leave the store; the check finds out if one is missing
_PUBLISHED = (
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer.*", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "*-vocab.*", "entity_vocab.json", "word_shape.json", "word_pronunciation.json"),
    *("merges.txt", "*.model", "bpe.codes", "chat_template.*"),
)
Rows = list[dict[str, Any]]


class RetrievedNetwork(NamedTuple):
    """The record and the predictions of the network in the folder."""

    record: Mapping[str, Any]
    predictions: Rows
    retrained: bool = False


def from_store(store: Store, record: Mapping[str, Any], folder: Path) -> RetrievedNetwork | str:
    """Copies the kept network into `folder`, or returns why it must be trained again. Raises
    ExportError if it is damaged."""
    trial = record["trial_id"]
    predictions = store.find("predictions", trial)
    if not predictions:
        return "the store has no predictions to hold its network against"
    if not fetch_network(store, trial, folder):
        for path in folder.iterdir():  # parts of a network that is being deleted
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return "its network was not kept"
    if changed := changed_files(folder):
        raise ExportError(
            f"the network of {trial} in {store.location} is damaged: {', '.join(changed)} is not "
            f"what was kept. Delete weights/{trial} there: the export then trains it again."
        )
    for path in folder.iterdir():
        if not any(path.match(pattern) for pattern in _PUBLISHED):
            path.unlink()
    return RetrievedNetwork(record, predictions)


def kept_instead(store: Store, trial: str, seeds: Mapping[int, str]) -> str | None:
    """A sentence if the network of `trial` was not kept but another of its `seeds` was, as with
    `keep: best`: the median seed is rarely the best one. Raises StoreError."""
    if has_network(store, trial):
        return None
    kept = [seed for seed, other in sorted(seeds.items()) if has_network(store, other)]
    if not kept:
        return None
    named = f"seed {kept[0]}" if len(kept) == 1 else f"seeds {', '.join(map(str, kept))}"
    return f"of this network {named} was kept: --seed {kept[0]} takes it, and trains nothing again"


def trained_again(
    spec: TrialSpec, record: Mapping[str, Any], where: Where, folder: Path, device: str, tell: Tell
) -> RetrievedNetwork:
    """Trains the trial in a temporary store, with the threads and the micro-batch that it had, and
    with CUDA graphs only if it had them: nothing here tries again without. `tell` gets its
    progress. Raises ExportError if that fails."""
    from lp_sweep.trials.fast.forward import GRAPHS
    from lp_sweep.trials.worker.run import execute

    job = job_of(spec, record, where)
    halvings, graphs = record["out_of_memory_retries"] or 0, record["compute_used"] == GRAPHS
    with tempfile.TemporaryDirectory(prefix="lp-sweep-") as name:
        store = Store(Path(name) / "store", create=True)
        place = replace(
            job.place, store=store.location, device=device, threads=record["threads"], keep="all"
        )
        job = replace(job, place=place, halvings=halvings, graphs=graphs)
        for each in _in_order(job, spec, record, where.store, store):
            with _told(store, each.id, tell):
                told = Answer.from_plain(execute(each.to_plain()))
            if told.status != "done":
                raise ExportError(
                    f"{record['trial_id']} can't be trained again: {told.error_type} "
                    f"{told.message}".rstrip()
                )
        found = from_store(store, record, folder)
        if isinstance(found, str):
            raise ExportError(f"{record['trial_id']} was trained again, and {found}.")
        (again,) = store.read("trials", record["trial_id"])
    return RetrievedNetwork(again, found.predictions, retrained=True)


@contextmanager
def _told(store: Store, trial: str, tell: Tell) -> Iterator[None]:
    """Tells how far the trial is, every ten seconds, while inside."""
    looks, over = Looks(store), threading.Event()

    def look() -> None:
        while not over.wait(EVERY_SECONDS):
            for how_far in looks.of([trial]).values():
                tell(how_far.text)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _in_order(
    job: Job, spec: TrialSpec, record: Mapping[str, Any], stored: Store, store: Store
) -> Iterator[Job]:
    """Yields the jobs whose networks it needs, then the job. Copies its teacher's logits."""
    from lp_sweep.trials.spec.procedures import stage_one, teacher_of

    first = stage_one(spec, record["depth"])
    lesson = _lesson(record, stored, store) if spec.distill else None
    watched = lesson and lesson.watched(spec)
    teacher = teacher_of(spec, record["depth"]) if watched else None
    for needed in dict.fromkeys(filter(None, (first, teacher))):
        yield replace(job, id=trial_id(needed), spec=needed)
    yield replace(job, start=trial_id(first) if first else None, lesson=lesson)


def _lesson(record: Mapping[str, Any], stored: Store, store: Store) -> Lesson:
    """Raises ExportError if the teacher's logits are not in the store."""
    found = taught_by(stored, record)
    logits = found and stored.find("teacher_logits", found["profile_id"])
    if not found or not logits:
        raise ExportError(
            f"{record['trial_id']} can't be trained again: the logits of its teacher, "
            f"{record['teacher']}, are not in {stored.location}. Export a network that was kept: "
            "`keep: all` in the sweep file keeps those of trials to come."
        )
    store.put("teacher_logits", found["profile_id"], logits)
    return Lesson(found["trial_id"] or "", found["profile_id"])


def taught_by(store: Store, record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of the teacher's profile."""
    rows = store.read_all("profiles").rows.to_pylist()
    taught = (row for row in rows if row["measure"] == TEACHER)
    ids = ("trial_id", "profile_id")
    return next((row for row in taught if record["teacher"] in (row[n] for n in ids)), None)


def check_same(again: Mapping[str, Any], record: Mapping[str, Any], *, accept: bool) -> str | None:
    """A sentence if the network that was trained again is not the record's; None if it is. Raises
    ExportError unless `accept`."""
    if again["last"] == record["last"]:
        return None
    was, now = (_made(row) for row in (record, again))
    metric = metric_name(record["metric"], record.get("positive"))
    said = (
        f"trained again it scores {100 * again['last']:.2f} {metric}, and the record "
        f"says {100 * record['last']:.2f}: it is another network ({now}; the record's was of {was})"
    )
    if accept:
        return said
    raise ExportError(
        f"{said}. A seed fixes a result on one type of device and one set of versions. Export it "
        "where the sweep ran, or take this network with --accept-retrained: the card says so."
    )


def _made(record: Mapping[str, Any]) -> str:
    versions = dict(record["versions"] or ())
    torch = f", torch {versions['torch']}" if "torch" in versions else ""
    return f"{record['device_name']}, {record['threads']} threads{torch}"
