"""The forms of exported networks, one for each kind of task.

A form knows the folder's files, the class that loads it, and what the check compares. The words of
its model card are in `templates/`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lp_sweep.orchestrator.export.places import DevRows
from lp_sweep.orchestrator.export.verify import AnswerPair, ScorePair
from lp_sweep.storage.errors import ExportError
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.rankmetrics import similarities
from lp_sweep.trials.kinds.tokens import SILENT
from lp_sweep.trials.model.sentencefolder import (
    MODULES,
    POOLING_KEYS,
    Module,
    SentenceFolder,
    copy_modules,
    digest,
    read_sentence_folder,
)
from lp_sweep.trials.spec.specs import TaskDefinition, TaskKind, TrialSpec
from lp_sweep.trials.train.metrics import of_tally, score


class Form:
    """The form of a network with a head for classes or for a number; others change parts of it."""

    loads = "AutoModelForSequenceClassification"  # a class of transformers
    compared = "logit"  # what the check compares, in the singular
    hub_task = "text-classification"  # the hub's name for the task
    library = "transformers"

    def finish(self, folder: Path, spec: TrialSpec, model: Path | None) -> None:
        """Completes the kept network in `folder` for its users. `model`: the folder of the model
        that it was made from, if it has modules of Sentence Transformers."""

    def answers(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> AnswerPair:
        """The stored answers for the dev rows, and the folder's, from the values of
        `trials.model.plainload`."""
        return AnswerPair(spec.task, rows.logits, values)


_ACTIVATIONS = {
    "": "torch.nn.modules.activation.Sigmoid",
    "listwise": "torch.nn.modules.linear.Identity",
}


class CrossEncoder(Form):
    """A classifier of one logit that Sentence Transformers loads."""

    hub_task = "text-ranking"
    library = "sentence-transformers"

    def finish(self, folder: Path, spec: TrialSpec, model: Path | None) -> None:
        """Sentence Transformers reads the length from the tokenizer, and the activation after the
        logit from the config."""
        told = {"sentence_transformers": {"activation_fn": _ACTIVATIONS[spec.task.loss]}}
        _add(folder / "config.json", told)
        _add(folder / "tokenizer_config.json", {"model_max_length": spec.recipe.max_length})


def _add(path: Path, keys: Mapping[str, Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | keys
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class Tagger(Form):
    """A network with a head for each token; the logits of each word's first token are compared."""

    loads = "AutoModelForTokenClassification"
    hub_task = "token-classification"

    def finish(self, folder: Path, spec: TrialSpec, model: Path | None) -> None:
        """A pipeline cuts texts to the length that the tokenizer states."""
        _add(folder / "tokenizer_config.json", {"model_max_length": spec.recipe.max_length})

    def answers(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> AnswerPair:
        there = rows.logits[..., 0] > SILENT  # (n, W): the words that have a tag
        found = AnswerPair(spec.task, rows.logits[there], values)
        if values.shape != found.stored.shape:  # the check will refuse it
            return found
        logits = rows.logits.copy()
        logits[there] = values
        stored, own = (
            score(spec.task, rows.labels, each, rows.label_names)[spec.task.metric]
            for each in (rows.logits, logits)
        )
        return found._replace(scores=ScorePair(stored, own, 0.0))


_LIBRARY = "sentence_transformers.models"


class BiEncoder(Form):
    """A bare encoder that Sentence Transformers loads; cosines of pairs are compared."""

    loads = "AutoModel"
    compared = "cosine"
    hub_task = "sentence-similarity"
    library = "sentence-transformers"

    def finish(self, folder: Path, spec: TrialSpec, model: Path | None) -> None:
        """Removes the head, and writes the files of Sentence Transformers. Modules that the trial
        was scored with are the model's own. Raises ExportError if these have changed."""
        config = _bare_encoder(folder)
        # FastEmbed reads no other length
        _add(folder / "tokenizer_config.json", {"model_max_length": spec.recipe.max_length})
        modules = [Module("Transformer", ""), Module("Pooling", "1_Pooling")]
        own = read_sentence_folder(model) if model else SentenceFolder()
        if spec.modules:
            if model is None or digest(model, own.changing) != spec.modules:
                raise ExportError(
                    "the modules that followed the pooling when the network was scored (Dense) are "
                    "not in the model's folder. Put back the folder that the sweep read."
                )
            copy_modules(model, folder, own.changing)
            modules += own.changing
        if own.normalises and not spec.task.similarity:
            modules.append(Module("Normalize", f"{len(modules)}_Normalize"))
        listed = [
            {"idx": index, "name": str(index), "path": path, "type": f"{_LIBRARY}.{name}"}
            for index, (name, path) in enumerate(modules)
        ]
        pooling: dict[str, Any] = {"word_embedding_dimension": config.hidden_size}
        pooling |= {key: name == spec.task.pooling for name, key in POOLING_KEYS.items()}
        length = {"max_seq_length": spec.recipe.max_length, "do_lower_case": False}
        prompts = {"query": spec.task.query_prompt, "document": spec.task.document_prompt}
        similarity: dict[str, Any] = {
            "prompts": {name: text for name, text in prompts.items() if text},
            "default_prompt_name": None,
            "similarity_fn_name": spec.task.similarity or "cosine",
        }
        for module in modules:
            (folder / module.path).mkdir(exist_ok=True)
        for name, content in {
            MODULES: listed,
            "sentence_bert_config.json": length,
            "config_sentence_transformers.json": similarity,
            "1_Pooling/config.json": pooling,
            **{f"{each.path}/config.json": {} for each in modules if each.name == "Normalize"},
        }.items():
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")

    def answers(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> AnswerPair:
        found = kind_of(spec.task).answers(values)[:, None]
        return AnswerPair(_numbers(spec.task), rows.predicted[:, None], found)


def _numbers(task: TaskDefinition) -> TaskDefinition:
    """The task whose answers are compared: a number for each pair."""
    return TaskDefinition(text_columns=task.text_columns, kind="regression", metric=task.metric)


class Searcher(BiEncoder):
    """A bi-encoder scored by search; similarities to the relevant documents are compared."""

    def answers(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> AnswerPair:
        """Rounding may swap near ties, which changes the score by at most one query's share."""
        found = similarities(rows.labels, values, dot=bool(spec.task.similarity))[:, None]
        stored = of_tally(np.array(rows.tallies, np.float64))
        finite = np.isfinite(values).all()
        own = score(spec.task, rows.labels, values)[spec.task.metric] if finite else np.nan
        scores = ScorePair(stored, own, 1 / len(rows.predicted))
        return AnswerPair(_numbers(spec.task), rows.logits.reshape(-1, 1), found, scores)


def _bare_encoder(folder: Path) -> Any:
    """Replaces the classifier in `folder` by its encoder, with its pooler if it has one. Returns
    the config."""
    from lp_sweep.trials.model.load import load_network, quiet

    with quiet():
        model = load_network(folder).base_model
        model.config.problem_type = None
        model.config.num_labels = 2  # the default of a config
        # the network may still read these files: they are removed, not overwritten
        for path in [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]:
            path.unlink()
        model.save_pretrained(folder)
    return model.config


_FORMS: dict[TaskKind, type[Form]] = {
    "embedding": BiEncoder,
    "retrieval": Searcher,
    "ranking": CrossEncoder,
    "tokens": Tagger,
}


def form_of(definition: TaskDefinition) -> Form:
    form = _FORMS.get(definition.kind, Form)()
    if definition.similarity:
        form.compared = "dot product"
    return form
