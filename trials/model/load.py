"""From a checkpoint to a network with a head for the task: safetensors only, no foreign code.

Loading and the head's initialisation are two steps, because layers are removed in between: the head
must not depend on how many are left.
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
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from lp_sweep.storage.errors import MissingInputError, UnsupportedModelError
from lp_sweep.trials.kinds import ProblemType
from lp_sweep.trials.model.families import embedding_path, find_layers, refuse_family
from lp_sweep.trials.model.reduced import reduced_class, removal_of

NOT_SAFETENSORS = (
    "its weights can't be read as safetensors, and pickled weights are never loaded. Choose a "
    "revision that has model.safetensors, or convert the model once, where it is trusted, with "
    "save_pretrained, and name that folder"
)


class LoadedEncoder(NamedTuple):
    """A network as its checkpoint holds it, and the parameters the checkpoint doesn't hold."""

    model: PreTrainedModel
    fresh: frozenset[str]


def load_encoder(
    path: str | Path,
    *,
    num_labels: int,
    problem_type: ProblemType,
    revision: str | None = None,
    local_files_only: bool = False,
) -> LoadedEncoder:
    """Load a checkpoint with a head for the task; `initialise_head` then gives the head its values.

    A head of other sizes in the checkpoint is not used; feed-forwards removed from it stay removed.
    The global random state is left as it was.
    Raises UnsupportedModelError for ALBERT,
    encoder-decoders, models that need code of their own, and models without a layer list;
    MissingInputError if the model isn't there, has no safetensors or lacks encoder weights.
    """
    # Else the hub's conversion bot may hand out a revision that is not the one recorded.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    source = {"revision": revision, "local_files_only": local_files_only}
    with loading_errors(path, "it can't be found. Check the name, the revision and the network"):
        config = AutoConfig.from_pretrained(str(path), trust_remote_code=False, **source)
    refuse_family(config)
    config.num_labels = num_labels
    # transformers knows no other than those of sequences
    config.problem_type = None if problem_type == "token_classification" else problem_type
    for name in ("use_mems_eval", "use_mems_train"):  # XLNet: memories break on a ragged last batch
        if hasattr(config, name):
            setattr(config, name, False)
    # loading draws, and the caller's seed must not notice
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
    embedding_path(model)  # what can't be found is refused now, not after hours of training
    _refuse_incomplete(model, fresh, path)
    return LoadedEncoder(model.eval(), fresh)


def initialise_head(model: PreTrainedModel, fresh: Collection[str], seed: int) -> None:
    """Draw the parameters named in `fresh` from `seed`, by the model's own rule; touch no other.

    Call it after pruning. The draw doesn't depend on how many layers there are: rules that look at
    the depth (ModernBERT's) see the original one. The global random state is left as it was.
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
    """The parameters outside the encoder where the checkpoint was a classifier of some task: a
    sweep starts from encoders, and its seeds draw the heads."""
    kinds = model.config.architectures or ()
    if not any(kind.endswith(_HEADS) for kind in kinds):
        return frozenset()
    encoder = f"{model.base_model_prefix}."
    return frozenset(n for n, _ in model.named_parameters() if not n.startswith(encoder))


_HEADS = ("ForSequenceClassification", "ForTokenClassification")


def _class_for(config: PretrainedConfig, problem_type: ProblemType) -> Any:
    of_tokens = problem_type == "token_classification"
    if removal_of(config) is None:
        return AutoModelForTokenClassification if of_tokens else AutoModelForSequenceClassification
    # the plain class would put fresh random linears where the checkpoint has none
    classes = (
        MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        if of_tokens
        else MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    )
    return reduced_class(classes[type(config)])


def _refuse_incomplete(model: PreTrainedModel, fresh: Collection[str], path: str | Path) -> None:
    """A pooler may be new; an encoder with random weights must not pass for a pre-trained one."""
    prefix = f"{model.base_model_prefix}."
    absent = sorted(k for k in fresh if k.startswith(prefix) and "pooler" not in k)
    if absent:
        raise MissingInputError(
            f"model {str(path)!r}: {len(absent)} weights of the encoder are not in the checkpoint "
            f"or have another shape, for example {absent[0]!r}. "
            "Check that its config and its weights belong together."
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
    """Without the library's bars and its report of new weights: a new head is what we ask for."""
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
    """While inside, the config states the depth from before any pruning."""
    config, field = model.config, find_layers(model).depth_field
    depth = getattr(config, field)
    setattr(config, field, getattr(config, "lp_sweep_original_depth", depth))
    try:
        yield
    finally:
        setattr(config, field, depth)
