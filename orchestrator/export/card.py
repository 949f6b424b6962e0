"""Writes a model card from a network's record: the hub's front matter, then plain Markdown.

The words are in `templates/`: `card.md.j2`, and what the other kinds of task change in it. Only the
licence comes from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, ModelCardData, metadata_load
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from lp_sweep.analysis.phrases import signed
from lp_sweep.analysis.render import markdown_escape
from lp_sweep.analysis.statistics import intervals
from lp_sweep.analysis.statistics.intervals import Interval
from lp_sweep.analysis.statistics.networks import Network
from lp_sweep.orchestrator.export.choice import answers_in
from lp_sweep.orchestrator.export.forms import form_of
from lp_sweep.orchestrator.export.places import HUB, hub_source, model_file
from lp_sweep.orchestrator.export.verify import CutVocabulary, HeldOutScore, ShippedGraph
from lp_sweep.storage.printable import also_in_train, guess_name, metric_name, printable, ranges
from lp_sweep.storage.store import Store
from lp_sweep.trials.spec.identity import trial_id
from lp_sweep.trials.spec.procedures import DIRECT, full_layers, settled
from lp_sweep.trials.spec.scoring import facts_of
from lp_sweep.trials.spec.specs import TaskDefinition, TrialSpec

Record = Mapping[str, Any]
TAGS = ["lp-sweep", "layer-pruning"]


class Base(NamedTuple):
    """The pre-trained model."""

    name: str  # a hub id, or the last part of a folder's name
    of_hub: bool
    revision: str | None
    licence: str | None


class CardFacts(NamedTuple):
    """Facts on a card that the record lacks."""

    split: str  # on which it was scored
    base: Base
    label_names: Sequence[str]
    interval: Interval  # points
    full: Record | None  # the full model's record: same recipe, same seed
    speeds: Sequence[Record]  # rows of `speeds_of`
    loaded: float  # the score of the folder's answers in fp32, a share
    chosen: str = ""  # how this network was chosen
    taught_by: Record | None = None  # the profile of a student's teacher
    another: str | None = None  # why it is not quite the record's network
    modules: Sequence[str] = ()  # of the model's Sentence Transformers folder
    graphs: Sequence[ShippedGraph] = ()
    vocabulary: CutVocabulary | None = None  # if it has fewer pieces
    held_out: HeldOutScore | None = None  # if its task set rows aside


def trial_card(spec: TrialSpec, record: Record, facts: CardFacts) -> str:
    """The card of a fine-tuned network."""
    names = [_escaped(name) for name in facts.label_names]
    leak = ""
    if record.get("dev_in_train"):
        both = [record[name] for name in ("dev_in_train", "dev_relabelled", "dev_examples")]
        leak = also_in_train(*both)
    teacher = facts.base.name
    if spec.distill and spec.distill.teacher:
        row = facts.taught_by
        teacher = shown_name(row["model_fingerprint"], row["model"]) if row else "another model"
    return template_of(spec.task).render(
        facts._asdict()
        | {
            "front_matter": _front_matter(spec.task, record, facts),
            "spec": spec,
            "task": spec.task,
            "distill": spec.distill,
            "max_length": spec.recipe.max_length,
            "record": record,
            "metric": metric_name(record["metric"], record.get("positive")),
            "guess": guess_name(spec.task.kind),
            "leak": leak,
            "columns": [_escaped(name) for name in spec.task.text_columns],
            "classes": ("; " if any("," in name for name in names) else ", ").join(names),
            "teacher": teacher,
            "versions": dict(record["versions"] or ()),
            "compared": form_of(spec.task).compared,
        }
    )


def pruned_card(base: Base, depth: int, kept: Sequence[int], strategy: str, *, embeds: bool) -> str:
    """The card of a network that was pruned and not fine-tuned."""
    library = "sentence-transformers" if embeds else "transformers"
    template = templates().get_template("pruned.md.j2")
    return template.render(
        front_matter=_card_data(base, library_name=library),
        base=base,
        depth=depth,
        kept=kept,
        strategy=strategy,
        embeds=embeds,
    )


def template_of(task: TaskDefinition) -> Template:
    return templates().select_template([f"{task.kind}.md.j2", "card.md.j2"])


@cache
def templates() -> Environment:
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
        "signed": signed,
        "ranges": ranges,
    }
    return environment


def _escaped(text: str) -> str:
    return markdown_escape(printable(text))


def _front_matter(task: TaskDefinition, record: Record, facts: CardFacts) -> str:
    form, hub = form_of(task), hub_source(record["data_fingerprint"])
    metric = facts_of(record["metric"]).hub or str(record["metric"])
    name = f"{facts.base.name.rpartition('/')[2]}-{len(record['kept_layers'])}-layers"
    result = EvalResult(
        task_type=form.hub_task,
        dataset_type=str(hub.dataset) if hub else record["task"],
        dataset_name=record["task"],
        dataset_config=hub.config if hub else None,
        dataset_revision=hub.revision if hub else None,
        dataset_split=facts.split,
        metric_type=metric,
        metric_name=metric_name(record["metric"], record.get("positive")),
        metric_value=round(record["last"], 6),
    )
    return _card_data(
        facts.base,
        library_name=form.library,
        pipeline_tag=form.hub_task,
        datasets=[str(hub.dataset)] if hub else None,
        metrics=[metric],
        model_name=f"{name}-{record['task']}",
        eval_results=[result],
    )


def _card_data(base: Base, **more: Any) -> str:
    of_hub = base.name if base.of_hub else None
    return str(ModelCardData(base_model=of_hub, license=base.licence, tags=TAGS, **more).to_yaml())


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


def interval_of(record: Record, predictions: Sequence[Record]) -> Interval:
    """The interval of one network's score over dev rows, as in `table intervals`."""
    network = Network(record["trial_id"], record["metric"], "", 100 * record["last"])
    answers = answers_in(record, record["metric"], predictions)
    return intervals.interval_of([network], lambda _: answers)


def full_record(store: Store, spec: TrialSpec, depth: int) -> dict[str, Any] | None:
    """The record of all layers by the same recipe and seed; None if it is not stored or is this
    one."""
    whole = full_spec(spec, depth)
    rows = None if whole == spec else store.find("trials", trial_id(whole))
    return rows[0] if rows else None


def full_spec(spec: TrialSpec, depth: int) -> TrialSpec:
    """All layers by the same recipe and seed."""
    layers = full_layers(depth)
    direct = replace(spec, kept_layers=layers, removed_feed_forwards=(), procedure=DIRECT)
    return settled(replace(direct, distill=None), depth)


def speeds_of(store: Store, record: Record) -> list[Record]:
    """The speeds of the record's network, in the store's order: each with the columns of its
    profile and of its timing."""
    own = {name: record[name] for name in ("model_fingerprint", "kept_layers")}
    own |= {"measure": "speed", "removed_feed_forwards": []}
    return [
        row | timing
        for row in store.read_all("profiles").rows.to_pylist()
        if all((row[name] or []) == value for name, value in own.items())
        for timing in row["timings"] or ()
    ]


def _licence(card: Path) -> str | None:
    """The licence in a card's front matter."""
    try:
        found = (metadata_load(card) or {}).get("license")
    except (OSError, ValueError, yaml.YAMLError):  # no front matter
        return None
    return found if isinstance(found, str) else None
