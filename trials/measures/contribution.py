"""How much each layer changes the sentence token: what the `contribution` strategy selects by.

Poor Man's BERT (Sajjad et al. 2020), "Contribution-based strategy": the cosine similarity between
the sentence token before and after a layer, averaged over the dev set. A layer with a high value
changes little and may go.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedModel

from lp_sweep.trials.measures.influence import mean_cosines
from lp_sweep.trials.measures.states import Batch


def contribution_profile(model: PreTrainedModel, batches: Iterable[Batch]) -> list[float]:
    """Mean cosine, over all examples, of the sentence token before and after each layer, in order.

    Each batch holds `input_ids` and `attention_mask` (B, T) and whatever else the model takes
    (`labels` are ignored); batches may differ in size and length, on any device. The model runs in
    eval mode, and its mode is restored. Sums are kept in float64, so batching doesn't matter.
    Raises ValueError when there is no example.
    """
    return mean_cosines(model, batches, only_sentence=True)
