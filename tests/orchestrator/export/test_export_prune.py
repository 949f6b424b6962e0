"""`lp-sweep prune`: a checkpoint without some layers, and every other weight as it was."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from lp_sweep.orchestrator.export import prunedfolder
from lp_sweep.orchestrator.service.export import prune_model
from lp_sweep.storage.errors import ExportError, LpSweepError, SpecError
from lp_sweep.storage.networks import changed_files
from lp_sweep.trials.model.plainload import load, states_of
from lp_sweep.trials.model.sentencefolder import read_sentence_folder
from tests.support.exportworld import answer_here, change_weights, swap_layers
from tests.support.families import FAMILIES, daily, save_pretrained
from tests.support.hubserver import Hub, serve
from tests.support.hubworld import MODEL, World, model_files
from tests.support.kindworlds import sentence_folder
from tests.support.program import sweep
from tests.support.tiny import tiny_tokenizer

DEPTH = 4
IDS = [[2, 5, 9, 11, 3], [2, 7, 3]]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is loaded by the same program as always, in this process."""
    monkeypatch.setattr(prunedfolder, "ask", answer_here)


def saved(name: str, folder: Path) -> Path:
    save_pretrained(FAMILIES[name], DEPTH, folder)
    tiny_tokenizer(xlnet=name == "xlnet").save_pretrained(folder)
    return folder


def pruned(model: Path, out: Path, **options: Any) -> Any:
    return prune_model(str(model), out=out, offline=True, **options)


def test_a_config_may_hold_anything(tmp_path: Path) -> None:
    """Any name as its class, and settings that an earlier program left, which are not written."""
    source = saved("bert", tmp_path / "model")
    config = json.loads((source / "config.json").read_text())
    left = {"return_dict": False, "output_hidden_states": True, "_attn_implementation": "nonsense"}
    for names in (["logging", "AutoTokenizer", "BertModel"], [3]):
        changed = config | left | {"architectures": names}
        (source / "config.json").write_text(json.dumps(changed))
        done = pruned(source, tmp_path / "out", strategy="top", k=2, force=True)
        assert done.kept_layers == [1, 2], names
        assert not left.keys() & json.loads((tmp_path / "out" / "config.json").read_text()).keys()


@pytest.mark.parametrize("name", daily("roberta", "modernbert"))
def test_the_lower_layers_are_those_of_the_model(name: str, tmp_path: Path) -> None:
    """Dropped from the top, each state of the folder is the model's own, up to its last norm."""
    source = saved(name, tmp_path / "model")
    done = pruned(source, tmp_path / "out", strategy="top", k=2)
    assert (done.kept_layers, done.depth) == ([1, 2], DEPTH)
    whole, _ = load(source, "AutoModel")
    smaller, _ = load(tmp_path / "out", "AutoModel")
    states = states_of(smaller, IDS)
    assert len(states) == 3
    assert states[:2] == pytest.approx(states_of(whole, IDS)[:2], abs=1e-5)
    assert not changed_files(tmp_path / "out")


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_every_weight_stays_as_it_was(name: str, tmp_path: Path) -> None:
    source = saved(name, tmp_path / "model")
    pruned(source, tmp_path / "out", layers=[1, 4])
    before = load_file(source / "model.safetensors")
    after = load_file(tmp_path / "out" / "model.safetensors")
    path = FAMILIES[name].layers
    for key, tensor in after.items():
        head, found, rest = key.partition(f"{path}.1.")
        old = f"{path}.3.{rest}" if found and not head else key
        assert torch.equal(tensor, before[old]), key
    gone = {key for key in before if key.startswith((f"{path}.1.", f"{path}.2."))}
    assert len(after) == len(before) - len(gone)


def test_a_tilde_is_the_home_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves that of `--out=~/six` to us."""
    saved("bert", tmp_path / "home" / "model")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    done = pruned(Path("~/model"), Path("~/six"), strategy="top", k=2)
    assert done.folder == str(tmp_path / "home" / "six")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_the_head_and_the_pooler_stay(tmp_path: Path) -> None:
    """A model for pre-training has both; none of them would be read by the other's class."""
    source = saved("bert", tmp_path / "model")
    pruned(source, tmp_path / "out", strategy="bottom", k=3)
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["lp_sweep_kept_layers"] == [4]
    for kind in ("BertForPreTraining", "BertForMaskedLM", "BertModel"):
        assert load(tmp_path / "out", kind)[1] == [], kind
    words = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert words("a b")["input_ids"] == tiny_tokenizer()("a b")["input_ids"]


def test_several_files_of_half_precision_become_one(tmp_path: Path) -> None:
    source = saved("bert", tmp_path / "model")
    model = transformers.BertModel.from_pretrained(source, dtype=torch.bfloat16)
    (source / "model.safetensors").unlink()
    model.save_pretrained(source, max_shard_size="10KB")
    assert len(list(source.glob("*.safetensors"))) > 1
    pruned(source, tmp_path / "out", strategy="top", k=1)
    [made] = (tmp_path / "out").glob("*.safetensors*")
    assert {tensor.dtype for tensor in load_file(made).values()} == {torch.bfloat16}


def test_weights_of_a_base_model_have_no_prefix(tmp_path: Path) -> None:
    source = saved("bert", tmp_path / "model")
    tensors = load_file(source / "model.safetensors").items()
    bare = {n.removeprefix("bert."): value for n, value in tensors if n.startswith("bert.")}
    save_file(bare, source / "model.safetensors", metadata={"format": "pt"})
    done = pruned(source, tmp_path / "out", strategy="even-alternate", k=2)
    assert done.kept_layers == [1, 3]
    assert load(tmp_path / "out", "AutoModel")[1] == []


def test_a_layer_in_the_place_of_another_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The written folder is compared with the network in memory."""
    source = saved("bert", tmp_path / "model")

    def swapped(folder: Path, request: Any) -> Any:
        change_weights(folder / "model.safetensors", swap_layers)
        return answer_here(folder, request)

    monkeypatch.setattr(prunedfolder, "ask", swapped)
    with pytest.raises(ExportError, match="a state of the folder differs"):
        pruned(source, tmp_path / "out", strategy="top", k=2)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


SEVERAL = ["max", "weightedmean", "mean_sqrt_len_tokens", "lasttoken"]


@pytest.mark.parametrize(
    ("pooling", "after"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, ()),
        ({"pooling_mode": SEVERAL}, ("Dense", "Normalize")),
    ],
    ids=["older", "several, and dense"],
)
def test_the_modules_of_sentence_transformers_stay(
    pooling: dict[str, Any], after: tuple[str, ...], tmp_path: Path
) -> None:
    """What makes vectors of states, prompts and the longest text."""
    source, out = saved("bert", tmp_path / "model"), tmp_path / "out"
    sentence_folder(source, *after, **pooling)
    (source / "config_sentence_transformers.json").write_text('{"prompts": {"query": "find: "}}')
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    pruned(source, out, strategy="top", k=1)
    settings = [*source.glob("*sentence*.json"), source / "modules.json"]
    files = [*settings, *source.glob("?_*/*")]
    assert len(files) == 4 + 3 * bool(after)
    for path in files:
        assert (out / path.relative_to(source)).read_bytes() == path.read_bytes(), path


def test_other_vectors_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved("bert", tmp_path / "model")
    sentence_folder(source, "Dense", pooling_mode=["cls"])

    def other(folder: Path, request: Any) -> Any:
        if "texts" in request:
            sentence_folder(folder, "Dense", pooling_mode=["mean"])
            request = request | {"pooling": read_sentence_folder(folder).pooling}
        return answer_here(folder, request)

    monkeypatch.setattr(prunedfolder, "ask", other)
    with pytest.raises(ExportError, match="a vector of the folder differs"):
        pruned(source, tmp_path / "out", strategy="top", k=2)


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        (["custom_st.Transformer"], r"custom_st\.Transformer.*not run"),
        (["sentence_transformers.models.Transformer", "a.b.Pooling"], r"a\.b\.Pooling"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_modules_that_are_not_known_are_refused(
    kinds: list[str], named: str, tmp_path: Path
) -> None:
    source = saved("bert", tmp_path / "model")
    listed = [{"path": "", "type": kind} for kind in kinds]
    (source / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(SpecError, match=rf"{named}.*without modules\.json"):
        pruned(source, tmp_path / "out", strategy="top", k=2)


def test_a_cross_encoder_keeps_its_settings(tmp_path: Path) -> None:
    source = saved("bert", tmp_path / "model")
    listed = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    (source / "modules.json").write_text(json.dumps(listed))
    (source / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
    pruned(source, tmp_path / "out", strategy="top", k=2)
    for name in ("modules.json", "config_sentence_transformers.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_the_command(tmp_path: Path) -> None:
    """On a folder; `test_a_model_of_the_hub` goes the whole way, in real processes."""
    source = saved("bert", tmp_path / "model")
    (source / "README.md").write_text("---\nlicense: mit\n---\n# It\n", encoding="utf-8")
    arguments = ("./model", "--layers", "1,4", "--out", "out", "--offline", "--json")
    done = sweep("prune", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["folder"], told["kept_layers"], told["depth"]) == ("out", [1, 4], DEPTH)
    assert told["largest_difference"] < 1e-5
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.license, card.data.library_name) == ("mit", "transformers")
    assert "Pruned, not fine-tuned" in card.text
    again = sweep("prune", *arguments, cwd=tmp_path)
    assert again.returncode == 2
    assert "exists. Name another with --out" in again.stderr


@pytest.mark.slow
def test_a_model_of_the_hub(tmp_path: Path) -> None:
    """Fetched at its commit, with the licence of its card; afterwards the cache is enough."""
    hub = Hub()
    card = {"README.md": b"---\nlicense: mit\n---\n# It\n"}
    commit = hub.push("model", MODEL, model_files(tmp_path / "source") | card)
    world = World(tmp_path, hub)
    command = ("-m", "lp_sweep.orchestrator.cli", "prune", MODEL, "--strategy", "top", "--k", "2")
    with serve(hub):
        world.python(*command, "--out", "online")
    assert not set(hub.downloads()) & {"pytorch_model.bin", "tf_model.h5"}
    world.python(*command, "--out", "offline", "--offline")
    for name in ("online", "offline"):
        told = ModelCard.load(tmp_path / name / "README.md").data
        assert (told.base_model, told.license) == (MODEL, "mit")
        about = json.loads((tmp_path / name / "lp_sweep.json").read_text(encoding="utf-8"))
        assert about["model_fingerprint"] == f"hub:{MODEL}@{commit}"
    nothing = world.copy(tmp_path / "elsewhere")
    shutil.rmtree(nothing.home)
    refused = nothing.python(*command, "--out", "x", "--offline", code=2)
    assert "unknown model 'toy/bert'" in refused.stderr


def test_what_can_not_be_pruned(tmp_path: Path) -> None:
    source = saved("modernbert", tmp_path / "model")
    with pytest.raises(LpSweepError, match="must stay there: choose another strategy"):
        pruned(source, tmp_path / "out", strategy="bottom", k=2)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["lp_sweep_removed_feed_forwards"] = [3]
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(SpecError, match=r"lost the feed-forwards of layers \[3\]"):
        pruned(source, tmp_path / "out", strategy="top", k=2)
    with pytest.raises(SpecError, match="no model folder at"):
        pruned(tmp_path / "nothing", tmp_path / "out", strategy="top", k=2)
    assert not (tmp_path / "out").exists()
