"""Runs networks as they are shipped, in a process of their own:

    python -P -m lp_sweep.trials.deploy.runner REQUEST.json ANSWER.npz

An artefact is a folder with a tokenizer, and either weights for torch or an ONNX graph. torch runs
as plain transformers does, a graph with onnxruntime and tokenizers alone. Neither is imported for
the other, so that the peak memory of a process is that of a server.

REQUEST is `measure.Workload` as JSON. With `alone`, the process loads the first artefact, answers
one batch of the longest rows, and then all rows, torch in batches sorted by length, a graph row by
row. Else all artefacts take turns with single rows, and with batches. ANSWER has the arrays, of
turns by the number of the artefact, and JSON `told`. What it does now is printed on stdout.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

BATCH = 32  # rows, where many texts wait
_IN_A_TURN = 8  # single rows
_FEWEST = 5  # rounds, however slow the networks are
_SINGLE = 2 / 3  # of the time; the rest is for batches
_OUTPUTS = ("sentence_embedding", "logits")  # of a graph: the first that it has
_TOLD_EVERY = 10.0  # seconds
_DIED = 1  # exit code after an error that is told

Columns = Sequence[Sequence[Any]]  # one or two columns of texts; for tags, sentences of words


class ArtefactAnswers(NamedTuple):
    """(n, C) for n rows; for embeddings a row per text, for tags a row per word that has an
    answer, with its `places`, (n, 2): sentence and word."""

    values: np.ndarray
    places: np.ndarray


class Torch:
    """A folder that transformers loads, in fp32."""

    def __init__(self, folder: str, asked: dict[str, Any]) -> None:
        import torch
        from transformers import AutoTokenizer

        from lp_sweep.trials.model.plainload import load, vector_modules, vectors_of

        torch.set_num_threads(asked["threads"])
        model, _ = load(folder, asked["loads"])
        self._model = model.float().to(asked["device"])
        self._asked, self._torch = asked, torch
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self.pieces = len(self._tokenizer)
        after = vector_modules(Path(folder), asked["after"]).to(asked["device"])
        self._vectors: Callable[[Any], Any] = lambda inputs: vectors_of(
            self._model, inputs, asked["pooling"], after
        )

    def tokens(self, columns: Columns) -> Any:
        return self._tokenizer(
            *columns,
            truncation="longest_first",
            max_length=self._asked["max_length"],
            padding=True,
            return_tensors="pt",
            is_split_into_words=self._asked["words"],
        )

    def answer(self, tokens: Any) -> np.ndarray:
        with self._torch.inference_mode():
            inputs = tokens.to(self._model.device)
            pooled = self._asked["pooling"]
            found = self._vectors(inputs) if pooled else self._model(**inputs).logits
            answer: np.ndarray = found.float().cpu().numpy()
        return answer


class Onnx:
    """A graph, and a tokenizer.json in the folder."""

    def __init__(self, folder: str, graph: str, asked: dict[str, Any]) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        self._words = asked["words"]
        self._tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
        told = json.loads(Path(folder, "tokenizer_config.json").read_text(encoding="utf-8"))
        pad = told.get("pad_token") or "[PAD]"
        pad = pad["content"] if isinstance(pad, dict) else pad
        self._tokenizer.enable_truncation(
            asked["max_length"], direction=told.get("truncation_side", "right")
        )
        self._tokenizer.enable_padding(
            direction=told.get("padding_side", "right"),
            pad_id=self._tokenizer.token_to_id(pad) or 0,
            pad_type_id=told.get("pad_token_type_id", 0),
            pad_token=pad,
        )
        self.pieces = self._tokenizer.get_vocab_size()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = asked["threads"], 1
        # else its threads would go on spinning in the others' turns
        options.add_session_config_entry("session.force_spinning_stop", "1")
        provider = "CPUExecutionProvider"
        if asked["device"].startswith("cuda"):
            provider = "CUDAExecutionProvider"
            if provider not in onnxruntime.get_available_providers():
                raise RuntimeError(
                    f"onnxruntime {onnxruntime.__version__} here has no CUDA: pip install "
                    "onnxruntime-gpu, or measure with --device cpu"
                )
        self._session = onnxruntime.InferenceSession(graph, options, providers=[provider])
        self._inputs = [item.name for item in self._session.get_inputs()]
        outputs = [item.name for item in self._session.get_outputs()]
        self._output = next(name for name in _OUTPUTS if name in outputs)

    def tokens(self, columns: Columns) -> Any:
        rows = columns[0] if len(columns) == 1 else [*zip(*columns, strict=True)]
        return self._tokenizer.encode_batch(list(rows), is_pretokenized=self._words)

    def answer(self, tokens: Any) -> np.ndarray:
        parts = {
            "input_ids": "ids",
            "attention_mask": "attention_mask",
            "token_type_ids": "type_ids",
        }
        given = {
            name: np.array([getattr(each, parts[name]) for each in tokens], np.int64)
            for name in self._inputs
        }
        answer: np.ndarray = self._session.run([self._output], given)[0]
        return answer


Runner = Torch | Onnx


def loaded(artefact: dict[str, Any], asked: dict[str, Any]) -> Runner:
    if artefact["graph"] is None:
        return Torch(artefact["folder"], asked)
    return Onnx(artefact["folder"], artefact["graph"], asked)


# -- the answers for all rows


def answers(runner: Runner, columns: Columns, *, words: bool, name: str = "") -> ArtefactAnswers:
    """`name`: of what answers, to tell how far it is."""
    parts: dict[int, np.ndarray] = {}
    places: dict[int, list[tuple[int, int]]] = {}
    order = _longest_first(columns)
    # in 8 bits an answer depends on what else is in the batch
    size = BATCH if isinstance(runner, Torch) else 1
    told = time.perf_counter()
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        if name and time.perf_counter() - told > _TOLD_EVERY:
            told = time.perf_counter()
            print(f"{name}: {start:,} of {len(order):,} texts answered", flush=True)
        tokens = runner.tokens(_rows(columns, rows))
        found = runner.answer(tokens)
        for at, row in enumerate(rows):
            if words:  # a word is answered at its first token
                named = [*enumerate(tokens[at].word_ids)]
                first = {word: token for token, word in reversed(named)}
                there = sorted(word for word in first if word is not None)
                parts[row] = found[at, [first[word] for word in there]]
                places[row] = [(row, word) for word in there]
            else:
                parts[row], places[row] = found[at : at + 1], [(row, 0)]
    everything = range(len(order))
    return ArtefactAnswers(
        np.concatenate([parts[row] for row in everything]),
        np.array([place for row in everything for place in places[row]], np.int64),
    )


def _longest_first(columns: Columns) -> list[int]:
    rows = range(len(columns[0]))
    return sorted(rows, key=lambda row: -sum(len(column[row]) for column in columns))


def _rows(columns: Columns, rows: Sequence[int]) -> Columns:
    return [[column[row] for row in rows] for column in columns]


# -- times


def _timed(runner: Runner, columns: Columns) -> tuple[float, float]:
    """Milliseconds of the tokenizer, and of all."""
    begun = time.perf_counter()
    tokens = runner.tokens(columns)
    middle = time.perf_counter()
    runner.answer(tokens)
    return 1e3 * (middle - begun), 1e3 * (time.perf_counter() - begun)


def _turns(
    runners: dict[int, Runner], columns: Columns, among: int, sizes: Sequence[int], seconds: float
) -> tuple[int, dict[int, list[tuple[float, float]]]]:
    """The number of rounds, and the times of each artefact. In a round all take a turn with the
    same groups of random rows, of these sizes, from the first `among`; another one begins. The
    first group of a turn is not counted: the others' turns emptied the caches."""
    draw = np.random.default_rng(0)
    times: dict[int, list[tuple[float, float]]] = {number: [] for number in runners}
    begun, rounds = time.perf_counter(), 0
    while rounds < _FEWEST or time.perf_counter() - begun < seconds:
        groups = [_rows(columns, draw.integers(among, size=size).tolist()) for size in sizes]
        order = list(runners)
        first = rounds % max(1, len(order))
        for number in order[first:] + order[:first]:
            times[number] += [_timed(runners[number], rows) for rows in groups][1:]
        rounds += 1
    return rounds, times


# -- the program


def message(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _peak_bytes() -> int:
    """The peak memory of this process alone: `ru_maxrss` may be that of the one that started it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def alone(asked: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The answers of the first artefact if they are wanted, and what else is told."""
    begun = time.perf_counter()
    artefact, texts = asked["artefacts"][0], asked["texts"]
    runner = loaded(artefact, asked)
    runner.answer(runner.tokens(_rows(texts, _longest_first(texts)[:BATCH])))
    told = {"peak_memory_bytes": _peak_bytes(), "pieces": runner.pieces}
    runner.answer(runner.tokens(_rows(texts, [0])))  # a graph may be fixed to other shapes
    arrays = {}
    if artefact["scored"]:
        name = artefact["name"] or "the network"
        print(f"{name}: answering {len(texts[0]):,} texts", flush=True)
        arrays = answers(runner, texts, words=asked["words"], name=name)._asdict()
    return arrays, told | {"seconds": time.perf_counter() - begun}


def together(asked: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The times of each artefact, and what else is told."""
    from lp_sweep.trials.measures.speed import Bystanders

    texts = asked["texts"]
    runners = {at: loaded(artefact, asked) for at, artefact in enumerate(asked["artefacts"])}
    seconds = asked["seconds"] * len(runners)
    print(f"timing artefacts in turns ({len(runners)}): about {seconds:.0f} s", flush=True)
    bystanders = Bystanders()
    singles = (texts, asked["singles"], [1] * (_IN_A_TURN + 1))
    rounds, single = _turns(runners, *singles, seconds * _SINGLE)
    _, batch = _turns(runners, texts, len(texts[0]), [1, BATCH], seconds * (1 - _SINGLE))
    found = {f"single{number}": np.array(single[number]) for number in runners}
    found |= {f"batch{number}": np.array(batch[number])[:, 1] for number in runners}
    return found, {"rounds": rounds, "others_busy_cores": bystanders.busy_cores()}


def main(request: str, answer: str) -> None:
    asked = json.loads(Path(request).read_text(encoding="utf-8"))
    try:
        arrays, told = (alone if asked["alone"] else together)(asked)
    except Exception as error:
        print(message(error), file=sys.stderr)
        sys.exit(_DIED)
    np.savez(answer, told=np.array(json.dumps(told)), **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
