"""Cosines of states against calculations by hand: contribution, block influence and angular
distances of one network, the similarity of two, and probes.
"""

from __future__ import annotations

import copy
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from transformers import PreTrainedModel

from lp_sweep.trials.measures.influence import (
    angular_distances,
    mean_cosines,
    mean_similarities,
    probe_scores,
)
from lp_sweep.trials.model.prune import keep_layers
from lp_sweep.trials.model.states import LayerStates, layer_states
from lp_sweep.trials.spec.specs import TaskDefinition
from tests.support.families import FAMILIES, NAMES
from tests.support.networks import LENGTHS, batches, network, sentences, shaken

DEPTH = 4


def seen(name: str, model: PreTrainedModel) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """Input and output of each layer, each (T, H): one sentence at a time, no padding."""
    found = []
    for row in sentences():
        states: list[tuple[np.ndarray, np.ndarray]] = []

        def note(_: nn.Module, given: tuple[torch.Tensor], output: object, to=states) -> None:
            output = output if isinstance(output, torch.Tensor) else output[0]
            # one sentence: dropping the batch axis, wherever it is, leaves (T, H)
            to.append(tuple(s.squeeze(1 if name == "xlnet" else 0).double().numpy()
                            for s in (given[0], output)))  # fmt: skip

        layers = model.get_submodule(FAMILIES[name].layers)
        handles = [layer.register_forward_hook(note) for layer in layers]
        with torch.no_grad():
            model.base_model(input_ids=row[None])
        for handle in handles:
            handle.remove()
        found.append(states)
    return found


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@pytest.mark.parametrize("name", NAMES)
def test_contribution_block_influence_and_angles(name: str) -> None:
    """Cosines of the sentence token; of every real token, each once; between sentence tokens."""
    model = network(name, DEPTH)
    left, place = (True, -1) if name == "xlnet" else (False, 0)
    contribution, influence = np.zeros(DEPTH), np.zeros(DEPTH)
    angles = np.zeros((DEPTH + 1, DEPTH + 1))
    for states in seen(name, model):
        for layer, (before, after) in enumerate(states):
            contribution[layer] += cosine(before[place], after[place]) / len(LENGTHS)
            influence[layer] += sum(map(cosine, before, after)) / sum(LENGTHS)
        vectors = [states[0][0][place], *(after[place] for _, after in states)]
        for low, high in combinations(range(DEPTH + 1), 2):
            angle = math.acos(cosine(vectors[low], vectors[high])) / math.pi
            angles[low, high] += angle / len(LENGTHS)
    for size in (1, 2, 5):
        whole = [*layer_states(model, batches(sentences(), size, left))]
        sentence = [*layer_states(model, batches(sentences(), size, left), only_sentence=True)]
        found = mean_cosines(sentence)
        assert found == pytest.approx(contribution, abs=1e-5)
        assert mean_cosines(whole) == pytest.approx(influence, abs=1e-5)
        np.testing.assert_allclose(angular_distances(sentence), angles, atol=1e-5)
    assert (angles[np.triu_indices(DEPTH + 1, 1)] > 1e-3).all()  # so there was something to see


def test_a_layer_that_does_nothing() -> None:
    """ModernBERT's: only its layers add to what they are given."""
    model = network("modernbert", DEPTH)
    layer = model.get_submodule(FAMILIES["modernbert"].layers)[1]
    with torch.no_grad():
        layer.attn.Wo.weight.zero_()
        layer.mlp.Wo.weight.zero_()
    seen = layer_states(model, batches(sentences(), 5))
    assert mean_cosines(seen)[1] == pytest.approx(1.0)
    angle = angular_distances(layer_states(model, batches(sentences(LENGTHS * 8), 5)))[1, 2]
    assert angle == pytest.approx(0.0, abs=1e-7)  # and not nan: a cosine may be rounded beyond 1


# -- two networks

KEPT = [1, 3, 4]


def two_networks(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """As it was pre-trained, and pruned and changed."""
    pretrained = network(name)
    finetuned = copy.deepcopy(pretrained)
    keep_layers(finetuned, KEPT)
    return pretrained, shaken(finetuned)


def states(model: PreTrainedModel, row: torch.Tensor) -> list[torch.Tensor]:
    """(T, H) each: these families' hidden states are their layers' own."""
    with torch.no_grad():
        found = model(input_ids=row[None], output_hidden_states=True).hidden_states
    return [state[0].double() for state in found]


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_similarity_is_the_calculation_by_hand(name: str) -> None:
    pretrained, finetuned = two_networks(name)
    expected = np.zeros((4, 2))
    for row in sentences():
        old, new = states(pretrained, row), states(finetuned, row)
        for place, layer in enumerate([0, *KEPT]):
            cosines = torch.cosine_similarity(old[layer], new[place], dim=1)
            sentence = float(cosines[-1 if name == "xlnet" else 0])
            expected[place] += np.array([sentence, float(cosines.mean())]) / len(LENGTHS)
    for size in (1, 2, 5):
        rows = batches(sentences(), size, left=name == "xlnet")
        found = mean_similarities(
            layer_states(pretrained, rows), layer_states(finetuned, rows), KEPT
        )
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (np.abs(expected) < 0.999).all()


def test_the_two_means_over_tokens_have_two_names() -> None:
    """Two texts, of one token that stays and of three that turn at right angles: pooled, one token
    of four stays; by text, one text of two."""
    mask = torch.tensor([[True, False, False], [True, True, True]])
    before, after = torch.zeros(2, 3, 2), torch.zeros(2, 3, 2)
    before[..., 0] = 1.0
    after[0, :, 0] = after[1, :, 1] = 1.0
    old = LayerStates([before, before], [before], mask, torch.zeros(2, dtype=torch.int64))
    new = LayerStates([before, after], [before], mask, torch.zeros(2, dtype=torch.int64))
    assert mean_cosines([new]) == [0.25]
    assert mean_similarities([old], [new], [1])[1, 1] == 0.5


# -- probes, where the answer is known


CLASSES = TaskDefinition(text_columns=("t",), metric="accuracy", extra_metrics=("macro_f1", "mcc"))
NUMBERS = TaskDefinition(
    text_columns=("t",), kind="regression", metric="pearson", extra_metrics=("spearman",)
)


def world(classes: int = 3, rows: int = 240, seed: int = 0):
    """Vectors of three layers: the same in every row, noisy, telling; and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    centres = 4 * rng.normal(size=(classes, 8))
    noise = rng.normal(size=(3, rows, 8))
    vectors = noise + centres[labels] * np.array([0, 0.1, 1])[:, None, None]
    vectors[0] = 5.0
    vectors = vectors.astype(np.float32)
    half = rows // 2
    return vectors[:, :half], labels[:half], vectors[:, half:], labels[half:]


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_scikit_learns_own(classes: int) -> None:
    train, labels, dev, dev_labels = world(classes)
    found = probe_scores(train, labels, dev, dev_labels, CLASSES)
    assert [list(one) for one in found] == [["accuracy", "macro_f1", "mcc"]] * 3
    majority = np.mean(dev_labels == np.bincount(labels).argmax())
    assert found[0] == {"accuracy": majority, "macro_f1": found[0]["macro_f1"], "mcc": 0.0}
    for layer in (1, 2):
        probe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        probe.fit(train[layer].astype(float), labels)
        expected = probe.score(dev[layer].astype(float), dev_labels)
        assert found[layer]["accuracy"] == expected
    assert majority < found[1]["accuracy"] < found[2]["accuracy"]
    assert found[2]["accuracy"] > 0.95
    assert found == probe_scores(train, labels, dev, dev_labels, CLASSES)


@pytest.mark.parametrize("absent", [[1], [0, 2], [0, 1, 3]], ids=str)
def test_a_class_that_no_train_row_has_shifts_nothing(absent: list[int]) -> None:
    """Each dev row of a class that is there is still called by its own number."""
    train, labels, dev, dev_labels = world(4)
    rows, others = ~np.isin(labels, absent), ~np.isin(dev_labels, absent)
    args = (train[:, rows], labels[rows], dev[:, others], dev_labels[others])
    assert probe_scores(*args, CLASSES)[2]["accuracy"] > 0.9
    missed = np.mean(np.isin(dev_labels, absent))
    found = probe_scores(train[:, rows], labels[rows], dev, dev_labels, CLASSES)[2]["accuracy"]
    assert 0.9 * (1 - missed) <= found <= 1 - missed


def test_regression() -> None:
    train, _, dev, _ = world()
    rng = np.random.default_rng(1)
    weights = rng.normal(size=8)
    numbers, dev_numbers = ((v[2] @ weights).astype(np.float32) for v in (train, dev))
    found = probe_scores(train, numbers, dev, dev_numbers, NUMBERS)
    assert found[0] == {"pearson": 0.0, "spearman": 0.0}
    assert found[2]["pearson"] > 0.99
    assert found[1]["pearson"] < 0.9
    probe = make_pipeline(StandardScaler(), Ridge()).fit(train[1].astype(float), numbers)
    expected = np.corrcoef(probe.predict(dev[1].astype(float)), dev_numbers)[0, 1]
    assert found[1]["pearson"] == pytest.approx(expected)


def test_noise_of_the_last_bit_is_no_feature() -> None:
    """As at BERT's embedding output, were its rounding to tell something."""
    train, labels, dev, dev_labels = world(2)
    for vectors, classes in ((train, labels), (dev, dev_labels)):
        vectors[0] = np.where(classes[:, None] == 1, np.nextafter(np.float32(5), 9), 5)
    found = probe_scores(train, labels, dev, dev_labels, CLASSES)[0]
    assert found["mcc"] == 0.0
