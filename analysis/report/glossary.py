"""What a column's name means: the tooltip of its heading."""

from __future__ import annotations

GLOSSARY = {
    "K": "Layers dropped; t= is a threshold, by which each task drops its own.",
    "kept": "Layers that stay, of those that the model has.",
    "layers": "Which layers stay, or how many; 1 is next to the embeddings.",
    "strategy": "How the layers to drop were chosen.",
    "procedure": "direct: pruned first, then fine-tuned.",
    "feed-forward": "Of which kept layers the feed-forward is removed.",
    "loss ≤": "The loss that is allowed: mean over seeds against the model with all layers.",
    "90%": "The answers that the scores do not rule out: the true one is among them in 90%.",
    "95%": "95% interval of the mean.",
    "seed sd": "How much one network moves from seed to seed, in points.",
    "all tasks": "Mean over tasks of their means over seeds.",
    "stable tasks": "The same without RTE, MRPC, CoLA and WNLI.",
    "missing": "Tasks of which a seed is not there.",
    "of full": "Share of the parameters of the model with all layers.",
    "batch": "Rows and tokens of a batch.",
    "fine-tuning": "A step of fine-tuning, times as fast as with all layers.",
    "inference": "A forward pass, times as fast as with all layers.",
    "change": "Points against all layers, with its 95% interval.",
    "p": "Two-sided, of this test alone.",
    "p Holm": "Corrected for all the tests of this table.",
    "over": "What the interval accounts for: other seeds, other dev rows.",
    "n": "Seeds with a score.",
    "sd": "Sample standard deviation over seeds.",
    "random": "Mean over networks whose layers were drawn at random.",
    "difference": "The strategy minus the mean of the random draws.",
    "above": "How many of the draws it scores more than.",
}
