"""How long a row a network takes, by its config: most have a table of positions, which ends.

Plain data, no torch: a plan asks too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# positions are turned into angles or distances: there is no table to come to the end of
_ENDLESS = frozenset({"modernbert", "eurobert", "nomic_bert", "xlnet", "t5", "mt5", "umt5"})
_BY_DISTANCE = frozenset({"deberta", "deberta-v2"})  # and by a table, if `position_biased_input`
_AFTER_PADDING = frozenset(  # their tables count from after the padding's own index
    {"camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta"}
    | {"roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"}
)
_PADDING = 1  # of those, where the config does not say it


def longest_row(config: Mapping[str, Any]) -> int | None:
    """Tokens of a row, at most, of a model with this config.json. None: as many as one likes, or
    the config does not say."""
    kind, positions = str(config.get("model_type")), config.get("max_position_embeddings")
    if type(positions) is not int or positions <= 0 or kind in _ENDLESS:
        return None
    if kind in _BY_DISTANCE and not config.get("position_biased_input", True):
        return None
    if config.get("position_embedding_type") == "rotary":
        return None
    if kind not in _AFTER_PADDING:
        return positions
    padding = config.get("pad_token_id")
    return positions - 1 - (padding if type(padding) is int and kind != "mpnet" else _PADDING)
