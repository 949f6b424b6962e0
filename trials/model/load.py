"""Load a checkpoint with a head for the task: safetensors only, no code from the checkpoint.

The head is initialised in a second step, after layers are removed, so that it does not depend on
how many are left.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.trials.kinds import ProblemType
from lp_sweep.trials.model.families import embedding_path, find_layers, refuse_family
from lp_sweep.trials.model.plainload import plain_config
from lp_sweep.trials.model.reduced import reduced_class, removal_of

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

    A head of other sizes in the checkpoint is not used; removed feed-forwards stay removed.
    The global random state is unchanged.
    Raises UnsupportedModelError for ALBERT, encoder-decoders, models with code of their own, and
    models without a layer list; MissingInputError if the model is absent, has no safetensors or
    lacks encoder weights.
    """
    # otherwise the hub's conversion bot may serve another revision than the recorded one
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    source = {"revision": revision, "local_files_only": local_files_only}
    with loading_errors(path, "it can't be found. Check the name, the revision and the network"):
        config = plain_config(str(path), **source)
    refuse_family(config)
    config.num_labels = num_labels
    # transformers only knows problem types of sequences
    config.problem_type = None if problem_type == "token_classification" else problem_type
    for name in ("use_mems_eval", "use_mems_train"):  # XLNet: memories break on a ragged last batch
        if hasattr(config, name):
            setattr(config, name, False)
    # loading draws random numbers
    with torch.random.fork_rng(devices=[]), quiet(), loading_errors(path, NOT_SAFETENSORS):
        model, info = _class_for(config, problem_type).from_pretrained(
            str(path),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # a head for other labels; the encoder is checked below
            output_loading_info=True,
            **source,
        )
    fresh = frozenset(info["missing_keys"]) | {key for key, *_ in info["mismatched_keys"]}
    embedding_path(model)  # raises now, not after hours of training
    _refuse_incomplete(model, fresh, path)
    _refuse_odd_numbers(model, fresh, path)
    return LoadedEncoder(model.eval(), fresh)


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
    with torch.random.fork_rng(devices=[]), _original_depth(model):
        torch.default_generator.manual_seed(seed)
        model.initialize_weights()


def trained_head(model: PreTrainedModel) -> frozenset[str]:
    """The parameters outside the encoder, if the checkpoint was a classifier: a sweep draws its
    heads from its seeds."""
    heads = ("ForSequenceClassification", "ForTokenClassification")
    if not any(kind.endswith(heads) for kind in model.config.architectures or ()):
        return frozenset()
    encoder = f"{model.base_model_prefix}."
    return frozenset(n for n, _ in model.named_parameters() if not n.startswith(encoder))


def _class_for(config: PretrainedConfig, problem_type: ProblemType) -> Any:
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
    """A pooler may be new, other weights of the encoder may not."""
    prefix = f"{model.base_model_prefix}."
    absent = sorted(k for k in fresh if k.startswith(prefix) and "pooler" not in k)
    if absent:
        raise MissingInputError(
            f"model {str(path)!r}: {len(absent)} weights of the encoder are not in the checkpoint "
            f"or have another shape, for example {absent[0]!r}. "
            "Check that its config and its weights belong together."
        )


def _refuse_odd_numbers(model: PreTrainedModel, fresh: Collection[str], path: str | Path) -> None:
    """The check of a plan finds them in local folders alone."""
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


@contextmanager
def _original_depth(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the config has the depth before any pruning."""
    config, field = model.config, find_layers(model).depth_field
    depth = getattr(config, field)
    setattr(config, field, getattr(config, "lp_sweep_original_depth", depth))
    try:
        yield
    finally:
        setattr(config, field, depth)
