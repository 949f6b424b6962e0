"""The table of measurements of a network's layers.

An entry holds a measurement's function, its needs, the networks that it applies to, and how it is
shown. Only `greedy` changes the network: it trains it. The sweep file and the plan also read this
table, so it imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from lp_sweep.trials.spec.autorecipe import FIND_RECIPE
from lp_sweep.trials.spec.specs import TEACHER, ProfileSpec, Recipe

if TYPE_CHECKING:
    from lp_sweep.trials.measures.subject import LayerValues, Subject

_GREEDY_SEED = 0  # of its own fine-tuning: all seeds of a sweep share the chosen layers


def _imported(path: str, **settings: Any) -> Callable[[Subject, ProfileSpec], LayerValues]:
    """A function of this folder, as module.name, imported when it is called: it needs torch."""
    module, _, name = path.rpartition(".")

    def run(subject: Subject, spec: ProfileSpec) -> LayerValues:
        function = getattr(import_module(f"lp_sweep.trials.measures.{module}"), name)
        found: LayerValues = function(subject, spec, **settings)
        return found

    return run


def _own_training(recipe: Recipe, rows: int) -> dict[str, Any]:
    """Sees no dev row."""
    own = replace(recipe, limit_dev=None)
    train = {"limit_train": recipe.limit_train, "limit_dev": None}
    return {"recipe": own, "seed": _GREEDY_SEED, **train}


def _without_found(recipe: Recipe) -> Recipe:
    usual = Recipe()
    return replace(recipe, learning_rate=usual.learning_rate, epochs=usual.epochs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One entry of MEASURES.

    `networks`: those that a sweep file may measure under `measure:`; () if only a strategy uses it.
    `needs(recipe, rows)`: more fields of its ProfileSpec. `compares`: whether it compares with the
    pre-trained network; with `to_full` a pruned network is compared with the full one. `blocks`:
    whether values are of runs of layers, from `layer` to `other`. `shown` and `column`: headings of
    `lp-sweep show`, of the measurement and of `LayerValues.layers`.
    """

    run: Callable[[Subject, ProfileSpec], LayerValues]
    help: str
    networks: tuple[Literal["pretrained", "full", "pruned"], ...] = ()
    needs: Callable[[Recipe, int], dict[str, Any]] = lambda recipe, rows: {}
    compares: bool = False
    to_full: bool = False
    blocks: bool = False
    shown: str = "{measure} of {network}, on {rows}"
    column: str = ""


# A new measurement is one entry here: see docs/extending.md
MEASURES: dict[str, Measurement] = {
    "contribution": Measurement(
        run=_imported("influence.cosines", only_sentence=True),
        help="how little each layer changes the sentence token",
    ),
    "block_influence": Measurement(
        run=_imported("influence.cosines", only_sentence=False),
        help="how little each layer changes all tokens",
    ),
    "angular": Measurement(
        run=_imported("influence.angular"),
        help="how far each run of layers turns the sentence token",
        blocks=True,
    ),
    "greedy": Measurement(
        run=_imported("greedy.greedy"),
        help="the order in which layers are dropped, each time the one that hurts the score least",
        needs=_own_training,
        shown="{measure} of {network}, after fine-tuning, on held-out train rows of {task}",
        column="step",
    ),
    FIND_RECIPE: Measurement(
        run=_imported("findrecipe.find_recipe"),
        help="the learning rate and the epochs of `recipe: auto`, by three short tries",
        needs=lambda recipe, rows: _own_training(_without_found(recipe), rows),
        shown="{measure} of {network}, by short tries on held-out train rows of {task}",
    ),
    TEACHER: Measurement(
        run=_imported("subject.teacher"),
        help="the logits of the train rows, and of unlabelled ones, for the networks that learn "
        "from this one",
        needs=lambda recipe, rows: {"limit_train": recipe.limit_train, "limit_dev": None},
        shown="{measure} of other networks: {network}, on the train rows of {task}",
    ),
    "probes": Measurement(
        run=_imported("influence.probes"),
        help="a linear classifier on each layer's sentence token",
        networks=("pretrained", "full", "pruned"),
        needs=lambda recipe, rows: {"limit_train": recipe.limit_train, "rows": rows},
    ),
    "similarity": Measurement(
        run=_imported("influence.similarity"),
        help="cosine with the pre-trained network: sentence token, and per-text token mean",
        networks=("full", "pruned"),
        compares=True,
        shown="{measure} of {network} with {beside}, on {rows}",
    ),
    "cka": Measurement(
        run=_imported("cka.cka"),
        help="linear CKA: full with pre-trained, pruned with full, of one seed",
        networks=("full", "pruned"),
        compares=True,
        to_full=True,
        # a matrix has the layers of the first network below each other
        shown="{measure} of {network} (rows) with {beside} (columns), on {rows}",
    ),
}
