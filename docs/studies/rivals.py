"""Other ways to a smaller encoder, on the same rows: prints one JSON line for each.

    python docs/studies/rivals.py ENCODER GLUE [NAME...] >> docs/studies/rivals.jsonl
    python docs/studies/rivals.py        # the table of what is in that file

NAME: `layers` (Sentence Transformers' recipe for layer reduction: some layers, then MSELoss on the
full model's vectors), `static` (model2vec's static embedding of the encoder), `trainer` (the
Hugging Face Trainer on a network cut by hand). It needs sentence-transformers, model2vec[distill]
and accelerate. Scores are of the dev rows; minutes are CPU time; ms: one text, median.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

SEED = 42
TRAINING: dict[str, Any] = {  # of both trainers
    "bf16": True,
    "use_cpu": True,
    "seed": SEED,
    "save_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
}


def main(encoder: str, glue: str, names: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    for name in names or list(RIVALS):
        started = time.process_time()
        for row in RIVALS[name](encoder, Path(glue)):
            spent = round((time.process_time() - started) / 60, 2)
            print(json.dumps({"rival": name, **row, "cpu_minutes": spent}), flush=True)
            started = time.process_time()


def table() -> None:
    lines = Path(__file__).with_name("rivals.jsonl").read_text(encoding="utf-8").splitlines()
    print("| task | what | score | ms | MB | minutes |", "|---|---|---:|---:|---:|---:|", sep="\n")
    for row in map(json.loads, lines):
        shown = (row.get(name, "") for name in ("task", "what", "score", "ms", "mb", "cpu_minutes"))
        print("|", " | ".join(map(str, shown)), "|")


def pairs(glue: Path, split: str) -> dict[str, list[Any]]:
    return pq.read_table(glue / "stsb" / f"{split}.parquet").to_pydict()


def score(encode: Any, glue: Path) -> float:
    """100 times the Spearman correlation of cosines with STS-B's dev scores."""
    from scipy.stats import spearmanr

    rows = pairs(glue, "validation")
    one, two = (np.asarray(encode(rows[text]), np.float64) for text in ("sentence1", "sentence2"))
    cosines = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    return round(100 * float(spearmanr(cosines, rows["label"]).statistic), 2)


def milliseconds(encode: Any, glue: Path, texts: int = 200) -> float:
    """Median time of one text, with its tokenizer."""
    spent = []
    for text in pairs(glue, "validation")["sentence1"][:texts]:
        started = time.perf_counter()
        encode([text])
        spent.append(1000 * (time.perf_counter() - started))
    return round(float(np.median(spent)), 3)


def megabytes(folder: str) -> float:
    return round(sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()) / 1e6, 1)


def layers(encoder: str, glue: Path) -> Any:
    """Every second layer, or two of three; 2 epochs over STS-B's train texts, the rest as in the
    library's example model_distillation_layer_reduction.py."""
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
    )

    teacher = SentenceTransformer(encoder, device="cpu")
    rows = pairs(glue, "train")
    texts = rows["sentence1"] + rows["sentence2"]
    vectors = teacher.encode(texts, batch_size=64)
    for kept in ([1, 3, 5], [0, 1, 3, 4]):  # of 0 to 5
        student = SentenceTransformer(encoder, device="cpu")
        network = student[0].auto_model
        network.encoder.layer = torch.nn.ModuleList(network.encoder.layer[at] for at in kept)
        network.config.num_hidden_layers = len(kept)
        with tempfile.TemporaryDirectory() as out:
            SentenceTransformerTrainer(
                model=student,
                args=SentenceTransformerTrainingArguments(
                    output_dir=out,
                    num_train_epochs=2,
                    per_device_train_batch_size=64,
                    learning_rate=1e-4,
                    warmup_ratio=0.1,
                    **TRAINING,
                ),
                train_dataset=Dataset.from_dict({"sentence": texts, "label": vectors.tolist()}),
                loss=losses.MSELoss(model=student),
            ).train()
            student.save(out)
            yield {
                "task": "sts",
                "what": f"layers {', '.join(str(at + 1) for at in kept)}, MSELoss",
                "score": score(student.encode, glue),
                "ms": milliseconds(student.encode, glue),
                "mb": megabytes(out),
            }


def static(encoder: str, glue: Path) -> Any:
    from model2vec.distill import distill

    model = distill(encoder, device="cpu")
    with tempfile.TemporaryDirectory() as out:
        model.save_pretrained(out)
        yield {
            "task": "sts",
            "what": "static embedding (model2vec)",
            "score": score(model.encode, glue),
            "ms": milliseconds(model.encode, glue),
            "mb": megabytes(out),
        }


def trainer(encoder: str, glue: Path) -> Any:
    """SST-2 as in sst2.yaml (all rows, its epochs, the rate that it finds): all layers, and 1-4."""
    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    tokenizer = AutoTokenizer.from_pretrained(encoder)

    def read(split: str) -> Dataset:
        rows = Dataset.from_parquet(str(glue / "sst2" / f"{split}.parquet"))
        return rows.map(
            lambda row: {**tokenizer(row["sentence"], truncation=True, max_length=128)},
            remove_columns=["sentence", "idx"],
        )

    train, dev = read("train"), read("validation")
    for number in (6, 4):
        torch.manual_seed(SEED)
        network = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2)
        network.bert.encoder.layer = network.bert.encoder.layer[:number]
        network.config.num_hidden_layers = number
        with tempfile.TemporaryDirectory() as out:
            run = Trainer(
                model=network,
                args=TrainingArguments(
                    output_dir=out,
                    num_train_epochs=1,
                    per_device_train_batch_size=32,
                    learning_rate=1e-4,
                    train_sampling_strategy="group_by_length",
                    **TRAINING,
                ),
                train_dataset=train,
                data_collator=DataCollatorWithPadding(tokenizer),
            )
            run.train()
            found = run.predict(dev)
            correct = found.predictions.argmax(1) == found.label_ids
            yield {
                "task": "sst2",
                "what": f"Trainer, grouped by length, layers 1-{number}",
                "score": round(100 * float(correct.mean()), 2),
            }


RIVALS = {"layers": layers, "static": static, "trainer": trainer}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:]) if sys.argv[1:] else table()
