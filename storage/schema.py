"""The Arrow schemas of everything a store holds. `docs/columns.md` says what each column means.

Every file carries `lp_sweep.table` and `lp_sweep.schema_version` in its metadata.
"""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa

from lp_sweep.trials.spec.specs import Recipe

SCHEMA_VERSION = 1

_text, _int, _float = pa.string(), pa.int64(), pa.float64()
_time = pa.timestamp("us", tz="UTC")
_layers = pa.list_(pa.int32())
_epoch = pa.struct(
    [("epoch", pa.int32()), ("split", _text), ("metric", _text), ("value", pa.float64())]
)
_layer_value = pa.struct([("layer", pa.int32()), ("value", pa.float64())])
_named_value = pa.struct(
    [("name", _text), ("layer", pa.int32()), ("other", pa.int32()), ("value", pa.float64())]
)
_timing = pa.struct(
    [
        ("quantity", _text),  # finetune, inference
        ("batch", pa.int32()),  # examples
        ("full_ms", _float),  # of a batch: CPU time over all threads, or the GPU's; medians
        ("pruned_ms", _float),
        ("full_wall_ms", _float),
        ("pruned_wall_ms", _float),
        ("speedup", _float),  # full_ms / pruned_ms of a pair: median, quartiles
        ("speedup_q25", _float),
        ("speedup_q75", _float),
        ("pairs", pa.int32()),
        ("rounds", pa.int32()),  # 1; up to 3 in earlier records
    ]
)

# of the map `versions`: a report and an export show these and no others
PUBLISHED_VERSIONS = (
    *("lp_sweep", "code", "git", "python", "platform", "cuda", "cudnn", "nvidia_driver", "torch"),
    *("transformers", "tokenizers", "safetensors", "datasets", "numpy", "pyarrow"),
    *("scikit-learn", "scipy"),
)

_WHERE = [
    ("host", _text),
    ("device_type", _text),  # cpu, cuda
    ("device_name", _text),
    ("threads", pa.int32()),
    ("started_at", _time),
    ("ended_at", _time),
    ("versions", pa.map_(_text, _text)),  # lp_sweep, git, python, torch, transformers, ...
]

# the type of a recipe's key -> of its column; any other is a text
_OF_RECIPE = {
    "float": _float,
    "int": pa.int32(),
    "int | None": _int,
    "bool": pa.bool_(),
    "tuple[int, ...]": _layers,
}

TRIALS = pa.schema(
    [
        ("trial_id", _text),
        ("identity_version", pa.int32()),  # of the rule that made the identifier
        ("spec", _text),  # canonical JSON of what the identifier is a hash of
        ("model", _text),
        ("model_fingerprint", _text),
        ("model_revision", _text),  # the commit that was loaded, where a hub names it
        ("depth", pa.int32()),  # layers of the model before pruning
        ("kept_layers", _layers),
        ("dropped_layers", _layers),
        ("k", pa.int32()),
        ("procedure", _text),
        ("task", _text),
        ("data_fingerprint", _text),
        ("seed", _int),
        *((key.name, _OF_RECIPE.get(str(key.type), _text)) for key in fields(Recipe)),
        ("freeze_dropped", pa.bool_()),  # in the first stage of finetune_then_drop
        ("epochs_per_layer", pa.int32()),  # of iterative
        ("removed_feed_forwards", _layers),
        ("second_norm", _text),  # keep, drop
        ("distill", _text),  # how it learned from a teacher, such as `logits T=4`; null: it did not
        ("bridge", _text),  # in place of dropped layers: linear; null: nothing
        ("bridge_left", pa.list_(_layer_value)),  # layer it is merged into, part of change left
        ("seconds_bridge", _float),  # to fit it
        ("teacher", _text),  # the trial whose network taught it, or the profile of a folder's
        ("seconds_teacher", _float),  # of training that went to the teacher: logits, hidden states
        ("started_from", _text),  # the trial whose network this one went on from
        ("precision_used", _text),  # fp32 or bf16
        ("compute_used", _text),  # unpadded, grouped, padded, graphs or packed: trials/fast/
        ("deterministic", pa.bool_()),  # whether the seed fixes the result
        ("metric", _text),  # the main metric, that `last` and `best` are of
        ("positive", _text),  # the class that f1 scores, where the task names it
        ("positive_label", pa.int32()),  # its number
        ("last", _float),  # after the last epoch: what every table uses
        ("best", _float),  # best epoch on dev: for curiosity, it is chosen on what it reports
        ("best_epoch", pa.int32()),
        ("majority", _float),  # main metric of always guessing one label, where it has one
        ("dev_blind", _text),  # why the dev rows can't show what a network learned; null: they can
        ("epoch_metrics", pa.list_(_epoch)),
        ("train_losses", pa.list_(_float)),  # mean loss of each epoch, over its rows
        ("train_examples", _int),
        ("dev_examples", _int),
        ("dev_in_train", _int),  # dev rows whose texts also occur in train
        ("dev_relabelled", _int),  # of them those with another label there
        ("train_tokens", _int),  # of one epoch, after truncation
        ("dev_tokens", _int),
        ("steps", _int),
        ("micro_batch", pa.int32()),  # examples of one forward pass
        ("out_of_memory_retries", pa.int32()),  # how often the micro-batch was halved
        ("resumed_from_step", _int),  # the checkpoint it went on from; 0: none
        ("params_total", _int),
        ("params_encoder", _int),
        ("params_embedding", _int),
        ("vector_width", _int),  # of embeddings; null: of no embedding
        ("seconds_load", _float),
        ("seconds_tokenise", _float),
        ("seconds_train", _float),
        ("seconds_evaluate", _float),
        ("seconds_total", _float),
        ("train_examples_per_second", _float),
        ("dev_examples_per_second", _float),
        ("peak_memory_bytes", _int),  # CUDA: allocator peak; CPU: peak resident set of the process
        ("command", _text),  # the command line of the run, without secrets
        *_WHERE,
    ]
)

PROFILES = pa.schema(
    [
        ("profile_id", _text),
        ("measure", _text),  # contribution, probes, similarity, cka, speed, ...
        ("identity_version", pa.int32()),
        ("spec", _text),  # canonical JSON of what the identifier is a hash of
        ("trial_id", _text),  # whose network was measured; null: the pre-trained one
        ("against", _text),  # whose it was compared with; null: the pre-trained one, or none
        ("seed", _int),
        ("kept_layers", _layers),
        ("model", _text),
        ("model_fingerprint", _text),
        ("depth", pa.int32()),
        ("task", _text),
        ("data_fingerprint", _text),
        ("max_length", pa.int32()),
        ("limit_dev", _int),
        ("layers", pa.list_(_layer_value)),  # what a strategy selects by: 1-based layer, value
        ("values", pa.list_(_named_value)),  # all else: see docs/columns.md
        ("dev_examples", _int),
        ("removed_feed_forwards", _layers),  # from here on, of a speed alone
        ("second_norm", _text),
        ("precision_used", _text),
        ("params_total", _int),
        ("params_full", _int),  # of the network with all layers
        ("timings", pa.list_(_timing)),
        ("others_busy_cores", _float),  # that other processes kept busy meanwhile, mean
        ("seconds_total", _float),
        *_WHERE,
    ]
)

_OF_ARTEFACT = [
    ("identity_version", pa.int32()),
    ("spec", _text),  # canonical JSON of what the identifier is a hash of
    ("trial_id", _text),  # whose network it is
    ("model", _text),
    ("model_fingerprint", _text),
    ("depth", pa.int32()),
    ("kept_layers", _layers),
    ("removed_feed_forwards", _layers),
    ("task", _text),
    ("data_fingerprint", _text),  # of train and dev
]

DEPLOYMENTS = pa.schema(
    [
        ("deployment_id", _text),
        *_OF_ARTEFACT,
        ("seed", _int),
        ("format", _text),  # torch, onnx, onnx-int8, onnx-int4
        ("vocabulary", _text),  # full, task
        ("pieces", _int),  # of its vocabulary
        ("words_cut", _float),  # share of dev words cut up otherwise than by the full vocabulary
        ("sha256", _text),  # of the file that holds the weights
        ("bytes", _int),  # of all files that serving needs
        ("metric", _text),
        ("score", _float),  # share, over the whole dev set
        ("dev_examples", _int),
        ("session", _text),  # in which artefacts took turns; milliseconds compare only within it
        ("baseline", _text),  # the deployment of the full model as torch
        ("baseline_ms", _float),  # its `ms` in this session
        ("ms", _float),  # of one text, tokenizer included: median
        ("ms_p95", _float),
        ("tokenizer_ms", _float),
        ("texts_per_second", _float),  # in batches of 32
        ("rounds", pa.int32()),  # in which every artefact took its turn
        ("peak_memory_bytes", _int),  # of a process of its own
        ("others_busy_cores", _float),
        ("seconds_total", _float),
        ("error", _text),  # why it could not be made or run; then it has no score
        *_WHERE,
    ]
)

TEST_SCORES = pa.schema(
    [
        ("test_id", _text),
        *_OF_ARTEFACT,
        ("test_fingerprint", _text),
        ("seed", _int),
        ("format", _text),
        ("vocabulary", _text),
        ("metric", _text),
        ("score", _float),  # share, over all rows that were set aside
        ("test_examples", _int),
        ("baseline", _text),  # the test_id of the full model as torch; null: it was not kept
        ("change", _float),  # points against it
        ("low", _float),  # 95% interval of the change over other rows
        ("high", _float),
        ("look", _int),  # how many artefacts these rows had scored by then, this one among them
        *_WHERE,
    ]
)

PREDICTIONS = pa.schema(
    [
        ("trial_id", _text),  # or a deployment_id or test_id
        ("split", _text),  # validation, validation_mismatched, ...
        ("example", pa.int32()),  # row number in that split
        ("label", _float),
        ("prediction", _float),
        ("scores", pa.list_(pa.float32())),  # logits
        ("tally", pa.list_(_float)),  # what it adds to the sums of the metric: part, whole, ...
    ]
)

TEACHER_LOGITS = pa.schema(
    [
        ("profile_id", _text),  # the measurement `teacher` of the teacher's trial
        ("example", pa.int32()),  # row number among the train rows of the recipe
        ("scores", pa.list_(pa.float32())),  # logits
    ]
)

ATTEMPTS = pa.schema(
    [
        ("attempt_id", _text),
        ("trial_id", _text),  # or a profile_id
        ("model", _text),
        ("task", _text),
        ("seed", _int),
        ("kept_layers", _layers),
        ("error_type", _text),
        ("final", pa.bool_()),  # no further try in that run
        ("message", _text),
        ("traceback", _text),
        ("log", _text),  # the end of what the worker printed
        ("micro_batch", pa.int32()),
        ("command", _text),
        *_WHERE,
    ]
)

CELLS = pa.schema(
    [
        ("sweep", _text),
        ("cell", pa.int32()),  # position in the plan
        ("model", _text),
        ("depth", pa.int32()),
        ("procedure", _text),  # with its bridge and its distillation: `direct distill logits`
        ("bridge", _text),  # linear; null: none
        ("distill", _text),  # logits T=4, ...; null: none
        ("teacher", _text),  # another model, if that teaches
        ("feed_forward", _text),  # none, top 3, every 2nd, ...
        ("strategy", _text),
        ("k", pa.int32()),
        ("threshold", _float),
        ("task", _text),
        ("seed", _int),
        ("kept_layers", _layers),  # null while deferred
        ("dropped_layers", _layers),
        ("trial_id", _text),  # null while deferred
        ("profile_id", _text),  # what a contribution cell depends on
        ("search", _text),  # of until: min_layers: asked, waiting, not_needed; null: of no search
        ("overrides", _text),  # of the run that asked, as a shell takes them; null: not known
        ("setup", _text),  # hash of recipe, rows and model: what cells that are compared must share
        ("settings", _text),  # what `setup` is a hash of
    ]
)

# the folder of a store -> what its files hold
TABLES: dict[str, pa.Schema] = {
    "trials": TRIALS,
    "profiles": PROFILES,
    "deployments": DEPLOYMENTS,
    "test_scores": TEST_SCORES,
    "predictions": PREDICTIONS,
    "teacher_logits": TEACHER_LOGITS,
    "attempts": ATTEMPTS,
    "sweeps": CELLS,
    "earlier": CELLS,  # cells that a sweep listed before its recipe, data or model changed
}

LARGE = frozenset(("predictions", "teacher_logits"))  # a row for each example of a trial
