"""Writes a model card from a network's record: the hub's front matter, then plain Markdown.

Only the licence comes from elsewhere. Names of models, tasks and classes can be any text, so they
are quoted in YAML and escaped in Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.analysis.render import markdown_escape
from lp_sweep.analysis.statistics import intervals
from lp_sweep.analysis.statistics.intervals import Interval
from lp_sweep.analysis.statistics.networks import Network, answers_of
from lp_sweep.orchestrator.export.forms import Form, form_of
from lp_sweep.orchestrator.export.places import HUB, full_spec, hub_source, model_file
from lp_sweep.storage.identity import trial_id
from lp_sweep.storage.printable import also_in_train, guess_name, metric_name, printable, ranges
from lp_sweep.storage.specs import Distillation, TrialSpec
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.train.procedures import FINETUNE_THEN_DROP

Record = Mapping[str, Any]
TAGS = ["lp-sweep", "layer-pruning"]
# the hub's names for our metrics, if they differ
_METRICS = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "entity_f1": "f1",
    "mcc": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}


def trial_card(spec: TrialSpec, record: Record, facts: Facts, split: str) -> str:
    """The card of a fine-tuned network, scored on `split`."""
    layers = f"{len(record['kept_layers'])} of {record['depth']} layers"
    form = form_of(spec.task)
    parts = [
        f"# {escaped(facts.base.name)}, {layers}, {escaped(record['task'])}",
        _opening(spec, record, facts),
        "## How good",
        _scores(record, facts, split, form.whole, spec.task.kind),
        "## How small, how fast",
        _size(record, facts),
        *(_speed(speed) for speed in facts.speeds),
        *([] if facts.speeds else ["Speed: not measured."]),
        "## How to use it",
        form.usage(spec, facts.modules),
        _inputs(spec, facts.label_names),
        "## How it was made",
        _making(spec, record, facts),
        _closing(record, form.compared),
    ]
    return f"---\n{_front_matter(record, facts, split, form)}\n---\n\n" + "\n\n".join(parts) + "\n"


def pruned_card(base: Base, depth: int, kept: Sequence[int], strategy: str, *, embeds: bool) -> str:
    """The card of a network that was pruned and not fine-tuned."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        base_model=base.name if base.of_hub else None,
        license=base.licence,
        library_name="sentence-transformers" if embeds else "transformers",
        tags=TAGS,
    )
    vectors = "`SentenceTransformer(folder)` makes vectors as with the model. " * embeds
    name = escaped(f"{base.name}, {len(kept)} of {depth} layers")
    parts = [
        f"# {name}",
        f"Layers {ranges(kept)} of {_base_text(base)} ({escaped(strategy)}). Layer 1 is next to "
        f"the embeddings. **Pruned, not fine-tuned**: fine-tune it before you use it. All other "
        "weights, including a head, are those of the model.",
        f"{vectors}Plain transformers loads it like the model: "
        "`AutoModel.from_pretrained(folder)`, "
        "`AutoModelForSequenceClassification.from_pretrained(folder, num_labels=...)`.",
        _licence_text(base),
        "Made with `lp-sweep prune`. Loaded in a new process, its hidden states of every layer are "
        "equal to those of the network in memory.",
    ]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    return markdown_escape(printable(text))


def _front_matter(record: Record, facts: Facts, split: str, form: Form) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    metric = _METRICS.get(record["metric"]) or str(record["metric"])
    name = f"{facts.base.name.rpartition('/')[2]}-{len(record['kept_layers'])}-layers"
    hub = facts.dataset
    result = EvalResult(
        task_type=form.hub_task,
        dataset_type=str(hub.dataset) if hub else record["task"],
        dataset_name=record["task"],
        dataset_config=hub.config if hub else None,
        dataset_revision=hub.revision if hub else None,
        dataset_split=split,
        metric_type=metric,
        metric_name=metric_name(record["metric"], record.get("positive")),
        metric_value=round(record["last"], 6),
    )
    data = ModelCardData(
        base_model=facts.base.name if facts.base.of_hub else None,
        license=facts.base.licence,
        library_name=form.library,
        pipeline_tag=form.hub_task,
        tags=TAGS,
        datasets=[str(hub.dataset)] if hub else None,
        metrics=[metric],
        model_name=f"{name}-{record['task']}",
        eval_results=[result],
    )
    return str(data.to_yaml())


def _opening(spec: TrialSpec, record: Record, facts: Facts) -> str:
    base, form = _base_text(facts.base), form_of(spec.task)
    made = form.made(spec, escaped(record["task"]))
    if len(record["kept_layers"]) == record["depth"]:
        said = f"All {record['depth']} layers of {base}, {made}. None was dropped."
    else:
        said = (
            f"Layers {ranges(record['kept_layers'])} of the {record['depth']} layers of {base}, "
            f"{made}. Layer 1 is next to the embeddings. The other layers were "
            "deleted, not skipped: it is an ordinary, smaller model."
        )
    lines = [f"{form.lead}{said}", _licence_text(facts.base)]
    return "\n\n".join([*lines, *([f"**{escaped(facts.another)}.**"] if facts.another else [])])


def _base_text(base: Base) -> str:
    if not base.of_hub:
        return f"a local model ({escaped(base.name)})"
    return f"{escaped(base.name)} at `{base.revision}`"


def _licence_text(base: Base) -> str:
    if base.licence is None:
        return "The licence of that model is unknown to lp-sweep; it also holds for this one."
    return f"The licence of that model is {escaped(base.licence)}; it also holds for this one."


def _scores(record: Record, facts: Facts, split: str, whole: str, kind: str) -> str:
    interval = facts.interval
    between = (
        f"{interval.low:.2f} to {interval.high:.2f}"
        if interval.low is not None and interval.high is not None
        else f"no interval: {interval.reason}"
    )
    metric = metric_name(record["metric"], record.get("positive"))
    lines = [
        "| | points |",
        "|---|---|",
        f"| {escaped(metric)} on {escaped(split)} | {100 * record['last']:.2f} |",
        f"| 95% interval over dev examples, this network | {between} |",
    ]
    if facts.full is not None:
        full = 100 * facts.full["last"]
        change = f"{100 * record['last'] - full:+.2f}".replace("-", "−")
        lines.append(f"| all {record['depth']} layers, {whole} | {full:.2f} |")
        lines.append(f"| change | {change} |")
    if record["majority"] is not None:
        name = f"score of {guess_name(kind)}"
        lines.append(f"| {name} | {100 * record['majority']:.2f} |")
    after = " after the last epoch" if record["steps"] else ""
    note = (
        f"{escaped(facts.chosen)} The score is on the dev set{after}. A network that was chosen on "
        "a dev set scores a little better there than elsewhere: test it on rows of your own."
    )
    if record.get("dev_in_train"):
        both = [record[name] for name in ("dev_in_train", "dev_relabelled", "dev_examples")]
        note = f"**{also_in_train(*both)}** {note}"
    return "\n".join(lines) + f"\n\n{note}"


def _size(record: Record, facts: Facts) -> str:
    text = f"{record['params_total']:,} parameters"
    if facts.full is None:
        return f"{text}."
    share = 100 * record["params_total"] / facts.full["params_total"]
    return f"{text}, {share:.0f}% of the {facts.full['params_total']:,} with all layers."


def _speed(speed: Mapping[str, Any]) -> str:
    what = {"finetune": "a step of fine-tuning", "inference": "inference"}[speed["quantity"]]
    low, high = speed["speedup_q25"], speed["speedup_q75"]
    return (
        f"{speed['speedup']:.2f} times as fast as all layers ({low:.2f} to {high:.2f}, "
        f"quartiles): {what}, batches of {speed['batch']} rows of {speed['max_length']} tokens, "
        f"{speed['precision_used']}, {escaped(speed['device_name'])}."
    )


def _inputs(spec: TrialSpec, label_names: Sequence[str]) -> str:
    columns = [escaped(name) for name in spec.task.text_columns]
    given = form_of(spec.task).inputs(columns, f"at most {spec.recipe.max_length} tokens")
    said = kind_of(spec.task).described([escaped(name) for name in label_names])
    return f"In: {given} Out: {said}."


def _making(spec: TrialSpec, record: Record, facts: Facts) -> str:
    recipe = spec.recipe
    training = (
        ("seed", spec.seed),
        ("learning rate", f"{recipe.learning_rate:g}, {recipe.schedule}"),
        ("batch, epochs", f"{recipe.batch_size}, {recipe.epochs}"),
    )
    rows = [
        ("procedure", spec.procedure),
        *([("in place of dropped layers", f"{spec.bridge} map")] if spec.bridge else ()),
        *(_teaching(spec, record, facts, spec.distill) if spec.distill else ()),
        *(training if record["steps"] else ()),
        ("precision", record["precision_used"]),
        ("train, dev examples", f"{record['train_examples']}, {record['dev_examples']}"),
        ("data", record["data_fingerprint"]),
        ("model", record["model_fingerprint"]),
    ]
    table = [f"| {name} | {escaped(str(value))} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *table])


def _teaching(
    spec: TrialSpec, record: Record, facts: Facts, distill: Distillation
) -> Iterator[tuple[str, str]]:
    who, row = facts.base.name, facts.teacher
    if distill.teacher:
        who = shown_name(row["model_fingerprint"], row["model"]) if row else "another model"
    known = str(record["teacher"]).startswith("t")  # else by the profile of its logits
    trial = f", trial {record['teacher']}" if known else ""
    form = form_of(spec.task)
    yield "teacher", f"{who}, {form.teacher(distill)}{trial}"
    yield "loss", form.loss(spec, distill)
    staged = spec.procedure == FINETUNE_THEN_DROP
    yield "start", "layers of the fine-tuned full model" if staged else "pre-trained layers"


def _closing(record: Record, compared: str) -> str:
    versions = dict(record["versions"] or ())
    known = [f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions]
    return (
        f"Trial `{record['trial_id']}` of lp-sweep{''.join(f', {each}' for each in known)}. The "
        "record is in `lp_sweep.json`; `sha256sum -c SHA256SUMS` checks that the files are whole. "
        f"Before it was published, the folder was loaded in a new process, and its {compared}s and "
        "its score on the dev set were compared with the stored ones."
    )


class Base(NamedTuple):
    """The pre-trained model."""

    name: str  # a hub id, or the last part of a folder's name
    of_hub: bool
    revision: str | None
    licence: str | None


class Facts(NamedTuple):
    """Facts on a card that the record lacks."""

    base: Base
    dataset: TaskSource | None  # if it is on the hub
    label_names: Sequence[str]
    interval: Interval  # points
    full: Mapping[str, Any] | None  # the full model's record: same recipe, same seed
    speeds: Sequence[Mapping[str, Any]]  # rows of `speeds_of`
    chosen: str  # how this network was chosen
    teacher: Record | None = None  # the profile of a student's teacher
    another: str | None = None  # why it is not quite the record's network
    modules: Sequence[str] = ()  # of the model's Sentence Transformers folder


def base_of(fingerprint: str, name: str, folder: str | None, *, offline: bool) -> Base:
    """`folder`: where the model is, if known."""
    card = model_file(fingerprint, folder, "README.md", offline=offline)
    revision = fingerprint.rpartition("@")[2] if fingerprint.startswith(HUB) else None
    licence = _licence(card) if card else None
    return Base(shown_name(fingerprint, name), bool(revision), revision, licence)


def shown_name(fingerprint: str, name: str) -> str:
    """A model's name on the hub, or the last part of a folder's."""
    if fingerprint.startswith(HUB):
        return fingerprint.removeprefix(HUB).rpartition("@")[0]
    return Path(name).name or "model"


def dataset_of(fingerprint: str) -> TaskSource | None:
    """None for a user's own files."""
    return hub_source(fingerprint) if fingerprint.startswith(HUB) else None


def interval_of(
    record: Mapping[str, Any],
    examples: np.ndarray,
    labels: np.ndarray,
    predicted: np.ndarray,
    tallies: Sequence[Sequence[float] | None] = (),
) -> Interval:
    """The interval of one network's score over dev rows, as in `table intervals`; (n,) each."""
    metric = record["metric"]
    network = Network(record["trial_id"], metric, "", 100 * record["last"])
    if (positive := record.get("positive_label")) is not None:  # the class that f1 scores
        labels, predicted = labels == positive, predicted == positive
    answers = answers_of(metric, examples, labels, predicted, tallies)
    return intervals.interval_of([network], lambda _: answers)


def full_record(store: Store, spec: TrialSpec, depth: int) -> dict[str, Any] | None:
    """The record of all layers; None if it is not stored or is this one."""
    whole = full_spec(spec, depth)
    rows = None if whole == spec else store.find("trials", trial_id(whole))
    return rows[0] if rows else None


def speeds_of(store: Store, record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The speeds of the record's network, in the store's order: each with the columns of its
    profile and of its timing."""
    listed = store.read_all("profiles").rows.to_pylist()
    own = [row for row in listed if row["measure"] == "speed" and _is_of(row, record)]
    return [row | timing for row in own for timing in row["timings"] or ()]


def _is_of(row: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    names = ("model_fingerprint", "kept_layers")
    return not row["removed_feed_forwards"] and all(row[name] == record[name] for name in names)


def _licence(card: Path) -> str | None:
    """The licence in a card's front matter."""
    import yaml
    from huggingface_hub import metadata_load

    try:
        told = (metadata_load(card) or {}).get("license")
    except (OSError, ValueError, yaml.YAMLError):  # no front matter
        return None
    return told if isinstance(told, str) else None
