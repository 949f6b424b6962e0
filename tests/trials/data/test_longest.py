"""How long a row a network takes: as its config says, held against the network itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from lp_sweep.storage.errors import SpecError
from lp_sweep.trials.model.modelfiles import longest_row
from tests.support.families import FAMILIES, NAMES, VOCABULARY
from tests.support.sweepfiles import PLAIN, find, make_inputs

PADDING = 1  # of all families here


def takes(model: Any, length: int) -> bool:
    ids = torch.full((1, length), VOCABULARY - 1)
    try:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_the_network_takes_so_many_tokens_and_no_more(name: str) -> None:
    family = FAMILIES[name]
    model = AutoModel.from_config(family.config(2)).eval()
    longest = longest_row(model.config.to_dict())
    endless = name in ("xlnet", "modernbert", "deberta-v2", "deberta-v2-conv")
    assert (longest is None) == endless
    with torch.inference_mode():
        assert takes(model, longest or 60)
        assert endless or not takes(model, (longest or 0) + 1)


@pytest.mark.parametrize(
    ("model_type", "settings", "longest"),
    [
        pytest.param("roberta", {"max_position_embeddings": 514}, 512, id="padding not said"),
        pytest.param(
            "esm",
            {"max_position_embeddings": 9, "position_embedding_type": "rotary"},
            None,
            id="angles",
        ),
        pytest.param("deberta-v2", {"max_position_embeddings": 512}, 512, id="biased input"),
        pytest.param("bert", {}, None, id="not said"),
        pytest.param(["x"], {"max_position_embeddings": "512"}, None, id="nonsense"),
    ],
)
def test_what_a_config_says(model_type: Any, settings: dict[str, Any], longest: int | None) -> None:
    assert longest_row({"model_type": model_type} | settings) == longest


def test_a_plan_refuses_rows_that_the_model_can_not_take(tmp_path: Path) -> None:
    file = make_inputs(tmp_path, PLAIN)
    config = tmp_path / "folder/of/a/model/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 512}))
    find(file, ["measure.speed_length=600"])  # no speed is asked for
    assert find(file, ["recipe.max_length=512"]).models[0].longest_row == 512
    for message, *changes in (
        (r"recipe\.max_length.*6400.*'\./folder/of/a/model'.*512", "recipe.max_length=6400"),
        (r"speed_length is 600.*at most 512", "measure.speed=cpu", "measure.speed_length=600"),
    ):
        with pytest.raises(SpecError, match=message):
            find(file, changes)
