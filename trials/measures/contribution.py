"""How much each layer changes the sentence token: what the `contribution` strategy selects by.

Poor Man's BERT (Sajjad et al. 2020), "Contribution-based strategy": the cosine similarity between
the sentence token before and after a layer, averaged over the dev set. A layer with a high value
changes little and may go.
"""

from __future__ import annotations

from collections.abc import Iterable

from lp_sweep.trials.measures.influence import cosine_sums, mean_cosines
from lp_sweep.trials.measures.states import LayerStates


def contribution_profile(batches: Iterable[LayerStates]) -> list[float]:
    """Mean cosine, over all examples, of the sentence token before and after each layer, in order.

    batches: of sentence tokens alone (`layer_states(..., only_sentence=True)`); they may differ in
    size. Sums are kept in float64, so batching doesn't matter.
    Raises ValueError when there is no example.
    """
    return mean_cosines(map(cosine_sums, batches))
