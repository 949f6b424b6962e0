"""Makes `quickstart/model/` and `quickstart/data/` again.

    python -m benchmarks.toy_language.build [--data-only]

Everything is generated and seeded; nothing is downloaded. It takes 6 minutes of CPU time on one
thread. With `--data-only`, it takes a second and does not change the model.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from benchmarks.toy_language import grammar
from benchmarks.toy_language.pretrain import Recipe, Stage, pretrain

QUICKSTART = Path(__file__).resolve().parents[2] / "quickstart"
# One thread: the order of additions, and with it every weight, stays the same.
THREADS = 1
DATA_SEED = 20
# Train and validation rows: as many as it takes to tell how many layers a task needs. The network
# is pre-trained for entailment as well, but two seeds do not tell how many layers that needs.
SIZES = {
    "toy-sentiment": (1200, 600),
    "toy-entailment": (2400, 2000),
    "toy-similarity": (2000, 600),
}
SHIPPED = ("toy-sentiment", "toy-similarity")
# 12 layers, as in bert-base, so that a paper's K means the same here; everything else is small.
SHAPE = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    # A network with so few parameters underfits; dropout only slows it down.
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
RECIPE = Recipe(
    seed=20,
    stages=(
        Stage(sources=(1, 2, 3), steps=2000, lr=2e-3),
        Stage(sources=(1, 1, 2, 2, 3, 3), steps=1200, lr=1.5e-3),
        # Most copies are at the top. There layers only refine, as in large encoders, and can go.
        Stage(sources=(1, 2, 3, 4, 5, 5, 5, 6, 6, 6, 6, 6), steps=800, lr=1e-3),
    ),
    batch_size=128,
    warmup_steps=200,
    weight_decay=0.01,
    mask_rate=0.15,
    telling_mask_rate=0.9,
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per word of the grammar, [CLS] a [SEP] b [SEP] with token types."""
    ids = {word: i for i, word in enumerate([*SPECIAL, *grammar.vocabulary()])}
    backend = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=SHAPE["max_position_embeddings"],
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL},
    )


def write_data(folder: Path) -> None:
    """Write `<task>/{train,validation}.parquet`, with the class names in the schema."""
    for task in SHIPPED:
        parts = grammar.task_rows(task, DATA_SEED, *SIZES[task])
        (folder / task).mkdir(parents=True, exist_ok=True)
        for part, rows in parts._asdict().items():
            pq.write_table(to_table(task, rows), folder / task / f"{part}.parquet")


def to_table(task: str, rows: list[grammar.Row]) -> pa.Table:
    """A table with text columns, and `label` as int64 with class names or as float32."""
    from datasets import ClassLabel, Features, Value

    classes = grammar.CLASSES[task]
    features = Features(
        {
            **{column: Value("string") for column in rows[0] if column != "label"},
            "label": ClassLabel(names=list(classes)) if classes else Value("float32"),
        }
    )
    return pa.Table.from_pylist(rows, schema=features.arrow_schema)


def held_out() -> frozenset[grammar.Text]:
    """The validation texts of every task: pre-training must not have seen them."""
    splits = (grammar.task_rows(task, DATA_SEED, *SIZES[task]) for task in grammar.ROWS)
    return frozenset(text for split in splits for text in grammar.texts(split.validation))


def write_model(folder: Path) -> None:
    """config.json, model.safetensors (encoder and pooler, no heads) and the tokenizer."""
    tokenizer = make_tokenizer()
    config = {**SHAPE, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    text = grammar.passages(RECIPE.seed, held_out())
    model = pretrain(config, tokenizer, text, RECIPE)
    model.bert.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # 0600 before; a package's files are for everybody
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-only", action="store_true", help="write data/, keep model/")
    parser.add_argument("--folder", type=Path, default=QUICKSTART, help="where model/ and data/ go")
    options = parser.parse_args()
    started = time.perf_counter()
    torch.set_num_threads(THREADS)
    write_data(options.folder / "data")
    if not options.data_only:
        write_model(options.folder / "model")
    print(f"done in {time.perf_counter() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
