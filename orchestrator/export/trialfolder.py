"""Exports a trained network as a folder: weights, tokenizer, card and record, verified first.

The network is the stored one, or else one that is trained again.
"""

from __future__ import annotations

import json
import math
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch

from lp_sweep.orchestrator.export.card import (
    CardFacts,
    base_of,
    full_record,
    interval_of,
    speeds_of,
    trial_card,
)
from lp_sweep.orchestrator.export.folder import describe, staged
from lp_sweep.orchestrator.export.forms import form_of
from lp_sweep.orchestrator.export.graphs import add_graphs, check_cut, shipped_network
from lp_sweep.orchestrator.export.places import (
    DevRows,
    RecordInputs,
    RetrievedNetwork,
    Where,
    dev_rows,
    extra_texts,
    find_inputs,
    model_file,
    spec_of,
)
from lp_sweep.orchestrator.export.verify import (
    SAME_SCORE,
    CutVocabulary,
    HeldOutScore,
    Nearness,
    RecordedAnswers,
    ShippedGraph,
    Verification,
    ask,
    verify,
)
from lp_sweep.orchestrator.options import ExportOptions
from lp_sweep.storage.errors import ExportError, SpecError, StoreError, UnsupportedModelError
from lp_sweep.storage.networks import (
    WEIGHTS,
    changed_files,
    delete_network,
    fetch_network,
    has_network,
)
from lp_sweep.storage.places import expanded
from lp_sweep.storage.printable import metric_name, say
from lp_sweep.storage.schema import PUBLISHED_VERSIONS
from lp_sweep.storage.spool import send_network
from lp_sweep.storage.store import Store
from lp_sweep.storage.underway import EVERY_SECONDS, Looks
from lp_sweep.trials.device import device_name, pick_device
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.model.modelfiles import graph_problem
from lp_sweep.trials.model.sentencefolder import MODULES, read_sentence_folder
from lp_sweep.trials.spec.identity import trial_id
from lp_sweep.trials.spec.procedures import UNTRAINED, stage_one, teacher_of
from lp_sweep.trials.spec.specs import TEACHER, Recipe, TrialSpec
from lp_sweep.trials.worker.job import Answer, Job, Lesson

# the files of a kept network that may leave the store; the check finds out if one is missing
_PUBLISHED_FILES = (
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *("tokenizer.*", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.*", "*-vocab.*", "entity_vocab.json", "word_shape.json", "word_pronunciation.json"),
    *("merges.txt", "*.model", "bpe.codes", "chat_template.*"),
)
# the columns of a record that may leave the store: a column that a later version adds stays
# private
_PUBLISHED_COLUMNS = (
    "trial_id", "identity_version", "model_fingerprint", "model_revision", "depth", "kept_layers",
    "dropped_layers", "k", "procedure", "task", "data_fingerprint", "seed",
    *(key.name for key in fields(Recipe)),
    "freeze_dropped", "epochs_per_layer", "removed_feed_forwards", "second_norm", "distill",
    "bridge", "bridge_left", "seconds_bridge", "teacher", "seconds_teacher", "started_from",
    "vector_width", "deterministic", "precision_used", "compute_used", "metric", "positive",
    "positive_label", "last", "best", "best_epoch", "majority", "dev_blind", "dev_in_train",
    "dev_relabelled", "epoch_metrics", "train_losses", "train_examples", "dev_examples",
    "train_tokens", "dev_tokens", "steps", "micro_batch", "out_of_memory_retries",
    "resumed_from_step", "params_total", "params_encoder", "params_embedding", "seconds_load",
    "seconds_tokenise",
    "seconds_train", "seconds_evaluate", "seconds_total", "train_examples_per_second",
    "dev_examples_per_second", "device_type", "device_name", "threads", "started_at", "ended_at",
)  # fmt: skip


class ExportResult(NamedTuple):
    """The finished export; as JSON it is what `--json` prints."""

    folder: str
    trial_id: str
    kept_layers: list[int]
    metric: str
    score: float  # points
    interval: tuple[float, float] | None  # points
    retrained: bool
    verified: Verification
    graphs: list[ShippedGraph]
    vocabulary: CutVocabulary | None
    held_out: HeldOutScore | None  # if its task set rows aside


def export(
    record: Mapping[str, Any],
    chosen: str,
    options: ExportOptions,
    where: Where,
    test: Callable[..., HeldOutScore | None],
) -> ExportResult:
    """Exports a record's network. `chosen`: sentences on why it is this one. `test`: as
    `heldout.exported_score`. Raises LpSweepError, and then leaves nothing behind."""
    spec, fingerprint = spec_of(record), record["model_fingerprint"]
    out, offline = expanded(options.out), options.offline
    extra = extra_texts(spec.task, options.texts)  # before a network is trained
    inputs = find_inputs(spec, record, where)
    config = model_file(fingerprint, inputs.model_folder, "config.json", offline=offline)
    if options.graphs and config and (problem := graph_problem(json.loads(config.read_text()))):
        raise UnsupportedModelError(problem)
    cuts = options.vocabulary == "task"
    with staged(out, force=options.force) as folder, TemporaryDirectory(prefix="lp-sweep-") as name:
        whole = Path(name) if cuts else folder
        trained = network_folder(spec, record, inputs, where, whole)
        device = _device(record)
        found = (trained.record, trained.predictions, inputs.source)
        rows = dev_rows(spec, *found, offline=offline)
        scored = f"{len(rows.predicted):,} dev {kind_of(spec.task).scored_by}"
        network = shipped_network(whole, folder, trained, rows, inputs.source, where)
        fewer, graphs = None, list[ShippedGraph]()
        if not record["removed_feed_forwards"]:
            say(f"loading the folder in a new process, and comparing its answers on {scored}")
            request = _request(whole, spec, trained.record, rows, device)
            expected = _expected(spec, trained.record, rows, device)
            answer = ask(whole, request)
            pair = form_of(spec.task).answers(spec, rows, answer.values)
            verified = verify(answer, pair, expected)
            if cuts:
                say("cutting its vocabulary, and comparing its answers to the same pieces")
                verified = fewer = check_cut(network, spec, rows, expected, request)
        if options.graphs:
            expected = _expected(spec, trained.record, rows)
            same, graphs = add_graphs(network, spec, rows, expected, options)
        if record["removed_feed_forwards"]:
            verified = same
            for path in folder.glob("*.safetensors*"):
                path.unlink()
        model = _sentence_model(record, inputs, where)
        modules = read_sentence_folder(model).modules if model else ()
        facts = CardFacts(
            split=rows.split,
            base=base_of(fingerprint, record["model"], inputs.model_folder, offline=offline),
            label_names=rows.label_names,
            interval=interval_of(trained.record, trained.predictions),
            full=full_record(where.store, spec, record["depth"]),
            speeds=speeds_of(where.store, trained.record),
            loaded=verified.score,
            chosen=chosen,
            taught_by=taught_by(where.store, trained.record) if spec.distill else None,
            another=trained.another,
            modules=[module.name for module in modules],
            graphs=graphs,
            vocabulary=CutVocabulary(
                pieces=len(network.pieces.old),
                of=network.pieces.full,
                words_cut=network.words_cut,
                extra_texts=extra,
                score=fewer and fewer.score,
            )
            if cuts
            else None,
            # another network's score is none of the record's
            held_out=None if trained.another else test(record, network, extra, options, where),
        )
        card = trial_card(spec, trained.record, facts)
        about = _about(trained, chosen, verified)
        about["graphs"] = [graph._asdict() for graph in graphs]
        about["vocabulary"] = facts.vocabulary and facts.vocabulary._asdict()
        about["held_out"] = facts.held_out and facts.held_out._asdict()
        describe(folder, card, about)
    low, high = facts.interval[:2]
    return ExportResult(
        folder=str(out),
        trial_id=record["trial_id"],
        kept_layers=list(record["kept_layers"]),
        metric=metric_name(record["metric"], record.get("positive")),
        score=100 * trained.record["last"],
        interval=None if low is None or high is None else (low, high),
        retrained=trained.retrained,
        verified=verified,
        graphs=graphs,
        vocabulary=facts.vocabulary,
        held_out=facts.held_out,
    )


def refuse_unsupported(record: Mapping[str, Any], *, graphs: bool) -> None:
    """Raises SpecError for a network that plain transformers would fill with random weights, unless
    it is exported as a graph."""
    removed = record["removed_feed_forwards"]
    if removed and not graphs:
        raise SpecError(
            f"{record['trial_id']} has no feed-forward in layers {', '.join(map(str, removed))}: "
            "transformers has no class for such a network, and `from_pretrained` would put random "
            "weights there. Export it as a graph: --as onnx. --best chooses among whole networks "
            "alone."
        )


def _device(record: Mapping[str, Any]) -> str:
    """The record's type of device, if this machine has one, since its answers are the same."""
    return "cpu" if record["device_type"] == "cpu" else pick_device().type


def network_folder(
    spec: TrialSpec, record: Mapping[str, Any], inputs: RecordInputs, where: Where, folder: Path
) -> RetrievedNetwork:
    """Puts the network and what its users need into `folder`. Raises LpSweepError."""
    found = from_store(where.store, record, folder)
    if isinstance(found, str):
        way = "made" if spec.procedure == UNTRAINED else "trained"
        say(
            f"{record['trial_id']} is {way} again: {found}. It took "
            f"{record['seconds_total']:.0f} s on {record['device_name']}."
        )
        job = inputs.job(spec, record, where)
        found = trained_again(job, record, where, folder, _device(record))
        another = check_same(found.record, record, accept=where.options.accept_retrained)
        if another:
            say(f"warning: {another}")
        found = found._replace(another=another)
    form_of(spec.task).finish(folder, spec, _sentence_model(record, inputs, where))
    return found


def _sentence_model(record: Mapping[str, Any], inputs: RecordInputs, where: Where) -> Path | None:
    """The folder of the model that a network was made from, if it has modules."""
    place = record["model_fingerprint"], inputs.model_folder, MODULES
    file = model_file(*place, offline=where.options.offline)
    return file.parent if file else None


def _request(
    folder: Path, spec: TrialSpec, record: Mapping[str, Any], rows: DevRows, device: str
) -> dict[str, Any]:
    """What `ask` takes."""
    return {
        "kinds": [form_of(spec.task).loads],
        "texts": rows.texts,
        "pooling": spec.task.pooling,
        "after": read_sentence_folder(folder).after,
        "max_length": spec.recipe.max_length,
        "device": device,
        "threads": record["threads"] if device == "cpu" else None,
    }


def _expected(
    spec: TrialSpec, record: Mapping[str, Any], rows: DevRows, device: str = ""
) -> RecordedAnswers:
    """`device`: its type; onnxruntime, whose sums have another order, without one."""
    name = device_name(torch.device(device)) if device else "onnxruntime"
    return RecordedAnswers(
        label_names=rows.label_names,
        labels=np.asarray(rows.labels),
        score=record["last"],
        nearness=Nearness.of(record, device or "cpu", name),
        compared=form_of(spec.task).compared,
    )


def _about(trained: RetrievedNetwork, chosen: str, verified: Verification) -> dict[str, Any]:
    record = {name: trained.record[name] for name in _PUBLISHED_COLUMNS if name in trained.record}
    versions = dict(trained.record["versions"] or ())
    record["versions"] = {name: versions[name] for name in PUBLISHED_VERSIONS if name in versions}
    return {
        "chosen": chosen,
        "retrained": trained.retrained,
        "verified": verified._asdict(),
        "spec": json.loads(trained.record["spec"]),
        "record": record,
    }


# -- the network: the stored one, or one that is trained again


def from_store(store: Store, record: Mapping[str, Any], folder: Path) -> RetrievedNetwork | str:
    """Copies the kept network into `folder`, or returns why it must be trained again. Raises
    ExportError if it is damaged."""
    trial = record["trial_id"]
    predictions = store.find("predictions", trial)
    if not predictions or None in (row["scores"] for row in predictions):
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
        if not any(path.match(pattern) for pattern in _PUBLISHED_FILES):
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
    job: Job, record: Mapping[str, Any], where: Where, folder: Path, device: str
) -> RetrievedNetwork:
    """Trains the trial in a temporary store, with the threads and the micro-batch that it had, and
    with CUDA graphs only if it had them: nothing here tries again without. Keeps the network, if it
    is asked to, and if it answers as recorded. Raises ExportError if that fails."""
    from lp_sweep.trials.fast.forward import GRAPHS
    from lp_sweep.trials.worker.run import execute

    halvings, graphs = record["out_of_memory_retries"] or 0, record["compute_used"] == GRAPHS
    with TemporaryDirectory(prefix="lp-sweep-") as name:
        store = Store(Path(name) / "store", create=True)
        place = replace(
            job.place, store=store.location, device=device, threads=record["threads"], keep="all"
        )
        job = replace(job, place=place, halvings=halvings, graphs=graphs)
        for each in _in_order(job, record, where.store, store):
            with _told(store, each.id):
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
        network = Path(store.location, WEIGHTS, job.id)
        if where.options.retrain and _kept(found.predictions, network, where.store):
            return found._replace(record=record)
    return RetrievedNetwork(again, found.predictions, retrained=True)


def _kept(answers: list[dict[str, Any]], network: Path, stored: Store) -> bool:
    """Whether a network that was trained again answers exactly as recorded, and is in the store
    now. A store that does not take it is no failure."""
    try:
        if stored.find("predictions", network.name) != answers or has_network(stored, network.name):
            return False
        try:
            return send_network(stored, network)
        except StoreError:  # only now: what was there before stays
            with suppress(StoreError):
                delete_network(stored, network.name)
            raise
    except StoreError as error:
        say(f"warning: it will be trained again next time too: {error}")
        return False


@contextmanager
def _told(store: Store, trial: str) -> Iterator[None]:
    """Tells how far the trial is, once in every tenth of its steps, while inside."""
    looks, over = Looks(store), threading.Event()

    def look() -> None:
        told = -1
        while not over.wait(EVERY_SECONDS):
            for far in looks.of([trial]).values():
                before, told = told, far.tenth
                if told != before:
                    say(far.text)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _in_order(job: Job, record: Mapping[str, Any], stored: Store, store: Store) -> Iterator[Job]:
    """Yields the jobs whose networks it needs, then the job. Copies its teacher's logits."""
    spec = job.trial
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
    # two processors may round the last bit of a correlation differently
    if math.isclose(again["last"], record["last"], abs_tol=SAME_SCORE):
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
