"""Every mistake in a sweep file or an override: one message that names the place and the fix."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lp_sweep.storage.errors import LpSweepError, PreflightError, SpecError
from lp_sweep.storage.printable import shown
from tests.support.fuzzing import assert_good_message
from tests.support.sweepfiles import PLAIN, make_inputs, make_model, planned

OWN = "name: x, train: a.csv, dev: b.csv"
CLAIMS = "{name: claims, train: t.csv, dev: %s, text: text%s}"
SIM = "{name: sim, kind: embedding, train: t.csv, dev: d.csv, text: [a, b], label: y"


def mistake(file: Path, *overrides: str) -> str:
    with pytest.raises(LpSweepError) as caught:
        planned(file, *overrides)
    assert type(caught.value) in (SpecError, PreflightError)
    assert_good_message(caught.value, rf"{file}:\d+: |override ")
    return str(caught.value)


def with_line(number: int, text: str) -> str:
    """PLAIN with another text at one of its eight lines, or after them. 4: the model, 5: tasks,
    6: seeds, 8: the strategy."""
    lines = PLAIN.splitlines()
    return "\n".join([*lines[: number - 1], text, *lines[number:]]) + "\n"


# (line, its text, what the message says)
MISTAKES = [
    # unknown keys, at each level
    (6, "sedes: [1]", "unknown key 'sedes'.*Allowed: .*Did you mean 'seeds'"),
    (9, "include: [{tsk: a}]", "'tsk' in include.0.*mean 'task'"),
    (9, "distill: [{temprature: 2}]", "'temprature'.*teacher, loss, temperature"),
    # wrong types
    (5, "tasks: 3", "tasks must be a mapping of name, .*got 3"),
    (9, "recipe: {lr: fast}", "recipe.lr must be `auto` or a number, got 'fast'"),
    (9, "recipe: {lr: .inf}", "recipe.lr must be a finite number"),
    (9, "recipe: {schedule: linaer}", "'linear' or 'constant'.*mean 'linear'"),
    (9, "recipe: {lr: 1e-5, learning_rate: 1e-5}", "`lr` and `learning_rate`.*Keep one"),
    (8, "  - {name: top, k: [0, two]}", "k: 'two' is not a whole number"),
    (8, "  - {name: top, k: al}", "must be 'all' or a list of whole numbers.*'all'"),
    (6, "seeds: many", "seeds must be a whole number or a list of whole numbers, got 'many'"),
    (6, "seeds: {from: a, to: 3}", "a range of seeds is"),
    (6, "seeds: 5-3", "from 5 to 3 are not"),
    (2, "name: a b", "name 'a b': a text of letters"),
    (2, "name: 2024", "name 2024: .*Quote a number"),
    # missing, empty, twice, not together
    (1, "store: s", "the key 'schema_version' is missing: write `schema_version: 1`"),
    (1, "schema_version: 2", "schema_version is 2; this lp-sweep reads 1"),
    (4, "  - {k: [1]}", "the key 'id' is missing in models.0"),
    (8, "  - {name: top, k: []}", "strategies.0.k must not be empty"),
    (9, "deploy: [onnx]", "deploy measures networks that were kept: add `keep: best`"),
    (9, "deploy: [onx]", "'onnx'"),
    (9, "vocabulary: [task]", "vocabulary is of what `deploy` measures: add `deploy: "),
    (9, "exclude: [{model: '*'}]", "every one is excluded"),
    (5, "tasks: [rte, RTE]", "rte is listed twice"),
    (6, "seeds: [42, 40-44]", "42 is listed twice"),
    (9, "trials_per_gpu: 2\nresources_per_trial: {gpu: 0.5}", "is 2 and .*gpu 0.5: .*Keep one"),
    (9, "resources_per_trial: {gpu: 0, accelerator_type: A10G}", "kind of GPU.*Keep one"),
    # names of models, tasks and cells
    (4, "  - bert-base-casd", "unknown model 'bert-base-casd'.*mean 'bert-base-cased'"),
    (4, "  - foldr", "unknown model 'foldr'.*mean 'folder'"),
    (4, "  - ./folder/of/a/modl", "no model folder at .*Did you mean 'model'"),
    (5, f"tasks: [{{{OWN}, text: t, metric: acuracy}}]", "mean 'accuracy'"),
    (5, "tasks: [{name: rte, metric: f1}]", "is GLUE's, its metric can't be set"),
    (5, f"tasks: [{{{OWN}, text: [a, b, c]}}]", "needs `text:`"),
    (5, "tasks: [{name: x, train: a.csv, text: t}]", "needs `train:` and `dev:`"),
    (5, f"tasks: [{{{OWN}, text: t}}]", "a.csv: no such file"),
    (5, "tasks: [cola]", "no file .*cola/train.parquet"),
    (9, "include: [{strategy: top, k: 1, task: cola}]", "rte, mrpc"),
    (9, "include: [{task: rte}]", "needs `strategy:` and `k:`"),
    (9, "include: [{strategy: random, k: 1}]", "'random': name one, such as `random 3`"),
    # tasks that would mislead
    (5, f"tasks: [{CLAIMS % ('link.csv', '')}]", "claims.*one file.*link.csv.*other rows"),
    (5, f"tasks: [{CLAIMS % ('copy.csv', '')}]", "claims.*same content.*t.csv.*copy.csv"),
    (5, f"tasks: [{{name: a, dataset: b/c, revision: '{'0' * 40}', text: t, dev_split: train}}]",
     "one split, 'train'"),
    (5, f"tasks: [{CLAIMS % ('d.csv', ', test: d.csv')}]", "dev and test sets.*one file.*for test"),
    (5, f"tasks: [{CLAIMS % ('d.csv', ', test: copy.csv')}]", "train and test sets.*copy.csv"),
    (5, f"tasks: [{CLAIMS % ('d.csv', ', test: gone.csv')}]", "gone.csv"),
    (5, f"tasks: [{{name: a, dataset: b/c, revision: '{'0' * 40}', text: t, test: validation}}]",
     "dev and test.*one split, 'validation'"),
    (5, "tasks: [{name: rte, test: d.csv}]", "test can't be set"),
    (5, f"tasks: [{CLAIMS % ('d.csv', ', dataset: b/c')}]", "both files and a hub data set"),
    (5, f"tasks: [{CLAIMS % ('d.csv', ', labels: [fraud, ok], metric: f1')}]",
     "'fraud' and 'ok'.*`positive: 'fraud'` or `positive: 'ok'`"),
    (5, f"tasks: [{CLAIMS % ('d.csv', ', labels: [fraud, ok], metric: f1, positive: frod')}]",
     "`positive: frod`.*fraud, ok.*mean 'fraud'"),
    (5, f"tasks: [{CLAIMS % ('d.csv', ', positive: fraud')}]", "positive.*accuracy.*`metric: f1`"),
    (5, "tasks: [{name: rte, positive: entailment}]", "positive can't be set"),
    # texts that YAML reads as something else
    (5, f"tasks: [{{{OWN}, text: t, labels: [no, maybe]}}]", "labels.*no .*truth.*quotes: 'no'"),
    (5, f"tasks: [{{{OWN}, text: 1_000}}]", "text.*1_000.*number.*quotes: '1_000'"),
    # strategies, and the K and thresholds that each may have
    (8, "  - {name: top, k: [12]}", "top can't drop K=12 of the 12.*0 <= K < depth.*: 0, 1"),
    (8, "  - {name: symmetric, k: [3]}", "depth - K is even.*: 0, 2, 4, 6, 8, 10"),
    (4, "  - {id: ./folder/of/a/model, k: [0, 12]}", "can't drop K=12"),
    (8, "  - {name: contribution, threshold: 95}", "must be less than or equal to 1, got 95"),
    (8, "  - {name: contribution, k: [1]}", "needs `threshold:`"),
    (8, "  - {name: top, k: 0, threshold: 0.9}", "takes `k:`, not `threshold:`"),
    (8, "  - {name: top, k: 0, measured_on: rte}", "'top' measures nothing: remove `measured_on:`"),
    (8, "  - top", "strategy 'top' needs `k:`"),
    (8, "  - {name: drop, layers: [0]}", "strategy 'drop' needs `layers:`, .*from 1"),
    (8, "  - {name: drop, layers: 3, k: 1}", "strategy 'drop 3' names its layers: remove `k:`"),
    (8, "  - drop 13", "drop 13 is not possible for the 12 layers of .* layers of 1 to 12"),
    (8, "  - {name: top, k: 2, draws: 1}", "strategy 'top' draws nothing: remove `draws:`"),
    (8, "  - {name: top, k: all, within: 1}", "`within:`, which needs `until: min_layers`"),
    (8, "  - {name: drop, layers: 3, until: min_layers}", "'drop 3' has no K.*remove `until:`"),
    (8, "  - {name: top, k: all, until: min_layers, within: -1}", "within must be .* 0, got -1"),
    (9, "recipe: {freeze: {layers: [1, 99]}}", "no model has a layer 99; the deepest has 12"),
    # procedures, distillations and bridges
    (9, "procedures: direkt", "unknown procedure 'direkt'.*: direct, .*Did you mean 'direct'"),
    (9, "procedures: direct frozen", "frozen.* finetune_then_drop.*Such are: direct, "),
    (9, "procedures: iterative 0", "unknown procedure 'iterative 0'.*Such are: direct, "),
    (9, "procedures: [{name: direct, freeze_dropped: true}]", "`freeze_dropped:`.*remove it"),
    (9, "procedures: [iterative, iterative 2]", "iterative is listed twice. Keep one"),
    (9, "distill: logit", r"'logit'.*none, logits, logits\+hidden.*'logits'"),
    (9, "distill: [{from: larger}]", "'larger'.*full, ./folder"),
    (9, "distill: [{from: ./tought}]", "no model folder.*tought"),
    (9, "distill: [{from: ./taught}]", "'./taught'.*models:"),
    (9, "distill: [{hidden_weight: 2}]", r"hidden_weight.*logits\+hidden"),
    (9, "distill: [{start: teacher}]\nprocedures: [iterative]", "start: teacher.*iterative"),
    (9, "distill: [{from: ./model, loss: logits+hidden}]", "teacher: full"),
    (9, "bridge: lineer", "bridge.*none.*linear.*lineer"),
    (9, "bridge: linear\nprocedures: iterative", "iterative.*one layer.*bridge"),
    (9, "feed_forward: top 3\nbridge: linear", "bridge.*feed_forward.*top 3"),
    # feed-forwards
    (9, "feed_forward: tpo 3", "'tpo 3' is not a rule.*top N"),
    (9, "feed_forward: top 0", "'top 0': the number is 1 or more"),
    (9, "feed_forward: [[1, 1]]", r"\[1, 1\] names a layer twice"),
    (9, "feed_forward: [none, top 13]", "'top 13' .* 12 layers .*needs 13.*up to 12"),
    # tasks of embeddings and texts without labels
    (5, f"tasks: [{SIM}}}]\nprocedures: iterative", "'sim'.*'iterative'.*direct, untrained"),
    (5, f"tasks: [{SIM}}}]\ndistill: [none, logits]", "'sim'.*remove `distill:`"),
    (5, f"tasks: [{SIM}, unlabelled: u.csv}}]", "'sim'.*unlabelled.*`train:`"),
    (5, f"tasks: [{SIM}, pooling: max}}]", "pooling.*'mean', 'cls' or 'last'"),
    (5, f"tasks: [{{{OWN}, text: t, kind: regression, pooling: cls}}]", "pooling.*kind embedding"),
    (5, f"tasks: [{SIM}, text: a}}]".replace("text: [a, b], ", ""), "'sim'.*two columns"),
    (5, "tasks: [rte]\nprocedures: [direct, untrained]", "'rte'.*'untrained'.*direct"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "text", "nouns"), MISTAKES)
def test_a_mistake_names_its_line(tmp_path: Path, line: int, text: str, nouns: str) -> None:
    for name, rows in {"t": "a,ok\nb,fraud", "copy": "a,ok\nb,fraud", "d": "c,ok\nd,fraud"}.items():
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}\n")
    (tmp_path / "link.csv").symlink_to("t.csv")
    make_model(tmp_path / "taught")  # no classifier
    said = mistake(make_inputs(tmp_path, with_line(line, text)))
    assert said.startswith(f"{tmp_path / 'sweep.yaml'}:{line}: ")
    assert re.search(nouns, said), said
    assert "\n" not in said


OVERRIDES = [
    # names and keys; also such as are nearly right
    ("lr=1e-5", "unknown key 'lr'. Allowed: .*recipe.learning_rate.*mean 'recipe.learning_rate'"),
    ("task.metric=f1", "Did you mean 'tasks.0.metric'"),
    ("recipe.epoch=3", "unknown key 'epoch' in recipe.*Did you mean 'epochs'"),
    # values
    ("task", "an override is key=value"),
    ("k=12", "top can't drop K=12"),
    ("threshold=0.9", "no strategy of .*sweep.yaml takes `threshold:`"),
    ("models.7.k=1", "models is a list of 1, counted from 0, and has no '7'"),
    ("recipe.epochs={a: b", "as a YAML value"),
    # to YAML 1.1, and so to PyYAML, this is 34
    ("seed=042", "seeds: '042' is not a whole number"),
    # what would break a parser or fill a screen
    ("k=" + "[" * 500, "nested 20 deep"),
    ("seed=" + "9" * 5_000, "is no int"),
    ("a" + ".a" * 5_000 + "=1", "unknown key"),
    ("model=[&a [x,x,x], &b [*a,*a,*a], &c [*b,*b,*b], [*c,*c,*c]]", "must be a mapping"),
    ("name=\x1b[31m", r"can't read '\\x1b\[31m' as a YAML value"),
    ('task="\\e[31m"', r"unknown task '\\x1b\[31m'"),
    ("model='" + "x" * 300_000 + "'", "too long"),
]


@pytest.mark.parametrize(
    ("override", "nouns"), [pytest.param(*case, id=case[0][:30]) for case in OVERRIDES]
)
def test_a_mistake_in_an_override_names_it(tmp_path: Path, override: str, nouns: str) -> None:
    said = mistake(make_inputs(tmp_path), override)
    assert said.startswith(f"override {shown(override)}: ")
    assert re.search(nouns, said), said


@pytest.mark.parametrize(
    ("config", "nouns"),
    [
        ({"model_type": "gpt2"}, "gpt2 is a decoder.*encoders only"),
        ({"is_decoder": True}, "bert is a decoder"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "t5 is an encoder-decoder"),
        ({"model_type": "bret"}, "type 'bret'.*mean 'bert'"),
        ({"model_type": "esm"}, "bridge.*esm.*bert.*modernbert"),
        *[
            ({"num_hidden_layers": n}, rf"has num_hidden_layers: '?{n}'?\. .*from 1 to")
            for n in (10**12, -1, 0, True, "12")
        ],
        *[(text, "no readable config.json") for text in ("[" * 100_000, "\xff", "[]")],
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_a_model_that_can_not_be_pruned_is_refused(
    tmp_path: Path, config: dict[str, Any] | str, nouns: str
) -> None:
    file = make_inputs(tmp_path, PLAIN + ("bridge: linear\n" if "bridge" in nouns else ""))
    place = tmp_path / "folder/of/a/model/config.json"
    if not isinstance(config, str):
        config = json.dumps(json.loads(place.read_text()) | config)
    place.write_text(config, encoding="latin-1")
    said = mistake(file)
    assert re.match(rf"{file}:\d: .*{nouns}", said), said
