"""A sweep file with its inputs: a model folder and data that are enough to plan with.

No weights that could be trained and no sentence that means anything: planning reads neither.
"""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq
from safetensors.numpy import save_file

from lp_sweep.orchestrator.engine.course import Recorder
from lp_sweep.orchestrator.estimate import Rates, estimate
from lp_sweep.orchestrator.inputs.models import ModelInput
from lp_sweep.orchestrator.inputs.resolve import SweepInputs, TaskInput, resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.service.plan import PreparedPlan, SweepPlan
from lp_sweep.orchestrator.sweepfile.load import check, is_part, load_sweep
from lp_sweep.orchestrator.sweepfile.yamlfile import Document
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.tasks import TASKS, TaskSource
from lp_sweep.trials.spec.identity import canonical_json

# one key a line, so that an error's line says which one it means
PLAIN = """\
schema_version: 1
name: plain
models:
  - ./folder/of/a/model
tasks: [rte, mrpc]
seeds: [42, 43]
strategies:
  - {name: top, k: [0, 2]}
"""


def make_model(folder: Path, depth: int = 12, weight: float = 0.0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "bert", "num_hidden_layers": depth, "hidden_size": 8}
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 16}))
    save_file({"w": np.full(4, weight, np.float32)}, folder / "model.safetensors")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\nword\n")
    return folder


def make_data(folder: Path, rows: int = 4) -> Path:
    """RTE and MRPC in the layout of a data folder."""
    for task in ("rte", "mrpc"):
        (folder / task).mkdir(parents=True, exist_ok=True)
        for split in ("train", "validation"):
            (folder / task / f"{split}.parquet").write_bytes(_pairs(split, rows))
    return folder


@functools.cache
def _pairs(split: str, rows: int) -> bytes:
    texts = [f"{split} {row}" for row in range(rows)]
    columns = {"sentence1": texts, "sentence2": texts, "label": [0, 1] * (rows // 2)}
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written)
    return written.getvalue()


def make_inputs(folder: Path, text: str = PLAIN, depth: int = 12) -> Path:
    """The sweep file in `folder`, with the model and the data (`glue`) beside it."""
    make_model(folder / "folder/of/a/model", depth)
    make_data(folder / "glue")
    file = folder / "sweep.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def find(file: Path, overrides: Sequence[str] = ()) -> SweepInputs:
    return resolve(load_sweep(file, overrides), data_dir=file.parent / "glue", offline=True)


def bare_sweep(content: dict[str, Any], depths: Mapping[str, int]) -> SweepInputs:
    """A sweep without files: models of the hub of these depths, and tasks of GLUE."""
    document = Document(name="any.yaml", content=content)
    spec = check(document)
    return SweepInputs(
        spec=spec,
        document=document,
        models=tuple(
            ModelInput(m.id, m.id, None, depths[m.id], f"hub:{m.id}@main", None)
            for m in spec.models
        ),
        tasks={
            t.name: TaskInput(
                t.name, TASKS[t.name].definition, TaskSource(), f"sha256:{t.name}", 9, 9
            )
            for t in spec.tasks
        },
        recipe=spec.recipe.to_recipe(),
    )


def planned(file: Path, *overrides: str, known: WorkHistory | None = None) -> Plan:
    return make_plan(find(file, overrides), known or WorkHistory.nothing())


def run_of(file: Path, *overrides: str) -> None:
    """Its cells, and of each of its trials a record."""
    store = Store(file.parent / "store", create=True)
    plan = make_plan(find(file, overrides), WorkHistory.nothing())
    for id_, work in plan.trials.items():
        names = {"trial_id": id_, "model": work.model.name, "task": work.task.name}
        found = {"seed": work.trial.seed, "kept_layers": work.trial.kept_layers, "last": 0.9}
        store.put("predictions", id_, [])
        store.put("trials", id_, [names | found | {"spec": canonical_json(work.trial)}])
    Recorder(store, part=is_part(overrides), command="").cells(plan)


CPU = Rates([], gpu=False)


def answer_of(plan: Plan, rates: Rates = CPU) -> SweepPlan:
    """The answer of `lp-sweep plan`."""
    made = PreparedPlan(None, plan.sweep, "", None, plan)  # type: ignore[arg-type]
    return SweepPlan(made, estimate(plan, rates), (), rates)
