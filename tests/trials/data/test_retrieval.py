"""`kind: embedding` with a corpus: its files, a trial and its record, and what a plan says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from lp_sweep.orchestrator.inputs.checks import check_small_files
from lp_sweep.orchestrator.inputs.resolve import NeededInputs, resolve
from lp_sweep.orchestrator.plan.known import WorkHistory
from lp_sweep.orchestrator.plan.planning import make_plan
from lp_sweep.orchestrator.sweepfile.load import load_sweep
from lp_sweep.storage.errors import MissingInputError, SpecError
from lp_sweep.storage.store import Store
from lp_sweep.trials.data.datasource import doubtful_rows, load_task, overlap
from lp_sweep.trials.data.retrieval import read_collection
from lp_sweep.trials.data.tasks import TaskSource, user_definition
from lp_sweep.trials.kinds import kind_of
from lp_sweep.trials.kinds.rankmetrics import ndcg
from lp_sweep.trials.spec.specs import TaskDefinition
from tests.support.kindworlds import (
    WRITERS,
    Table,
    collection,
    search_world,
    vectors_by_hand,
    write,
)
from tests.support.plain_jobs import done
from tests.support.toyworld import jobs


class Search(NamedTuple):
    definition: TaskDefinition
    source: TaskSource


def task(
    folder: Path,
    tables: dict[str, Table] | None = None,
    text: Sequence[str] = (),
    skip_unjudged: bool = False,
    **files: str,
) -> Search:
    found = write(folder, tables or collection()) | files
    source = TaskSource(files=found, skip_unjudged=skip_unjudged)
    return Search(user_definition("find", kind="retrieval", text=text), source)


# -- the files


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_reads_alike(tmp_path: Path, suffix: str) -> None:
    tables = collection()
    found = read_collection(write(tmp_path, tables, suffix), skip_unjudged=False)
    corpus = tables["corpus"]
    assert found.queries == tables["queries"]["text"]
    assert found.documents[5] == f"{corpus['title'][5]} {corpus['text'][5]}"
    wanted = {
        (int(query[1:]), int(document[1:]), value)
        for query, document, value in zip(*tables["qrels"].values(), strict=True)
    }
    assert {tuple(row) for row in found.judged.tolist()} == wanted
    assert np.all(np.diff(found.judged[:, 0]) >= 0)


@pytest.mark.parametrize(
    ("titles", "documents"), [({}, ["a", "b"]), ({"title": ["t", None]}, ["t a", "b"])]
)
def test_other_names_numbers_and_no_title(
    tmp_path: Path, titles: Table, documents: list[str]
) -> None:
    files = write(
        tmp_path,
        {
            "corpus": {"id": [7, 8], "text": ["a", "b"]} | titles,
            "queries": {"id": [1], "text": ["a"]},
            "qrels": {"query_id": [1, 1], "doc_id": [8, 7], "relevance": [0, 3]},
        },
    )
    found = read_collection(files, skip_unjudged=False)
    assert found.documents == documents
    assert found.judged.tolist() == [[0, 0, 3]]


@pytest.mark.parametrize("name", ["qrels.tsv", "qrels.txt", "dev.qrels", "my.trec"])
def test_judgements_as_trec_writes_them(tmp_path: Path, name: str) -> None:
    files = write(tmp_path, collection(), "tsv")
    (tmp_path / name).write_text("q0 0 d3 2\nq1\t 0 d4\t1\n\nq1 0 d5 -1\n")
    found = read_collection(files | {"qrels": str(tmp_path / name)}, skip_unjudged=True)
    assert found.judged.tolist() == [[0, 3, 2], [1, 4, 1]]


def changed(part: str, column: str, row: int, value: Any) -> dict[str, Table]:
    tables = collection()
    tables[part][column][row] = value
    return tables


def unjudged(tables: dict[str, Table]) -> dict[str, Table]:
    """The second query's judgements are 0."""
    tables["qrels"]["score"][2:4] = [0, -1]
    return tables


@pytest.mark.parametrize(
    ("tables", "match"),
    [
        (unjudged(collection()), r"queries.parquet: 1 of 9 queries.*qrels.*'q1'.*row 2.*unjudged"),
        (
            collection() | {"queries": {"_id": ["other"], "text": ["a"]}},
            r"qrels.parquet: .*queries.parquet",
        ),
        (changed("qrels", "corpus-id", 3, "d99"), r"qrels.parquet: row 4.*'d99'.*corpus"),
        (changed("qrels", "score", 3, None), r"qrels.parquet: column 'score'.*row 4"),
        (changed("corpus", "_id", 8, "d3"), r"corpus.parquet: rows 4 and 9.*_id 'd3'"),
        (changed("corpus", "text", 8, None), r"corpus.parquet: column 'text'.*row 9"),
        (
            collection() | {"qrels": {"query-id": ["q0"], "corpus-id": ["d0"]}},
            r"qrels.parquet: qrels.*'score' or 'relevance'.*query-id",
        ),
    ],
)
def test_bad_rows_name_file_row_and_remedy(
    tmp_path: Path, tables: dict[str, Table], match: str
) -> None:
    with pytest.raises(MissingInputError, match=match):
        load_task(*task(tmp_path, tables, skip_unjudged="other" in str(tables["queries"])))


def test_judgements_of_other_queries_are_counted(tmp_path: Path) -> None:
    made = task(tmp_path, collection())
    assert not [*doubtful_rows(load_task(*made), made.source)]
    tables = collection()
    tables["qrels"]["query-id"] = ["other", *tables["qrels"]["query-id"][1:]]
    made = task(tmp_path, tables, skip_unjudged=True)
    [note] = doubtful_rows(load_task(*made), made.source)
    assert re.search(r"qrels.parquet: 1 judgement .*queries.parquet", note)


def test_unjudged_queries_may_be_left_out(tmp_path: Path) -> None:
    tables = unjudged(collection())
    split = load_task(*task(tmp_path, tables, skip_unjudged=True)).dev["queries"]
    assert split.texts[0][:8] == [t for i, t in enumerate(tables["queries"]["text"]) if i != 1]
    assert list(np.unique(split.labels[:, 0])) == [*range(8)]


def test_a_limit_is_one_of_queries(tmp_path: Path) -> None:
    made = task(tmp_path)
    whole, some = load_task(*made), load_task(*made, limit_dev=3, limit_train=5)
    assert (len(whole.dev["queries"]), len(some.dev["queries"])) == (9 + 40, 3 + 40)
    assert list(np.unique(some.dev["queries"].labels[:, 0])) == [0, 1, 2]
    here = [whole.dev["queries"].texts[0].index(t) for t in some.dev["queries"].texts[0][:3]]
    pairs = whole.dev["queries"].labels
    wanted = [tuple(row[1:]) for query in here for row in pairs[pairs[:, 0] == query].tolist()]
    assert [tuple(row[1:]) for row in some.dev["queries"].labels.tolist()] == wanted
    assert len(some.train) == 5


def test_it_learns_from_the_corpus_and_never_from_queries(tmp_path: Path) -> None:
    loaded = load_task(*task(tmp_path))
    assert loaded.train.texts == (loaded.dev["queries"].texts[0][9:],)
    assert overlap(loaded)[:3] == (0, 0, 9)
    WRITERS["jsonl"](
        tmp_path / "own.jsonl", {"a": ["x", "y"], "b": ["z", loaded.dev["queries"].texts[0][0]]}
    )
    own = task(tmp_path, text=["a", "b"], train=str(tmp_path / "own.jsonl"))
    loaded = load_task(*own)
    assert loaded.train.texts[0] == ["x", "y"]
    assert overlap(loaded)[:3] == (1, 0, 9)


def test_a_first_look_at_a_large_corpus(tmp_path: Path) -> None:
    """Judgements of documents that were not read are no error."""
    loaded = load_task(*task(tmp_path), most=10)
    assert len(loaded.train) == 10
    assert loaded.looked_at == 10
    judged = loaded.dev["queries"].labels
    assert judged[:, 1].max() <= 10
    assert set(np.unique(judged[:, 0])) == set(range(int(judged[:, 0].max()) + 1))


def of_arguments(own: int = 9) -> dict[str, Table]:
    """As in ArguAna: the first queries are documents, with their text and identifier."""
    tables = collection()
    names = [f"d{30 + i}" if i < own else f"q{i}" for i in range(9)]
    judged = tables["qrels"]["query-id"]
    texts = [
        f"{tables['corpus']['title'][30 + i]} {tables['corpus']['text'][30 + i]}"
        if i < own
        else tables["queries"]["text"][i]
        for i in range(9)
    ]
    documents = [f"d{i}" for i in range(18)]
    return tables | {
        "queries": {"_id": names, "text": texts},
        "qrels": tables["qrels"]
        | {"query-id": [names[int(name[1:])] for name in judged], "corpus-id": documents},
    }


@pytest.mark.parametrize("own", [0, 2, 9])
def test_a_query_does_not_find_itself(tmp_path: Path, own: int) -> None:
    """By vectors with which the query itself is nearest, and its relevant documents come next."""
    made = task(tmp_path, of_arguments(own))
    loaded = load_task(*made)
    labels = loaded.dev["queries"].labels
    assert list(labels[labels[:, 2] == 0, 1]) == [30 + i for i in range(own)]
    vectors = np.zeros((9 + 40, 50), np.float32)
    for query, document, relevance in labels.tolist():
        at = 9 + int(document)
        vectors[int(query), int(query)] = vectors[at, int(query)] = 1
        vectors[at, -1] = 1 - relevance / 2 if relevance else 0  # 2 is nearer than 1
    kind = kind_of(made.definition)
    found = [kind.tally(metric, labels, vectors, ()) for metric in kind.metrics]
    assert [each.mean(axis=0).tolist() for each in found if each is not None] == [[1, 1]] * 3
    stored = list(kind.stored(labels, vectors, "ndcg@10", ()))
    assert {row["label"] for row in stored} == {2}
    assert {len(row["scores"]) for row in stored} == {2}
    notes = [*doubtful_rows(loaded, made.source)]
    assert len(notes) == bool(own)
    assert all(re.search(rf"queries.parquet: {own} quer.*corpus.parquet.*BEIR", n) for n in notes)


def test_identifiers_that_only_number_both_files(tmp_path: Path) -> None:
    """Query 3 is answered by document 3: most such pairs are judged relevant."""
    tables = collection()
    tables["corpus"]["_id"], tables["queries"]["_id"] = list(range(40)), list(range(9))
    tables["qrels"] = {"query-id": [*range(9)], "corpus-id": [*range(9)], "score": [1] * 9}
    assert (load_task(*task(tmp_path, tables)).dev["queries"].labels[:, 2] == 1).all()
    tables["qrels"]["corpus-id"] = [*range(4), *range(30, 35)]
    labels = load_task(*task(tmp_path, tables)).dev["queries"].labels
    assert (labels[:, 2] == 0).sum() == 9, "a judgement of a query itself counts as missed"
    assert (labels[:, 2] == 1).sum() == 9


# -- in a sweep


def ranked_by_hand(folder: Path, tables: dict[str, Table]) -> list[float]:
    """nDCG@10 of each query, one text and one document at a time."""
    names, titles, texts = tables["corpus"].values()
    documents = [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
    queries = vectors_by_hand(folder / "model", tables["queries"]["text"])
    similar = queries @ vectors_by_hand(folder / "model", documents).T
    judged: dict[str, dict[str, float]] = {}
    for query, document, value in zip(*tables["qrels"].values(), strict=True):
        judged.setdefault(query, {})[document] = value
    found = []
    for name, row in zip(tables["queries"]["_id"], similar, strict=True):
        ranked = [judged[name].get(names[best], 0) for best in row.argsort(descending=True)]
        found.append(float(ndcg(np.array(ranked), np.array([*judged[name].values()]), 10)))
    return found


def test_a_trial_finds_what_search_by_hand_finds(tmp_path: Path, store: Store) -> None:
    file = search_world(tmp_path / "world")
    done(store, *sorted(jobs(file), key=lambda job: job["kind"]))
    rows = store.read_all("trials").rows.to_pylist()
    full, alone, taught = sorted(rows, key=lambda row: (row["k"], row["procedure"] == "direct"))
    assert (full["metric"], full["majority"]) == ("ndcg@10", None)
    assert (full["dev_examples"], full["train_examples"]) == (9, 40)
    assert taught["train_losses"][1] < taught["train_losses"][0]
    one, other = (store.read("predictions", row["trial_id"]) for row in (alone, taught))
    assert [row["scores"] for row in one] != [row["scores"] for row in other]

    expected = ranked_by_hand(file.parent, collection())
    stored = store.read("predictions", full["trial_id"])
    assert [row["prediction"] for row in stored] == pytest.approx(expected)
    assert [row["tally"] for row in stored] == [[row["prediction"], 1.0] for row in stored]
    assert full["last"] == pytest.approx(np.mean(expected))
    assert {row["label"] for row in stored} == {2.0}
    assert {len(row["scores"]) for row in stored} == {2}
    told = {item["metric"] for item in full["epoch_metrics"]}
    assert told == {"ndcg@10", "mrr@10", "recall@100"}


def test_a_plan_says_what_the_rows_are(tmp_path: Path) -> None:
    sweep = resolve(load_sweep(search_world(tmp_path / "world")))
    (found,) = sweep.tasks.values()
    assert (found.train_rows, found.dev_rows) == (40, 49)
    plan = make_plan(sweep, WorkHistory.nothing())
    assert len(plan.trials) == 3
    notes, (data,) = check_small_files(sweep, NeededInputs([*sweep.models], [found]))
    assert not notes
    assert (data.train_rows, data.dev_rows, data.metric) == (40, 9, "ndcg@10")


SEARCH = "kind: embedding, corpus: c.jsonl, queries: q.jsonl, qrels: r.tsv"
PAIRS = "train: t.csv, dev: d.csv, text: a"


@pytest.mark.parametrize(
    ("task", "match"),
    [
        ("kind: embedding, corpus: c.jsonl, queries: q.jsonl", r"'find'.*Add `qrels:`"),
        (f"{SEARCH}, dev: d.csv", r"'find'.*remove `dev:`"),
        (f"{SEARCH}, label: score", r"'find'.*remove `label:`"),
        (f"{SEARCH}, text: [a]", r"'find'.*`text:`.*`train:`"),
        (f"{SEARCH}, unjudged: keep", r"unjudged.*'refuse' or 'skip'"),
        (SEARCH.replace("embedding", "classification"), r"'find'.*`kind: embedding`"),
        (f"{SEARCH}, metric: spearman", r"retrieval metric .spearman.*ndcg@10"),
        (f"{SEARCH}, loss: cosent", r"cosent.*`train:`"),
        (
            f"{SEARCH}, train: t.csv, text: [a], loss: in_batch_negatives",
            r"in_batch_negatives.*two columns",
        ),
        (f"{PAIRS}, loss: cosent", r"`loss:`.*kind embedding"),
        (f"{PAIRS}, similarity: dot", r"`similarity:`.*kind embedding"),
    ],
)
def test_a_mistake_names_its_line(tmp_path: Path, task: str, match: str) -> None:
    (tmp_path / "sweep.yaml").write_text(f"""schema_version: 1
name: x
models: [./model]
tasks:
  - {{name: find, {task}}}
strategies: [{{name: top, k: [0, 2]}}]
""")
    with pytest.raises(SpecError, match=f"sweep.yaml:5.*{match}"):
        load_sweep(tmp_path / "sweep.yaml")
