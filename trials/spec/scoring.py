"""Facts about the metrics that several rooms ask for. A metric is one entry here, its function in
`trials/train/metrics.py`, and the same of many resamples in `analysis/statistics/resampling.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class MetricFacts(NamedTuple):
    """of_a_class: scores one of two classes, which `positive:` names.
    by_margin: of two classes, ranks the rows by the logit of the scored class less the other's.
    own, source, file: of a plugin's metric: its function, whose result is a share; the digest of
    its source; name and text of the plugin."""

    label: str  # in headings
    hub: str = ""  # the hub's name, if it is another
    of_a_class: bool = False
    by_margin: bool = False
    own: Callable[[Any, Any], float] | None = None
    source: str = ""
    file: tuple[str, str] = ("", "")

    @property
    def of_two_classes(self) -> bool:
        return self.of_a_class or self.by_margin


# precision in percent, of the recall at a precision
PRECISIONS = {f"recall@precision{percent}": percent for percent in (80, 90, 95, 99)}
METRIC_FACTS = {
    "accuracy": MetricFacts("accuracy"),
    "f1": MetricFacts("F1", of_a_class=True),
    "macro_f1": MetricFacts("macro F1", "f1"),
    "weighted_f1": MetricFacts("weighted F1", "f1"),
    "balanced_accuracy": MetricFacts("balanced accuracy"),
    "mcc": MetricFacts("MCC", "matthews_correlation"),
    "roc_auc": MetricFacts("ROC AUC", by_margin=True),
    "average_precision": MetricFacts("average precision", of_a_class=True, by_margin=True),
    **{
        name: MetricFacts(f"recall at {percent}% precision", "recall", True, True)
        for name, percent in PRECISIONS.items()
    },
    "micro_f1": MetricFacts("micro F1", "f1"),
    "entity_f1": MetricFacts("entity F1", "f1"),
    "mean_average_precision": MetricFacts("mean average precision"),
    "pearson": MetricFacts("Pearson", "pearsonr"),
    "spearman": MetricFacts("Spearman", "spearmanr"),
    "ndcg@10": MetricFacts("nDCG@10"),
    "mrr@10": MetricFacts("MRR@10"),
    "recall@100": MetricFacts("recall@100"),
}


def facts_of(metric: str) -> MetricFacts:
    """Those of a metric that is not listed: its own name."""
    return METRIC_FACTS.get(metric) or MetricFacts(metric)
