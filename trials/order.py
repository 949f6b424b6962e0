"""In which order an epoch takes the rows: by (seed, epoch), and never by a network's depth."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# batches sorted by length together: enough to match, and few enough that epochs differ
_BATCHES, _PARTS = 50, 4


def epoch_order(
    lengths: npt.NDArray[np.integer],
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    group_by_length: bool = False,
) -> npt.NDArray[np.intp]:
    """A permutation of the n rows, cut into batches as it stands.

    `group_by_length`: rows of like length share a batch, as in the Trainer's option of that name.
    A random order is sorted in parts of 50 batches, at least four parts; then whole batches change
    places all over the epoch, so that length says nothing about the time of a step.
    """
    draw = np.random.default_rng((seed, epoch))
    order = draw.permutation(len(lengths))
    if not group_by_length:
        return order
    size = batch_size * max(1, min(_BATCHES, len(order) // (_PARTS * batch_size)))
    for start in range(0, len(order), size):
        part = order[start : start + size]
        part[:] = part[np.argsort(-lengths[part], kind="stable")]
    whole = len(order) // batch_size
    batches = order[: whole * batch_size].reshape(whole, batch_size)
    rest = order[whole * batch_size :]  # a short batch stays the last
    return np.concatenate([draw.permutation(batches).ravel(), rest])
