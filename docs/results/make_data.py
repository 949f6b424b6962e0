"""Makes the retrieval and reranking sets of this folder's sweeps from GLUE's QNLI and Cranfield.

python docs/results/make_data.py GLUE CRANFIELD ENCODER OUT writes OUT/qnli-search (corpus, queries,
qrels) and OUT/cranfield-rank (train, dev), in seconds. Nothing is random.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import AutoModel, AutoTokenizer

from lp_sweep.trials.kinds.rankmetrics import ndcg

if TYPE_CHECKING:
    from numpy.typing import NDArray

QNLI_ROWS = 3000  # of 5,463
CANDIDATES = 20  # passages scored per query


def qnli_search(glue: Path, out: Path) -> None:
    """QNLI's first validation rows as a search task. Each question is a query, its answer is its
    one relevant document, and the sentences of all rows are the documents."""
    rows = pq.read_table(glue / "qnli" / "validation.parquet").to_pylist()[:QNLI_ROWS]
    sentences = {
        text: f"d{number}" for number, text in enumerate(dict.fromkeys(r["sentence"] for r in rows))
    }
    answered = {row["question"]: row["sentence"] for row in rows if row["label"] == 0}  # entailment
    queries = {text: f"q{number}" for number, text in enumerate(answered)}
    write(out / "corpus.parquet", {"id": [*sentences.values()], "text": [*sentences]})
    write(out / "queries.parquet", {"id": [*queries.values()], "text": [*queries]})
    found = {
        "query_id": [*queries.values()],
        "doc_id": [sentences[sentence] for sentence in answered.values()],
        "relevance": [1] * len(queries),
    }
    write(out / "qrels.parquet", found)


def cranfield_rank(glue: Path, cranfield: Path, encoder: Path, out: Path) -> None:
    """Rows of a query, a passage, and 1 if the passage is relevant. Train: questions and sentences
    of QNLI; 1 is an answer. Dev: queries of Cranfield with the nearest abstracts by the encoder.
    Queries without a relevant candidate are left out."""
    pairs = pq.read_table(glue / "qnli" / "train.parquet").to_pylist()
    train = [
        row(pair["question"], pair["question"], pair["sentence"], pair["label"] == 0)
        for pair in {(pair["question"], pair["sentence"]): pair for pair in pairs}.values()
    ]
    documents = pq.read_table(cranfield / "corpus.parquet").to_pylist()
    queries = pq.read_table(cranfield / "queries.parquet").to_pylist()
    relevant: dict[str, set[str]] = {}
    for judged in pq.read_table(cranfield / "qrels.parquet").to_pylist():
        relevant.setdefault(str(judged["query_id"]), set()).add(str(judged["doc_id"]))
    passages = [f"{document['title']} {document['text']}".strip() for document in documents]
    names = [str(document["id"]) for document in documents]
    similar = embed(encoder, [query["text"] for query in queries]) @ embed(encoder, passages).T
    dev = []
    for query, order in zip(queries, np.argsort(-similar, axis=1, kind="stable"), strict=True):
        wanted = relevant.get(str(query["id"]), set())
        nearest = [int(place) for place in order[:CANDIDATES]]
        if wanted & {names[place] for place in nearest}:
            dev += [
                row(query["id"], query["text"], passages[place], names[place] in wanted)
                for place in nearest
            ]
    relevance = np.array([row["relevance"] for row in dev], np.float64).reshape(-1, CANDIDATES)
    own = 100 * ndcg(relevance, relevance, 10).mean()
    print(f"{len(relevance)} queries; nDCG@10 of the encoder's own order: {own:.2f}")
    for split, found in (("train", train), ("dev", dev)):
        write(out / f"{split}.parquet", {name: [row[name] for row in found] for name in found[0]})


def row(query_id: object, query: str, passage: str, relevant: bool) -> dict[str, object]:
    return {
        "query_id": str(query_id),
        "query": query,
        "passage": passage,
        "relevance": int(relevant),
    }


def embed(encoder: Path, texts: list[str]) -> NDArray[np.float32]:
    """(texts, width): the mean over tokens, scaled to length 1."""
    tokenizer, model = (
        AutoTokenizer.from_pretrained(encoder),
        AutoModel.from_pretrained(encoder).eval(),
    )
    found = []
    for start in range(0, len(texts), 32):
        batch = tokenizer(
            texts[start : start + 32],
            padding=True,
            truncation=True,
            max_length=256,
            return_tensors="pt",
        )
        with torch.inference_mode():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][:, :, None]
        found.append(torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=1))
    return torch.cat(found).numpy()


def write(path: Path, columns: dict[str, list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    print(path, len(next(iter(columns.values()))))


if __name__ == "__main__":
    glue, cranfield, encoder, out = map(Path, sys.argv[1:5])
    qnli_search(glue, out / "qnli-search")
    cranfield_rank(glue, cranfield, encoder, out / "cranfield-rank")
