"""A linear map in place of dropped layers: the fit, the merge, and the worker's way to them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.storage.store import Store
from lp_sweep.trials.model.families import find_layers
from lp_sweep.trials.model.feedforward import remove_feed_forwards
from lp_sweep.trials.model.prune import keep_original
from lp_sweep.trials.model.states import layer_states
from lp_sweep.trials.spec.procedures import BRIDGE_ROWS, bridged_blocks
from lp_sweep.trials.train.bridge import RIDGE, Batches, bridge, calibration
from tests.support.fastnets import CPU, network, padding_of, split_of
from tests.support.plain_jobs import done
from tests.support.staging import made, spec_of, staged

LENGTHS = [*range(3, 20), *range(3, 20)]  # 374 tokens, of rows that are not all of one length
BRIDGED: dict[str, Any] = {
    "recipe": {"limit_train": 64},
    "bridge": "linear",
    "kept_layers": (1, 4),
}


class Ends(NamedTuple):
    """The parts of a layer, written by hand: its last linear, the norm after the sum (None: the
    norm is before the MLP), and whether states are (T, B, H)."""

    down: str
    norm: str | None
    time_first: bool = False


ENDS = {
    "modernbert": Ends("mlp.Wo", None),
    "bert": Ends("output.dense", "output.LayerNorm"),
    "distilbert": Ends("ffn.lin2", "output_layer_norm"),
    "xlnet": Ends("ff.layer_2", "ff.layer_norm", True),
}


def made_of(name: str, depth: int = 4) -> PreTrainedModel:
    """In fp64, so that nothing but arithmetic is compared."""
    return network(name, depth=depth).double().eval()


def batches_of(name: str, seed: int = 0) -> Batches:
    return calibration(split_of(LENGTHS, seed), padding_of(name), CPU, 5)


def sums(model: PreTrainedModel, name: str, layer: int, batches: Batches) -> tuple[Any, Any]:
    """(N, H) twice: the MLP's output M of the layer (a place from 0) and the sum S = Y + M."""
    ends, module = ENDS[name], find_layers(model).layers[layer]
    found: dict[str, list[Any]] = {"mlp": [], "sum": []}

    def note(place: str, states: torch.Tensor, mask: torch.Tensor) -> None:
        found[place].append((states.transpose(0, 1) if ends.time_first else states)[mask != 0])

    for batch in batches():
        mask = batch["attention_mask"]
        down = module.get_submodule(ends.down)
        hooks = [down.register_forward_hook(lambda _, __, out, m=mask: note("mlp", out, m))]
        if ends.norm:
            norm = module.get_submodule(ends.norm)
            hooks += [norm.register_forward_hook(lambda _, a, __, m=mask: note("sum", a[0], m))]
        else:
            hooks += [module.register_forward_hook(lambda _, __, out, m=mask: note("sum", out, m))]
        with torch.no_grad():
            model(**batch)
        for hook in hooks:
            hook.remove()
    mlp, total = (torch.cat(found[place]).numpy() for place in ("mlp", "sum"))
    return mlp, total


def least_squares(mlp: Any, rest: Any, each: Any, *, shift: bool) -> tuple[Any, Any]:
    """D and the shift of M D + shift = R by numpy, with the ridge as further rows; `each` (N,) is
    what a token's squared error counts."""
    width, one = mlp.shape[1], np.sqrt(each)[:, None]
    mlp, rest = mlp * one, rest * one
    weight = np.sqrt(RIDGE * np.square(mlp).sum(0).mean())
    ones = [one] if shift else []
    rows = np.hstack([mlp, *ones])
    ridge = np.hstack([weight * np.eye(width), *([np.zeros((width, 1))] if shift else [])])
    right = np.vstack([rest, np.zeros((width, width))])
    found = np.linalg.lstsq(np.vstack([rows, ridge]), right, rcond=None)[0]
    return found[:width], found[width] if shift else np.zeros(width)


def left_of(model: PreTrainedModel, whole: PreTrainedModel, batches: Batches) -> float:
    """Squared distance of the real tokens' states after the last layer."""
    one, other = (
        torch.cat([found.tokens()[-1] for found in layer_states(each, batches())])
        for each in (model, whole)
    )
    return float((one - other).square().sum())


@pytest.mark.parametrize(("name", "kept"), [*((name, (1, 4)) for name in ENDS), ("bert", (1, 2))])
def test_the_merged_network_is_the_one_with_the_map(name: str, kept: tuple[int, ...]) -> None:
    """Its state after the kept layer is norm(Y + M T + shift), norm and target the block's last."""
    whole, batches = made_of(name), batches_of(name)
    below, last = bridged_blocks(kept, 4)[0][0] - 2, bridged_blocks(kept, 4)[0][-1] - 1
    mlp, total = sums(whole, name, below, batches)
    _, target = sums(whole, name, last, batches)
    down = find_layers(whole).layers[below].get_submodule(ENDS[name].down)
    each = 1 / target.var(1, ddof=1)
    change, moved = least_squares(mlp, target - total, each, shift=down.bias is not None)
    expected = torch.from_numpy(total + mlp @ change + moved)
    if ENDS[name].norm:
        expected = find_layers(whole).layers[last].get_submodule(ENDS[name].norm)(expected)
    model = copy.deepcopy(whole)
    [fit] = bridge(model, kept, batches)
    assert (fit.layer, len(find_layers(model).layers)) == (below + 1, 2)
    found = torch.cat([each.tokens()[below + 1] for each in layer_states(model, batches())])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    errors = (target - total - mlp @ change - moved, target - total)
    left, change_of_block = (np.square(error).sum(1) @ each for error in errors)
    assert fit.left == pytest.approx(left / change_of_block)


def test_an_upper_map_makes_up_for_the_lower_one() -> None:
    """It is fitted to the states that it will be given, not to those of the full network."""
    whole, batches = made_of("bert"), batches_of("bert")
    model, lower, upper = (copy.deepcopy(whole) for _ in range(3))
    bridge(model, (1, 3), batches)
    bridge(lower, (1, 3, 4), batches)
    keep_original(lower, (1, 3))
    bridge(upper, (1, 2, 3), batches)
    alone = find_layers(upper).layers[2].state_dict()
    find_layers(lower).layers[1].load_state_dict(alone)
    assert left_of(model, whole, batches) < 0.999 * left_of(lower, whole, batches)


def test_at_most_so_many_rows_are_read() -> None:
    split = split_of([3] * (BRIDGE_ROWS + 5))
    rows = calibration(split, padding_of(), CPU, 64)
    assert sum(len(batch["input_ids"]) for batch in rows()) == BRIDGE_ROWS


def test_a_network_without_the_linear_to_merge_into_is_refused() -> None:
    model, batches = network("bert"), batches_of("bert")
    remove_feed_forwards(model, [1])
    with pytest.raises(UnsupportedModelError, match=r"bert: layer 1 .*feed-forward.*bridge: none"):
        bridge(model, (1, 3), batches)
    model.config.model_type = "esm"
    with pytest.raises(UnsupportedModelError, match=r"esm: .*bridged.*bert.*modernbert"):
        bridge(model, (1, 3), batches)


# -- the worker


def test_a_trial_with_a_bridge(world: Path, store: Store) -> None:
    record = done(store, made(world, **BRIDGED))
    plain = done(store, made(world, **BRIDGED | {"bridge": ""}))
    assert (record["bridge"], plain["bridge"]) == ("linear", None)
    [left] = record["bridge_left"]
    assert left["layer"] == 1
    assert 0 < left["value"] < 1
    assert record["seconds_bridge"] > 0
    assert (plain["bridge_left"], plain["seconds_bridge"]) == (None, None)
    assert record["kept_layers"] == [1, 4]
    assert record["params_total"] == plain["params_total"]
    assert record["train_losses"] != plain["train_losses"]
    # with a stage one it is fitted to that network
    first, second = staged(world, **BRIDGED)
    assert spec_of(first).bridge == ""
    assert done(store, first, second)["bridge_left"] != record["bridge_left"]


def test_without_layer_1_there_is_nothing_to_merge_it_into() -> None:
    with pytest.raises(ValueError, match="layer 1"):
        bridged_blocks((2, 3), 4)
    assert bridged_blocks((1, 3, 6), 8) == [(2,), (4, 5), (7, 8)]
