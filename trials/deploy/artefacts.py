"""Makes the artefacts of a network, each file once and from files that are there:

network -> graph in 32 bits -> fewer pieces -> word table in 4 bits -> matrices in 8 bits
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lp_sweep.storage.errors import ExportError, UnsupportedModelError
from lp_sweep.storage.networks import GRAPH, fetch_graph, keep_graph
from lp_sweep.storage.store import Store
from lp_sweep.trials.deploy.graph import VERSION, write_graph
from lp_sweep.trials.deploy.quantise import INT8, int8
from lp_sweep.trials.deploy.vocabulary import (
    PieceMap,
    Text,
    cut,
    cut_network,
    words_cut,
    write_tokenizer,
)
from lp_sweep.trials.deploy.wordtable import cut_graph, four_bit
from lp_sweep.trials.model.modelfiles import graph_problem
from lp_sweep.trials.spec.specs import ArtefactFormat, Vocabulary

GRAPHS = {"onnx": GRAPH, "onnx-int8": INT8, "onnx-int4": Path("onnx", "model_int4.onnx")}


class ShippedNetwork:
    """A network in `folder`, and its artefacts: below it, or with fewer pieces below `cut`.

    texts: the dev set's, as `write_graph` takes them. learned: reads the texts that the vocabulary
    is cut on. kept: the store that has the network, and its trial; its graph is kept there too.
    """

    def __init__(
        self,
        folder: Path,
        cut: Path,
        *,
        texts: Sequence[Sequence[Any]],
        max_length: int,
        learned: Callable[[], Sequence[Text]],
        kept: tuple[Store, str] | None = None,
    ) -> None:
        self.folder, self.cut = folder, cut
        self.texts, self._max_length = texts, max_length
        self._learned, self._kept = learned, kept

    @cached_property
    def pieces(self) -> PieceMap:
        """Those of the vocabulary `task`, whose tokenizer is then in `cut`."""
        pieces = cut(self.folder, self._learned())
        write_tokenizer(self.folder, pieces, self.cut)
        return pieces

    @cached_property
    def words_cut(self) -> float:
        """The share of the dev set's words that `task` cuts up otherwise than `full`."""
        assert self.pieces
        return words_cut(self.folder, self.cut, [text for column in self.texts for text in column])

    def home(self, vocabulary: Vocabulary) -> Path:
        """The folder that has the tokenizer, and that serves."""
        return self.folder if vocabulary == "full" else self.cut

    def make(self, format: ArtefactFormat, vocabulary: Vocabulary = "full") -> Path | None:
        """The graph; None: `home` has weights for torch. Raises what torch's exporter and
        onnxruntime raise, UnsupportedModelError and ExportError."""
        if format != "torch":
            return self._graph(format, vocabulary)
        if vocabulary == "task":
            cut_network(self.folder, self.pieces, self.cut)
        return None

    def _graph(self, format: ArtefactFormat, vocabulary: Vocabulary) -> Path:
        target = self.home(vocabulary) / GRAPHS[format]
        if target.is_file():
            return target
        try:
            if format != "onnx":
                below = self._graph("onnx", vocabulary)
                if format == "onnx-int4":
                    four_bit(below, target)
                    below = target
                int8(below, target)
            elif vocabulary == "task":
                pieces, below = self.pieces, self._graph("onnx", "full")
                target.parent.mkdir(exist_ok=True)
                cut_graph(below, pieces, target)
            else:
                self._first_graph()
        except BaseException:
            target.unlink(missing_ok=True)  # it is not whole, or not right
            raise
        return target

    def _first_graph(self) -> None:
        """Takes the graph from the store, or writes and keeps it."""
        if not (self.folder / "tokenizer.json").is_file():
            raise ExportError(
                "a graph is served with tokenizer.json, and this tokenizer has none: load it with "
                "AutoTokenizer, and save_pretrained into the model's folder, or take torch."
            )
        config = (self.folder / "config.json").read_text(encoding="utf-8")
        if problem := graph_problem(json.loads(config)):
            raise UnsupportedModelError(problem)
        if self._kept and fetch_graph(*self._kept, self.folder, VERSION):
            return
        write_graph(self.folder, self.texts, self._max_length)
        if self._kept:
            keep_graph(*self._kept, self.folder, VERSION)
