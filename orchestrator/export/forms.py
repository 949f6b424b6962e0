"""The forms of exported networks, one for each kind of task.

A form knows the folder's files, the class that loads it, what the check compares, and the words of
the model card. Names that it gets for the card are already escaped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lp_sweep.orchestrator.export.places import DevRows
from lp_sweep.orchestrator.export.verify import Scores
from lp_sweep.storage.errors import ExportError, SpecError
from lp_sweep.storage.specs import Distillation, TaskDefinition, TaskKind, TrialSpec
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.search import similarities
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
from lp_sweep.trials.train.metrics import of_tally, score
from lp_sweep.trials.train.procedures import UNTRAINED

Record = Mapping[str, Any]


class Compared(NamedTuple):
    """The answers that the folder must give, (n, C), scored as a task of this definition."""

    definition: TaskDefinition
    stored: np.ndarray


class Form:
    """The form of a network with a head for classes or for a number; others change parts of it."""

    loads = "AutoModelForSequenceClassification"  # a class of transformers
    compared = "logit"  # what the check compares, in the singular
    hub_task = "text-classification"  # the hub's name for the task
    library = "transformers"
    lead = ""  # the card's first sentence with a blank at its end, or ""
    whole = "same recipe and seed"  # follows "all 12 layers" at the full model's score

    def refuse_onnx(self, trial: str) -> None:
        """Raises SpecError if ONNX is not supported."""

    def finish(self, folder: Path, spec: TrialSpec, model: Path | None) -> None:
        """Completes the kept network in `folder` for its users. `model`: the folder of the model
        that it was made from, if it has modules of Sentence Transformers."""

    def expected(self, spec: TrialSpec, rows: DevRows) -> Compared:
        """The stored answers for the dev rows."""
        return Compared(spec.task, rows.logits)

    def answered(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> np.ndarray:
        """The folder's answers, from the values of `trials.model.plainload`."""
        return values

    def scores(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> Scores | None:
        """The scores of the stored and of the folder's answers; None if the compared numbers
        determine them."""
        return None

    def made(self, spec: TrialSpec, task: str) -> str:
        """How the network was made, to follow "6 layers of bert, "."""
        return f"fine-tuned on {task}"

    def teacher(self, distill: Distillation) -> str:
        """Describes the teacher, to follow a model's name."""
        learned = "a classifier that had learned the task"
        return learned if distill.fine_tuned else "all layers (K=0)"

    def loss(self, spec: TrialSpec, distill: Distillation) -> str:
        classes = spec.task.kind in ("classification", "tokens")
        at = f" at temperature T={distill.temperature:g}" if classes else ""
        weight = distill.hidden_weight
        hidden = f" + {weight:g} × hidden states" if weight else ""
        labels = f"{1 - distill.alpha:g} × labels"
        logits = f"{distill.alpha:g} × teacher's logits{at}{hidden}"
        return f"{labels} + {logits} (alpha={distill.alpha:g})"

    def usage(self, spec: TrialSpec, modules: Sequence[str]) -> str:
        """Markdown with code that runs in the folder."""
        return _CLASSIFY.format(length=spec.recipe.max_length)

    def inputs(self, columns: Sequence[str], most: str) -> str:
        """Describes the input: its columns, `most` (the limit in words), and how to give a pair."""
        pair = ' A pair goes in as `classify({"text": first, "text_pair": second})`.'
        return f"{' and '.join(columns)}, {most}.{pair if len(columns) > 1 else ''}"


_CLASSIFY = """\
```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

folder = "."  # where this README.md is, or the model's name on the hub
model = AutoModelForSequenceClassification.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
classify = pipeline("text-classification", model=folder, truncation=True, max_length={length})
```"""

_LABEL = """\
```python
from transformers import pipeline

folder = "."  # where this README.md is, or the model's name on the hub
cut = {{"truncation": True, "max_length": {length}}}
label = pipeline("text-classification", model=folder, top_k=None, **cut)
(found,) = label(["A text."])  # the probability of each label
print([each["label"] for each in found if each["score"] > 0.5])
```"""


class MultiLabeller(Form):
    """A classifier whose labels do not exclude each other."""

    def loss(self, spec: TrialSpec, distill: Distillation) -> str:
        return super().loss(spec, distill).replace("teacher's logits", "teacher's probabilities")

    def usage(self, spec: TrialSpec, modules: Sequence[str]) -> str:
        usage = _LABEL.format(length=spec.recipe.max_length)
        if not spec.task.tune_thresholds:
            return usage
        return (
            f"{usage}\n\nThe threshold of each label was chosen on the train rows, for its F1, and "
            "is a part of the head's bias. So 0.5 decides, and the scores are no calibrated "
            "probabilities."
        )

    def inputs(self, columns: Sequence[str], most: str) -> str:
        return super().inputs(columns, most).replace("classify(", "label(")


_RANK = """\
```python
from sentence_transformers import CrossEncoder

model = CrossEncoder(".")  # where this README.md is, or the model's name on the hub
query, passages = "Where does a cat sleep?", ["A cat sleeps on the roof.", "Dogs bark."]
print(model.rank(query, passages))
```

The same with transformers alone:

```python
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = "."
model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
query, passages = "Where does a cat sleep?", ["A cat sleeps on the roof.", "Dogs bark."]
cut = {{"padding": True, "truncation": True, "max_length": {length}}}
inputs = tokenizer([query] * len(passages), passages, **cut, return_tensors="pt")
with torch.no_grad():
    scores = model(**inputs).logits[:, 0]
print(scores.argsort(descending=True))
```"""
_ACTIVATIONS = {
    "": "torch.nn.modules.activation.Sigmoid",
    "listwise": "torch.nn.modules.linear.Identity",
}


class CrossEncoder(Form):
    """A classifier of one logit that Sentence Transformers loads."""

    hub_task = "text-ranking"
    library = "sentence-transformers"
    lead = "A cross-encoder reads a query with a passage and says how relevant the passage is. "

    def finish(self, folder: Path, spec: TrialSpec, model: Path | None) -> None:
        """Sentence Transformers reads the length from the tokenizer, and the activation after the
        logit from the config."""
        told = {"sentence_transformers": {"activation_fn": _ACTIVATIONS[spec.task.loss]}}
        _add(folder / "config.json", told)
        _add(folder / "tokenizer_config.json", {"model_max_length": spec.recipe.max_length})

    def usage(self, spec: TrialSpec, modules: Sequence[str]) -> str:
        return _RANK.format(length=spec.recipe.max_length)

    def inputs(self, columns: Sequence[str], most: str) -> str:
        return f"a pair, {columns[0]} first and {columns[1]} second, {most}."


def _add(path: Path, keys: Mapping[str, Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8")) | keys
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


_TAG = """\
```python
from transformers import pipeline

folder = "."  # where this README.md is, or the model's name on the hub
tag = pipeline("token-classification", model=folder{how})
for found in tag("Ann left New York."):
    print(found)
```

{note}"""
_JOINED = (
    'A word has the tag of its first token, which `aggregation_strategy="first"` takes, and words '
    "of one entity come together if the tags are BIO; leave it out for BIOES."
)
_EACH = "It gives a tag for each token; that of a word is that of its first token."


class Tagger(Form):
    """A network with a head for each token; the logits of each word's first token are compared."""

    loads = "AutoModelForTokenClassification"
    hub_task = "token-classification"
    lead = "It gives each word of a text a tag. "

    def refuse_onnx(self, trial: str) -> None:
        raise SpecError(
            f"{trial} is of a task of kind tokens, and --onnx writes classifiers of texts alone. "
            "Leave it out; optimum's `ORTModelForTokenClassification.from_pretrained(folder, "
            "export=True)` makes the graph."
        )

    def finish(self, folder: Path, spec: TrialSpec, model: Path | None) -> None:
        """A pipeline cuts texts to the length that the tokenizer states."""
        _add(folder / "tokenizer_config.json", {"model_max_length": spec.recipe.max_length})

    def expected(self, spec: TrialSpec, rows: DevRows) -> Compared:
        return Compared(spec.task, rows.logits[self._answered(rows)])

    def scores(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> Scores | None:
        there = self._answered(rows)
        if values.shape != rows.logits[there].shape:  # the check will refuse it
            return Scores(0.0, 0.0, 0.0)
        logits = rows.logits.copy()
        logits[there] = values
        stored, found = (
            score(spec.task, rows.labels, each, rows.label_names)[spec.task.metric]
            for each in (rows.logits, logits)
        )
        return Scores(stored, found, 0.0)

    @staticmethod
    def _answered(rows: DevRows) -> np.ndarray:
        """Which words have a tag: (n, W)."""
        return np.asarray(rows.logits[..., 0] > SILENT)

    def usage(self, spec: TrialSpec, modules: Sequence[str]) -> str:
        joined = spec.task.metric == "entity_f1"
        how = ', aggregation_strategy="first"' if joined else ""
        return _TAG.format(how=how, note=_JOINED if joined else _EACH)

    def inputs(self, columns: Sequence[str], most: str) -> str:
        return f"a text such as the words of {columns[0]} with blanks between, {most}."


_EMBED = """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")  # where this README.md is, or the model's name on the hub
vectors = model.encode(["A cat sleeps.", "A cat is asleep."]{by})
print(model.similarity(vectors, vectors))
```

The same with transformers alone:

```python
import torch
from transformers import AutoModel, AutoTokenizer

folder = "."
model = AutoModel.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
texts = {texts}
cut = {{"padding": True, "truncation": True, "max_length": {length}}}
inputs = tokenizer(texts, **cut, return_tensors="pt")
with torch.no_grad():
    states = model(**inputs).last_hidden_state  # (texts, tokens, width)
mask = inputs["attention_mask"]
{pooled}
print({alike})
```"""
_TEXTS = '["A cat sleeps.", "A cat is asleep."]'
_NORMALISED = "vectors = torch.nn.functional.normalize(vectors)"
_LAST = "mask.shape[1] - 1 - mask.flip(1).argmax(1)"


_POOLED = {
    "mean": "(states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
    "cls": "states[torch.arange(len(texts)), mask.argmax(1)]",
    "last": f"states[torch.arange(len(texts)), {_LAST}]",
}
_OURS = ("Transformer", "Pooling", "Normalize")  # modules that an exported folder can have


class BiEncoder(Form):
    """A bare encoder that Sentence Transformers loads; cosines of pairs are compared."""

    loads = "AutoModel"
    compared = "cosine"
    hub_task = "sentence-similarity"
    library = "sentence-transformers"
    lead = "A bi-encoder maps a text to a vector; texts that are alike have similar vectors. "
    whole = "untrained"

    def refuse_onnx(self, trial: str) -> None:
        raise SpecError(
            f"{trial} is of an embedding task, and --onnx writes classifiers alone. Leave it out; "
            'sentence_transformers.SentenceTransformer(folder, backend="onnx") makes the graph.'
        )

    def finish(self, folder: Path, spec: TrialSpec, model: Path | None) -> None:
        """Removes the head, and writes the files of Sentence Transformers. Modules that the trial
        was scored with are the model's own. Raises ExportError if these have changed."""
        config = _bare_encoder(folder)
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
            {
                "idx": index,
                "name": str(index),
                "path": module.path,
                "type": f"sentence_transformers.models.{module.name}",
            }
            for index, module in enumerate(modules)
        ]
        pooling: dict[str, Any] = {"word_embedding_dimension": config.hidden_size}
        pooling |= {key: name == spec.task.pooling for name, key in POOLING_KEYS.items()}
        length = {"max_seq_length": spec.recipe.max_length, "do_lower_case": False}
        similarity: dict[str, Any] = {
            "prompts": _prompts(spec.task),
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

    def expected(self, spec: TrialSpec, rows: DevRows) -> Compared:
        numbers = TaskDefinition(
            text_columns=spec.task.text_columns, kind="regression", metric=spec.task.metric
        )
        return Compared(numbers, rows.predicted[:, None])

    def answered(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> np.ndarray:
        return kind_of(spec.task).answers(values)[:, None]

    def made(self, spec: TrialSpec, task: str) -> str:
        if spec.procedure == UNTRAINED:
            return "untrained, with the weights that they have there"
        if spec.loss == "cosent":
            return f"trained on pairs of {task} with scores (CoSENT)"
        if spec.loss == "in_batch_negatives":
            return f"trained on pairs of {task} that belong together (in-batch negatives)"
        return f"trained without labels to imitate the vectors of all layers, on texts of {task}"

    def teacher(self, distill: Distillation) -> str:
        return "all layers, untrained (K=0)"

    def loss(self, spec: TrialSpec, distill: Distillation) -> str:
        squared = spec.loss == "imitate_mse" or spec.task.similarity
        near = "mean squared difference" if squared else "1 − cosine"
        alike = " + squared differences of the similarities in a batch"
        also = alike if spec.loss == "imitate_similarities" else ""
        return f"{near} to the teacher's vector of each train text{also}; no labels"

    def usage(self, spec: TrialSpec, modules: Sequence[str]) -> str:
        lines = [f"vectors = {_POOLED[spec.task.pooling]}"]
        lines += [_NORMALISED] if "Normalize" in modules and not spec.task.similarity else []
        alike = "torch.cosine_similarity(vectors[0], vectors[1], dim=0)"
        prompt = spec.task.document_prompt
        code = _EMBED.format(
            length=spec.recipe.max_length,
            pooled="\n".join(lines),
            alike="vectors[0] @ vectors[1]" if spec.task.similarity else alike,
            by=', prompt_name="document"' if prompt else "",
            texts=f"[{json.dumps(prompt)} + text for text in {_TEXTS}]" if prompt else _TEXTS,
        )
        others = ", ".join(name for name in modules if name not in _OURS)
        if spec.modules:  # which the code without the library lacks
            code = code.partition("\n\nThe same with")[0] + f"\n\nWith the model's own {others}."
        elif others:
            code += f"\n\nWithout the model's own {others}: it was scored without."
        query = '\n\nA query goes in with `prompt_name="query"`.'
        return code + query * bool(spec.task.query_prompt)

    def inputs(self, columns: Sequence[str], most: str) -> str:
        return f"one text, such as {' or '.join(columns)}, {most}."


class Searcher(BiEncoder):
    """A bi-encoder scored by search; similarities to the relevant documents are compared."""

    lead = "A bi-encoder maps queries and documents to vectors; near ones belong together. "

    def expected(self, spec: TrialSpec, rows: DevRows) -> Compared:
        numbers = TaskDefinition(text_columns=(), kind="regression", metric=spec.task.metric)
        return Compared(numbers, rows.logits.reshape(-1, 1))

    def answered(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> np.ndarray:
        return similarities(rows.labels, values, dot=bool(spec.task.similarity))[:, None]

    def scores(self, spec: TrialSpec, rows: DevRows, values: np.ndarray) -> Scores | None:
        """Rounding may swap near ties, which changes the score by at most one query's share."""
        stored = of_tally(np.array(rows.tallies, np.float64))
        finite = np.isfinite(values).all()
        found = score(spec.task, rows.labels, values)[spec.task.metric] if finite else np.nan
        return Scores(stored, found, 1 / len(rows.said))

    def inputs(self, columns: Sequence[str], most: str) -> str:
        return f"one text, a query or a document (title and text), {most}."


def _prompts(task: TaskDefinition) -> dict[str, str]:
    named = {"query": task.query_prompt, "document": task.document_prompt}
    return {name: text for name, text in named.items() if text}


def _bare_encoder(folder: Path) -> Any:
    """Replaces the classifier in `folder` by its encoder, with its pooler if it has one. Returns
    the config."""
    from transformers import AutoModelForSequenceClassification

    from lp_sweep.trials.model.load import quiet

    bare = folder / ".bare"
    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(folder).base_model
        model.config.problem_type = None
        model.config.num_labels = 2  # the default of a config
        model.save_pretrained(bare)
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")]:
        path.unlink()
    for path in bare.iterdir():
        path.replace(folder / path.name)
    shutil.rmtree(bare)
    return model.config


_FORMS: dict[TaskKind, type[Form]] = {
    "classification": Form,
    "regression": Form,
    "embedding": BiEncoder,
    "retrieval": Searcher,
    "multi_label": MultiLabeller,
    "ranking": CrossEncoder,
    "tokens": Tagger,
}


def form_of(definition: TaskDefinition) -> Form:
    form = _FORMS[definition.kind]()
    if definition.similarity:
        form.compared = "dot product"
    return form
