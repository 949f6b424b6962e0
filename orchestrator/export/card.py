"""Writes a model card from a network's record: the hub's front matter, then plain Markdown.

The words are in `templates/`: `card.md.j2`, and what the other kinds of task change in it. Only the
licence comes from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from lp_sweep.analysis.render import markdown_escape
from lp_sweep.analysis.statistics import intervals
from lp_sweep.analysis.statistics.intervals import Interval
from lp_sweep.analysis.statistics.networks import Network
from lp_sweep.orchestrator.export.choice import answers_in
from lp_sweep.orchestrator.export.forms import Form, form_of
from lp_sweep.orchestrator.export.places import HUB, full_spec, hub_source, model_file
from lp_sweep.storage.printable import also_in_train, guess_name, metric_name, printable, ranges
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.tasks import TaskSource
from lp_sweep.trials.spec.identity import trial_id
from lp_sweep.trials.spec.specs import TaskDefinition, TrialSpec

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


class Base(NamedTuple):
    """The pre-trained model."""

    name: str  # a hub id, or the last part of a folder's name
    of_hub: bool
    revision: str | None
    licence: str | None


class CardFacts(NamedTuple):
    """CardFacts on a card that the record lacks."""

    base: Base
    dataset: TaskSource | None  # if it is on the hub
    label_names: Sequence[str]
    interval: Interval  # points
    full: Mapping[str, Any] | None  # the full model's record: same recipe, same seed
    speeds: Sequence[Mapping[str, Any]]  # rows of `speeds_of`
    chosen: str = ""  # how this network was chosen
    teacher: Record | None = None  # the profile of a student's teacher
    another: str | None = None  # why it is not quite the record's network
    modules: Sequence[str] = ()  # of the model's Sentence Transformers folder


def trial_card(spec: TrialSpec, record: Record, facts: CardFacts, split: str) -> str:
    """The card of a fine-tuned network, scored on `split`."""
    form = form_of(spec.task)
    names = [_escaped(name) for name in facts.label_names]
    leak = ""
    if record.get("dev_in_train"):
        both = [record[name] for name in ("dev_in_train", "dev_relabelled", "dev_examples")]
        leak = also_in_train(*both)
    return template_of(spec.task).render(
        facts._asdict()
        | {
            "front_matter": _front_matter(record, facts, split, form),
            "spec": spec,
            "task": spec.task,
            "distill": spec.distill,
            "max_length": spec.recipe.max_length,
            "record": record,
            "split": split,
            "metric": metric_name(record["metric"], record.get("positive")),
            "guess": guess_name(spec.task.kind),
            "leak": leak,
            "columns": [_escaped(name) for name in spec.task.text_columns],
            "classes": ("; " if any("," in name for name in names) else ", ").join(names),
            "teacher": _teacher(spec, facts),
            "versions": dict(record["versions"] or ()),
            "compared": form.compared,
        }
    )


def pruned_card(base: Base, depth: int, kept: Sequence[int], strategy: str, *, embeds: bool) -> str:
    """The card of a network that was pruned and not fine-tuned."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        base_model=base.name if base.of_hub else None,
        license=base.licence,
        library_name="sentence-transformers" if embeds else "transformers",
        tags=TAGS,
    )
    return (
        _templates()
        .get_template("pruned.md.j2")
        .render(
            front_matter=data.to_yaml(),
            base=base,
            depth=depth,
            kept=kept,
            strategy=strategy,
            embeds=embeds,
        )
    )


def template_of(task: TaskDefinition) -> Template:
    return _templates().select_template([f"{task.kind}.md.j2", "card.md.j2"])


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("lp_sweep.orchestrator.export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "json": json.dumps,
        "md": _escaped,
        "points": lambda share: f"{100 * share:.2f}",
        "ranges": ranges,
    }
    return environment


def _escaped(text: str) -> str:
    return markdown_escape(printable(text))


def _front_matter(record: Record, facts: CardFacts, split: str, form: Form) -> str:
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


def _teacher(spec: TrialSpec, facts: CardFacts) -> str:
    """The name of a student's teacher."""
    if not (spec.distill and spec.distill.teacher):
        return facts.base.name
    row = facts.teacher
    return shown_name(row["model_fingerprint"], row["model"]) if row else "another model"


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


def interval_of(record: Record, predictions: Sequence[Record]) -> Interval:
    """The interval of one network's score over dev rows, as in `table intervals`."""
    network = Network(record["trial_id"], record["metric"], "", 100 * record["last"])
    answers = answers_in(record, record["metric"], predictions)
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
