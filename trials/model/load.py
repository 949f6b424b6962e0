"""Load a checkpoint with a head for the task: safetensors only, no code from the checkpoint.

The head is initialised in a second step, after layers are removed, so that it does not depend on
how many are left. `load_network` and `read_whole` read a checkpoint with what it has.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    MODEL_MAPPING,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.trials.kinds import ProblemType
from lp_sweep.trials.model.families import embedding_path, find_layers
from lp_sweep.trials.model.feedforward import reduced_class, removal_of
from lp_sweep.trials.model.modelfiles import family_problem
from lp_sweep.trials.model.plainload import load, plain_config

NOT_SAFETENSORS = (
    "its weights can't be read as safetensors, and pickled weights are never loaded. Choose a "
    "revision that has model.safetensors, or convert the model once, where it is trusted, with "
    "save_pretrained, and name that folder"
)


class LoadedEncoder(NamedTuple):
    model: PreTrainedModel
    fresh: frozenset[str]  # names of the parameters that the checkpoint does not have


def load_encoder(
    path: str | Path,
    *,
    num_labels: int,
    problem_type: ProblemType,
    revision: str | None = None,
    local_files_only: bool = False,
) -> LoadedEncoder:
    """Load a checkpoint with a head for the task; `initialise_head` then draws the head.

    A head of other sizes in the checkpoint is not used; removed feed-forwards stay removed. The
    global random state is unchanged. Raises UnsupportedModelError for ALBERT, encoder-decoders,
    models with code of their own, and models without a layer list; MissingInputError if the model
    is absent, has no safetensors or lacks encoder weights.
    """
    # otherwise the hub's conversion bot may serve another revision than the recorded one
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    source = {"revision": revision, "local_files_only": local_files_only}
    config = _config(path, "Check the name, the revision and the network", **source)
    _refuse_family(config)  # before weights are downloaded
    config.num_labels = num_labels
    # transformers only knows problem types of sequences
    config.problem_type = None if problem_type == "token_classification" else problem_type
    for name in ("use_mems_eval", "use_mems_train"):  # XLNet: memories break on a ragged last batch
        if hasattr(config, name):
            setattr(config, name, False)
    kind = _classifier(config, problem_type)
    model, info = _read(kind, path, config, dtype=torch.float32, **source)
    fresh = frozenset(_absent(info))
    embedding_path(model)  # raises now, not after hours of training
    _refuse_incomplete(model, fresh, path)
    return LoadedEncoder(model, fresh)


def load_network(
    folder: str | Path, *, bare: bool = False, local_files_only: bool = True
) -> PreTrainedModel:
    """Load what `save_pretrained` wrote, with or without feed-forwards, in eval mode on the CPU.

    The class is the one in the config, or the `bare` encoder's, whose pooler may be new: no vector
    needs it. Every other weight must be in the checkpoint, and a reduced network's checkpoint must
    hold no other. Raises MissingInputError or UnsupportedModelError.
    """
    config = _config(folder, "Check the name", local_files_only=local_files_only)
    name = next(iter(config.architectures or []), None)
    if bare and type(config) in MODEL_MAPPING:
        name = MODEL_MAPPING[type(config)].__name__
    kind = getattr(transformers, name, None) if name else None
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise UnsupportedModelError(
            f"model {str(folder)!r}: its config names the class {name!r}, which transformers does "
            "not have. Use a folder that save_pretrained wrote."
        )
    is_reduced = removal_of(config) is not None
    kind = reduced_class(kind) if is_reduced else kind
    model, info = _read(kind, folder, config, local_files_only=local_files_only)
    misfits = _absent(info) | set(info["unexpected_keys"] if is_reduced else ())
    misfits = {name for name in misfits if not (bare and name.startswith("pooler."))}
    if misfits:
        raise MissingInputError(
            f"model {str(folder)!r}: {len(misfits)} weights are missing, have another shape or "
            f"have no place in the network, for example {min(misfits)!r}. "
            "Check that its config and its weights belong together."
        )
    return model


def read_whole(folder: Path) -> tuple[PreTrainedModel, dict[str, list[str]]]:
    """The encoder of a checkpoint, and the weights that the checkpoint lacks, for each class of
    transformers to load it with: AutoModel, and those that its config names (it may name anything).

    Raises MissingInputError or UnsupportedModelError, as `load_encoder` does.
    """
    with quiet(), loading_errors(folder, NOT_SAFETENSORS):
        model, absent = load(folder, "AutoModel")
        missing = {"AutoModel": absent}
        for name in model.config.architectures or ():
            kind = getattr(transformers, str(name), None)
            if isinstance(kind, type) and issubclass(kind, PreTrainedModel):
                missing[name] = load(folder, name)[1]
    _refuse_family(model.config)
    if removal_of(model.config) is not None:
        raise UnsupportedModelError(
            f"{folder}: it lost feed-forwards in a sweep, and plain transformers can't load it. "
            "Name its original model."
        )
    return model, missing


def initialise_head(model: PreTrainedModel, fresh: Collection[str], seed: int) -> None:
    """Draw only the parameters in `fresh` from `seed`, by the model's own rule.

    Call it after pruning. The draw does not depend on the number of layers: a rule that uses the
    depth (ModernBERT's) sees the original one. The global random state is unchanged.
    """
    for name, parameter in model.named_parameters():
        parameter._is_hf_initialized = name not in fresh
    for buffer in model.buffers():
        buffer._is_hf_initialized = True
    for module in model.modules():
        module._is_hf_initialized = False
    config, field = model.config, find_layers(model).depth_field
    depth = getattr(config, field)
    setattr(config, field, getattr(config, "lp_sweep_original_depth", depth))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            model.initialize_weights()
    finally:
        setattr(config, field, depth)


def _config(path: str | Path, check: str, **source: Any) -> PretrainedConfig:
    with loading_errors(path, f"it can't be found. {check}"):
        config: PretrainedConfig = plain_config(str(path), **source)
        return config


def _read(
    kind: Any, path: str | Path, config: PretrainedConfig, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The network, and transformers' report of weights that did not fit, which callers refuse."""
    # loading draws random numbers
    with torch.random.fork_rng(devices=[]), quiet(), loading_errors(path, NOT_SAFETENSORS):
        model, info = kind.from_pretrained(
            str(path),
            config=config,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
    return model.eval(), info


def _absent(info: dict[str, Any]) -> set[str]:
    """Weights that the checkpoint lacks or has in another shape."""
    return {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}


def _refuse_family(config: PretrainedConfig) -> None:
    if problem := family_problem(config.to_dict()):
        raise UnsupportedModelError(problem)


def _classifier(config: PretrainedConfig, problem_type: ProblemType) -> Any:
    of_tokens = problem_type == "token_classification"
    if removal_of(config) is None:
        return AutoModelForTokenClassification if of_tokens else AutoModelForSequenceClassification
    # the plain class would put random linears where the checkpoint has none
    classes = (
        MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        if of_tokens
        else MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    )
    return reduced_class(classes[type(config)])


def _refuse_incomplete(model: PreTrainedModel, fresh: Collection[str], path: str | Path) -> None:
    """A pooler may be new, other weights of the encoder may not. The check of a plan finds NaN in
    local folders alone."""
    prefix = f"{model.base_model_prefix}."
    if absent := sorted(k for k in fresh if k.startswith(prefix) and "pooler" not in k):
        raise MissingInputError(
            f"model {str(path)!r}: {len(absent)} weights of the encoder are not in the checkpoint "
            f"or have another shape, for example {absent[0]!r}. "
            "Check that its config and its weights belong together."
        )
    for name, parameter in model.named_parameters():
        if name not in fresh and not parameter.isfinite().all():
            raise MissingInputError(
                f"model {str(path)!r}: {name} has numbers that are NaN or infinite, so every score "
                "would be. Fetch the model again, or name another revision."
            )


@contextmanager
def loading_errors(path: str | Path, problem: str) -> Iterator[None]:
    """Turns loading errors into MissingInputError (naming `problem`) or UnsupportedModelError."""
    try:
        yield
    except (OSError, SafetensorError, StrictDataclassError) as error:
        raise MissingInputError(f"model {str(path)!r}: {problem}. ({error})") from error
    except (ValueError, KeyError, ImportError) as error:
        raise UnsupportedModelError(
            f"model {str(path)!r}: transformers has no classifier of its own for it, and "
            f"code that comes with a model is not run. Use a model of a built-in type. ({error})"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the library's progress bars and its report of new weights."""
    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
