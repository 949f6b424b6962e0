"""Reads what a folder of Sentence Transformers says: how tokens become a vector, and what changes
the vector afterwards. Imports no torch, so that planning can use it.

Modules that belong to the library and are known here are used as they are; any other is refused by
its name, since leaving it out would give other vectors.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.storage.printable import listed, shown

MODULES = "modules.json"
# beside the encoder's own files
_SETTINGS = (MODULES, "config_sentence_transformers.json", "sentence_*_config.json")
_POOLED, _TANH = "sentence_embedding", "torch.nn.Tanh"
_WEIGHED = ("Dense", "LayerNorm")  # modules with weights
_AFTER = (*_WEIGHED, "Normalize", "Dropout")  # modules that may follow the pooling
_ALONE = "its only module is Transformer, which makes no vector of a text"
_TASK, _STATES = "feature-extraction", "last_hidden_state"
# sentence_NAME_config.json, in the order in which Sentence Transformers looks for them
_NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
# the keys of older folders, in the order in which their vectors are joined
_OLDER = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
POOLING_KEYS = {name: key for key, name in _OLDER.items() if name in ("mean", "cls", "last")}


class Module(NamedTuple):
    """`path`: its folder, relative to the model's."""

    name: str
    path: str


class SentenceFolder(NamedTuple):
    """The modules of a folder, in order; none for a plain encoder, whose tokens are averaged.

    pooling: one or more modes. problem: a module that makes other vectors than can be made here.
    """

    modules: tuple[Module, ...] = ()
    pooling: tuple[str, ...] = ("mean",)
    includes_prompt: bool = True
    lower: bool = False  # texts are put into lower case first
    max_length: int | None = None  # tokens
    problem: str | None = None

    @property
    def pools_nothing(self) -> bool:
        """A cross-encoder, which scores texts and makes no vectors."""
        return self.problem == _ALONE

    @property
    def after(self) -> tuple[Module, ...]:
        """The modules after the pooling."""
        return self.modules[2:]

    @property
    def changing(self) -> tuple[Module, ...]:
        """Those that change the direction of vectors: up to the last module with weights."""
        ends = [i for i, module in enumerate(self.after, start=1) if module.name in _WEIGHED]
        return self.after[: max(ends, default=0)]

    @property
    def normalises(self) -> bool:
        return any(module.name == "Normalize" for module in self.after[len(self.changing) :])


def read_sentence_folder(folder: Path) -> SentenceFolder:
    try:
        content = (folder / MODULES).read_text(encoding="utf-8")
    except FileNotFoundError:
        return SentenceFolder()
    except (OSError, ValueError) as error:
        return SentenceFolder(problem=f"{MODULES} can't be read: {error}")
    try:
        items = [(str(item["type"]), str(item["path"])) for item in json.loads(content)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return SentenceFolder(problem=f"{MODULES} is no list of modules with a type and a path")
    modules = tuple(Module(kind.rpartition(".")[2], path) for kind, path in items)
    found = SentenceFolder(modules, problem=next(_problems(folder, items, modules), None))
    if found.problem:
        return found
    pooling, texts = _object(folder / modules[1].path / "config.json"), _settings(folder)
    length = texts.get("max_seq_length")
    return found._replace(
        pooling=_modes(pooling),
        includes_prompt=pooling.get("include_prompt") is not False,
        lower=texts.get("do_lower_case") is True,
        max_length=length if type(length) is int and length > 0 else None,
    )


def _problems(
    folder: Path, items: Sequence[tuple[str, str]], modules: Sequence[Module]
) -> Iterator[str]:
    """Yields why its vectors can't be made here; after the first reason the others may be wrong."""
    for kind, path in items:
        if kind.partition(".")[0] != "sentence_transformers":
            yield f"{MODULES} names {shown(kind)}, code of the model's own, which is not run"
        if not (folder / path).resolve().is_relative_to(folder.resolve()):
            yield f"{MODULES} names {shown(path)}, which is outside of the folder"
    names = [module.name for module in modules]
    if names[:1] == ["Transformer"] and (path := modules[0].path):
        yield (
            f"its Transformer is in {path}/. Move the files of {path}/ one folder up, and write "
            f'"path": "" for it in {MODULES}'
        )
    if names == ["Transformer"]:
        yield _ALONE
    if names[:2] != ["Transformer", "Pooling"]:
        yield f"its modules are {listed(names)}, and only Transformer, then Pooling can begin them"
    for module in modules[2:]:
        yield from _problems_after(folder / module.path, module)
    yield from _problems_before(_settings(folder), folder / modules[1].path)


def _problems_before(texts: dict[str, Any], pooling: Path) -> Iterator[str]:
    """Those of how the Transformer reads texts, and of the pooling."""
    by_text = _object_of(_object_of(texts.get("modality_config")).get("text"))
    read = by_text.get("method_output_name", _STATES), texts.get("transformer_task", _TASK)
    if read != (_STATES, _TASK):
        yield f"its Transformer gives {shown(read)}, not {shown((_STATES, _TASK))}"
    if unknown := sorted(set(_modes(_object(pooling / "config.json"))) - set(_OLDER.values())):
        yield f"module {pooling.name} (Pooling) has the unknown mode {listed(unknown)}"


def _problems_after(place: Path, module: Module) -> Iterator[str]:
    """Those of a module after the pooling."""
    named = f"module {module.path} ({module.name})"
    if module.name not in _AFTER:
        yield f"{named} is none of those that may follow a Pooling here: {', '.join(_AFTER)}"
    if module.name in _WEIGHED and not (place / "model.safetensors").is_file():
        yield (
            f"{named} has no model.safetensors, and pickled weights are never loaded. Save the "
            "model once, where it is trusted, with SentenceTransformer(folder).save(other)"
        )
    config = _object(place / "config.json")
    ends = {str(config.get(f"module_{end}_name") or _POOLED) for end in ("input", "output")}
    if ends != {_POOLED}:
        yield f"{named} changes {listed(sorted(ends))}, not the vector of a text"
    activation = str(config.get("activation_function", _TANH))
    if not activation.startswith("torch.nn."):
        yield f"{named} has the activation {shown(activation)}, which is not of torch.nn"


def _modes(config: dict[str, Any]) -> tuple[str, ...]:
    given = config.get("pooling_mode")
    if given is None:
        return tuple(mode for key, mode in _OLDER.items() if config.get(key) is True) or ("mean",)
    modes = given if isinstance(given, list) else [given]
    return tuple("last" if mode == "lasttoken" else str(mode) for mode in modes)


def _settings(folder: Path) -> dict[str, Any]:
    """How the Transformer reads texts: the first file that says something counts."""
    found = (_object(folder / f"sentence_{name}_config.json") for name in _NAMES)
    return next(filter(None, found), {})


def _object(path: Path) -> dict[str, Any]:
    """The content of a JSON file; {} without one."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return _object_of(content)


def _object_of(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def digest(folder: Path, modules: Sequence[Module]) -> str:
    """16 hex digits over the files of these modules; "" without modules."""
    whole = hashlib.sha256()
    for module in modules:
        whole.update(module.name.encode())
        for path in _files(folder / module.path):
            whole.update(f"\0{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:16] if modules else ""


def copy_modules(folder: Path, target: Path, modules: Sequence[Module]) -> None:
    for module in modules:
        place = target / module.path
        place.mkdir(parents=True, exist_ok=True)
        for path in _files(folder / module.path):
            shutil.copyfile(path, place / path.name)


def copy_settings(folder: Path, target: Path) -> None:
    """Prompts, similarity, the longest text, and the list of modules."""
    for pattern in _SETTINGS:
        for path in folder.glob(pattern):
            shutil.copyfile(path, target / path.name)


def _files(place: Path) -> list[Path]:
    return [
        path for name in ("config.json", "model.safetensors") if (path := place / name).is_file()
    ]
