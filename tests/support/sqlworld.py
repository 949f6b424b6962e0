"""A store among files worth stealing, and what must be true of them after any query. Not a test."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from lp_sweep.analysis.views import open_views
from lp_sweep.storage.errors import QueryError
from tests.support.fake_records import FakeSweep
from tests.support.fuzzing import outcome

ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


class World:
    """A folder with a store and files worth stealing, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        fake = FakeSweep(folder / "store")
        fake.curve({0: 92.0, 6: 90.0})
        fake.predictions(fake.cells[0]["trial_id"], [True, False])
        self.store = fake.publish()
        (folder / "secret.csv").write_text("a,hunter2\n1,2\n")
        (folder / "secret.json").write_text('{"a": "hunter2"}\n')
        pq.write_table(pa.table({"a": ["hunter2"]}), folder / "secret.parquet")
        self.before = self.files()
        self.catalog = open_views(self.store)

    def files(self) -> dict[str, str]:
        return {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            for path in self.folder.rglob("*")
        }

    def ask(self, sql: str) -> Any:
        """Rows or QueryError; nothing has changed, and the catalog goes on."""
        result = outcome(lambda: self.catalog.query(sql))
        assert isinstance(result, pa.Table | QueryError), result
        assert "hunter2" not in str(result)
        assert self.files() == self.before
        rows = self.catalog.query("SELECT count(*) AS n, sum(k) AS k FROM store.trials").to_pylist()
        assert rows == [{"n": 2, "k": 6}]
        return result


@contextmanager
def standing_in(folder: Path) -> Iterator[World]:
    """HOME and the working folder lie in it: whatever DuckDB leaves is seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("SECRET_TOKEN", "hunter2")
        patch.chdir(folder)
        yield World(folder)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")
