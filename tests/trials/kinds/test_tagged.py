"""Sentences of words and tags from every kind of file, and all that can be wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lp_sweep.storage.errors import MissingInputError
from lp_sweep.trials.data.columns import Rows
from lp_sweep.trials.data.readers import column_names, read_file
from lp_sweep.trials.kinds import KINDS
from lp_sweep.trials.kinds.tokens import word_column
from lp_sweep.trials.spec.specs import TaskDefinition
from tests.support.kindworlds import WRITERS

KIND = KINDS["tokens"]
ENTITIES = TaskDefinition(text_columns=("tokens",), label_column="tags", metric="entity_f1")
PARTS = replace(ENTITIES, metric="accuracy")
WORDS, TAGS = [["Ann", "left", "New", "York"], ["No"]], [["B-p", "O", "B-l", "I-l"], ["O"]]

CONLL = "-DOCSTART- -X- O\n\nAnn NNP B-p\nleft VBD O\nNew NNP B-l\nYork NNP I-l\n\n\nNo UH O\n"
TABS = "\ufeffAnn\tB-p\r\nleft\tO\r\nNew\tB-l\r\nYork\tI-l\r\n\r\nNo\tO"
CONLLU = """\
# sent_id = 1
# text = Ann didn't
1\tAnn\tAnn\tPROPN\t_\t_\t_\t_\t_\t_
2-3\tdidn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdid\tdo\tAUX\t_\t_\t_\t_\t_\t_
3\tn't\tnot\tPART\t_\t_\t_\t_\t_\t_
3.1\tleave\tleave\tVERB\t_\t_\t_\t_\t_\t_

"""


def table(path: Path, definition: TaskDefinition = ENTITIES) -> Rows:
    columns = [definition.text_columns[0], definition.label_column]
    return Rows(where=str(path), table=read_file(str(path), columns))


def rows(**columns: Any) -> Rows:
    return Rows(where="f.parquet", table=pa.table(columns))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "conll", "tabs"])
def test_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"train.{'conll' if kind == 'tabs' else kind}"
    if kind in WRITERS:
        WRITERS[kind](path, {"tokens": WORDS, "tags": TAGS})
    else:
        path.write_bytes((TABS if kind == "tabs" else CONLL).encode())
    found = table(path)
    assert word_column(found, "tokens").to_pylist() == WORDS
    names = KIND.label_names(found, ENTITIES)
    assert names == ("B-l", "I-l", "B-p", "I-p", "O")
    codes = KIND.labels(found, ENTITIES, names)
    assert codes.tolist() == [[2, 4, 0, 1], [4, -100, -100, -100]]


def test_columns_of_conll_files(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(CONLL)
    assert column_names(str(path)) == ["tokens", "2", "tags"]
    assert read_file(str(path), ["2"], 1).to_pydict() == {"2": [["NNP", "VBD", "NNP", "NNP"]]}
    other = tmp_path / "a.conllu"
    other.write_text(CONLLU)
    definition = TaskDefinition(text_columns=("form",), label_column="upos")
    found = table(other, definition)
    assert found.table.to_pydict() == {
        "form": [["Ann", "did", "n't"]],
        "upos": [["PROPN", "AUX", "PART"]],
    }


@pytest.mark.parametrize(
    "text",
    [
        "# id 00-aa\tdomain=train\nAnn B-p\nran O\n\n# id 01\nNo O\n",
        "#begin document (a); part 0\nAnn B-p\nran O\n\nNo O\n\n#end document\n",
        "#\thttps://example.org [2010]\nAnn\tB-p\nran\tO\n\n#\t\nNo\tO\n",
        "# 7\nAnn B-p\nran O\n\n# text\nNo O\n",
    ],
    ids=["other columns", "documents", "tabs", "as many columns"],
)
def test_comments_are_no_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.conll"
    path.write_text(text)
    found = read_file(str(path), ["tokens", "tags"]).to_pydict()
    assert found == {"tokens": [["Ann", "ran"], ["No"]], "tags": [["B-p", "O"], ["O"]]}


def test_a_word_may_begin_with_a_number_sign(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text("# O\nnow B-p\n\n#now B-p\n# O\r\n")
    found = read_file(str(path), ["tokens"]).to_pydict()
    assert found == {"tokens": [["#", "now"], ["#now", "#"]]}
    path.write_text("Ann B-p\rran O\r\rNo O\r")
    assert read_file(str(path), ["tokens"]).to_pydict() == {"tokens": [["Ann", "ran"], ["No"]]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a O\nb\n", "line 2 has 1 columns, not 2"),
        ("word tag\na O\n", "line 1 names columns"),
        ("a O\n" * 1001, "1,001 words are one sentence"),
        ("a O\n# one two\nb O\n", r"line 2 has 3 columns, not 2; a comment \(#\)"),
        ("\n \n", "no word"),
    ],
    ids=["a tag is missing", "a header", "one sentence", "a comment within", "empty"],
)
def test_what_is_no_conll_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.conll"
    path.write_text(text)
    with pytest.raises(MissingInputError, match=rf"a\.conll.*{said}"):
        read_file(str(path), ["tokens", "tags"])


def test_tags_as_numbers() -> None:
    features = {"tags": {"feature": {"names": ["O", "B-p", "I-p"], "_type": "ClassLabel"}}}
    named = rows(tokens=[["a", "b"]], tags=[[1, 2]])
    with_names = named.table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    found = replace(named, table=with_names)
    names = KIND.label_names(found, ENTITIES)
    assert names == ("O", "B-p", "I-p")
    assert KIND.labels(found, ENTITIES, names).tolist() == [[1, 2]]
    listed = replace(ENTITIES, labels=("O", "B-p", "I-p"))
    assert KIND.labels(named, listed, KIND.label_names(named, listed)).tolist() == [[1, 2]]
    assert KIND.label_names(named, PARTS) == ("1", "2")


WRONG = {
    "negative": (dict(tokens=[["[CLS]", "a"]], tags=[[-100, 1]]), "-100 in row 1, word 1: .*[CLS]"),
    "no lists": (dict(tokens=["a b"], tags=["O O"]), r"'t\w+' holds string, not lists"),
    "numbers": (dict(tokens=[[1]], tags=[["O"]]), "'tokens' holds lists of int64"),
    "empty": (dict(tokens=[["a"], []], tags=[["O"], []]), "empty list in 1 of 2 rows.*row 2"),
    "null": (dict(tokens=[["a"], ["b", None]], tags=[["O"], ["O", "O"]]), "row 2, word 2"),
    "unequal": (
        dict(tokens=[["a"], ["b", "c"]], tags=[["B-x"], ["O"]]),
        "row 2 has 2 words.*'tokens' and 1 tags.*'tags'.*1 of 2",
    ),
    "no tag": (dict(tokens=[["a", "b"]], tags=[["O", ""]]), "empty tag in row 1, word 2"),
    "scheme": (
        dict(tokens=[["a"], ["b", "c"]], tags=[["O"], ["B-x", "PER"]]),
        r"'PER'.*row 2, word 2.*BIO and BIOES.*metric: accuracy",
    ),
    "stray": (
        dict(tokens=[["a"], ["b", "c"]], tags=[["B-x"], ["O", "I-x"]]),
        r"'I-x'.*row 2, word 2.*no entity.*Begin each entity with B-x",
    ),
    "open": (
        dict(tokens=[["a", "b"]], tags=[["S-x", "B-x"]]),
        r"'B-x'.*row 1, word 2.*E-x at the end",
    ),
    "one tag": (dict(tokens=[["a", "b"]], tags=[["O", "O"]]), "every word has the tag 'O'"),
}


@pytest.mark.parametrize(("columns", "said"), WRONG.values(), ids=WRONG)
def test_what_can_be_wrong(columns: dict[str, Any], said: str) -> None:
    found = rows(**columns)
    with pytest.raises(MissingInputError, match=rf"f\.parquet.*{said}"):
        KIND.labels(found, ENTITIES, KIND.label_names(found, ENTITIES))


def test_a_tag_that_train_does_not_have() -> None:
    train = rows(tokens=[["a", "b"]], tags=[["B-per", "O"]])
    dev = rows(tokens=[["a"], ["b"]], tags=[["I-per"], ["B-pre"]])
    names = KIND.label_names(train, ENTITIES)
    with pytest.raises(MissingInputError, match=r"'B-pre'.*row 2, word 1.*labels:.*'B-per'"):
        KIND.labels(dev, ENTITIES, names)
    listed = replace(ENTITIES, labels=("O", "per"))
    with pytest.raises(MissingInputError, match=r"'per'.*outside"):
        KIND.label_names(train, listed)
