"""Answer with a folder's predict.py, where neither torch nor transformers can be imported:

    python -P plainrun.py FOLDER REQUEST.json ANSWER.npz

REQUEST has `texts`, one or two columns of rows (of a tagger one of lists of words). ANSWER has the
array `values`: what predict.py's `run` says of each row, one row at a time, since in 8 bits an
answer depends on what else is in the batch. It imports nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np

_ABSENT = ("torch", "transformers", "sentence_transformers", "lp_sweep", "onnx")


def answers(folder: str, texts: list[list[object]]) -> np.ndarray:
    """(rows, numbers) float32; of a tagger (words, numbers), sentence by sentence."""
    sys.path.insert(0, folder)
    predict = importlib.import_module("predict")
    rows = texts[0] if len(texts) == 1 else [*zip(*texts, strict=True)]
    found: np.ndarray = np.concatenate([np.atleast_2d(predict.run([row])[0]) for row in rows])
    unanswered = np.isnan(found).all(1)  # by a tagger: words without a token
    return np.delete(found, unanswered, axis=0)


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # the folder is published as it is
    sys.modules.update(dict.fromkeys(_ABSENT))  # type: ignore[arg-type]  # importing None fails
    values = answers(
        sys.argv[1], json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))["texts"]
    )
    np.savez(sys.argv[3], values=values)
