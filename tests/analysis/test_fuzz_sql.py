"""SQL of any kind: rows or one message, and afterwards every file is as it was and no new one is
there; no query takes all memory, and Ctrl-C ends each."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from lp_sweep.storage import reading
from lp_sweep.storage.errors import QueryError
from tests.support.fuzzing import AWKWARD, run
from tests.support.program import sweep
from tests.support.sqlworld import ESCAPES, World, standing_in


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with standing_in(tmp_path_factory.mktemp("world")) as world:
        yield world


# -- what is refused, and what is answered

READ_ONLY = """
CREATE TEMP TABLE mine AS FROM trials
UPDATE store.trials SET last = 1
COPY trials TO 'out.csv'
SET enable_external_access = true
SELECT content FROM read_text('/etc/passwd')
EXPLAIN ANALYZE DELETE FROM store.trials
"""
REFUSED = """
EXPLAIN ANALYZE LOAD httpfs
EXPLAIN ANALYZE COPY (FROM store.trials) TO 'out.file'
COPY (PIVOT trials ON task) TO 'out.file'
INSERT INTO store.trials PIVOT trials ON task
WITH x AS (DELETE FROM store.trials RETURNING *) FROM x
TRUNCATE store.trials
FORCE INSTALL httpfs
LOAD 'x.duckdb_extension'
ATTACH 'https://example.org/x.db'
EXPORT DATABASE 'out.file'
CREATE SECRET (TYPE s3)
SET VARIABLE x = 1
CALL checkpoint()
FROM 'secret.csv'
FROM '*.parquet'
FROM '/proc/self/environ'
PIVOT trials ON (SELECT content FROM read_text('secret.csv'))
FROM query('DROP TABLE store.trials')
FROM query('FROM read_text(''secret.csv'')')
FROM json_execute_serialized_sql(json_serialize_sql('FROM ''secret.csv'''))
SELECT getenv('SECRET_TOKEN')
FROM duckdb_extensions()
FROM http_get('https://example.org')
FROM python_variable
FROM enable_logging(storage='file', storage_path='logs')
FROM enable_profiling(save_location='p')
SELECT 1; DROP TABLE store.trials
;
--
/*
'
"""
READERS = """
read_csv read_csv_auto sniff_csv read_text read_blob glob read_json read_json_auto read_ndjson
read_json_objects read_ndjson_objects read_parquet parquet_scan parquet_metadata parquet_schema
parquet_file_metadata parquet_kv_metadata query_table read_duckdb delta_scan iceberg_scan
sqlite_scan st_read read_xlsx
"""
MORE = [
    "SELECT 1 --\n; DROP TABLE store.trials",
    "SELECT " + "(SELECT * FROM " * 60_000,
    f"SELECT '{'x' * 300_000}'",
    *(f"FROM {reader}('secret.*')" for reader in READERS.split()),
]


def test_what_is_refused(world: World) -> None:
    for sql in [*REFUSED.strip().splitlines(), *MORE]:
        assert isinstance(world.ask(sql), QueryError), sql[:60]
    for sql in READ_ONLY.strip().splitlines():
        assert "read-only" in str(world.ask(sql)), sql


ANSWERED = """
EXPLAIN SELECT 1
EXPLAIN (FORMAT json) FROM trials
/* a */ PIVOT trials ON task USING sum(k)
WITH x AS (FROM trials) PIVOT x ON task
VALUES (1)
SUMMARIZE trials
DESCRIBE trials
SELECT 1;;
SELECT 'COMMIT; DROP TABLE trials'
FROM duckdb_secrets()
FROM task_table PIVOT (first(mean) FOR task IN ('SST-2'))
FROM store.sweeps
FROM query('SELECT 1')
WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 50) FROM t
"""


def test_what_is_answered(world: World) -> None:
    for sql in [*ANSWERED.strip().splitlines(), "-- a\nEXPLAIN SELECT 1"]:
        assert isinstance(world.ask(sql), pa.Table), sql


# -- any statement made of these

WORDS = r"""
SELECT * FROM WHERE 1 COPY TO EXPLAIN ANALYZE PIVOT ON USING WITH x AS ( ) , ; EXPORT DATABASE
CREATE TABLE TEMP VIEW INSERT INTO DELETE DROP UPDATE SET ATTACH DETACH INSTALL LOAD PRAGMA CALL
VACUUM CHECKPOINT COMMIT ROLLBACK BEGIN PREPARE EXECUTE DESCRIBE SHOW SUMMARIZE VALUES UNION ALL
trials store.trials cells predictions k task sum(k) httpfs x.db GROUP BY LIMIT /* */ -- '' $$ \ ::
{ } [ ] lambda é 🙂 'secret.csv' 'out.csv' read_text('secret.csv') glob('*') getenv('HOME')
read_parquet('*.parquet') read_csv('secret.csv') enable_logging() duckdb_secrets() range(3)
current_setting('threads') secret.csv query('COMMIT')
"""
PIECES = [*WORDS.split(), '"', "\n", "\0", "(FORMAT parquet)", "query('SELECT 1')"]
HARMLESS = [piece for piece in AWKWARD if len(piece) < 100]


def statements() -> st.SearchStrategy[str]:
    pieces = st.lists(st.sampled_from([*PIECES, *HARMLESS]), min_size=1, max_size=9)
    return pieces.map(" ".join) | st.text(max_size=20)


@pytest.mark.parametrize(
    "examples", [30, pytest.param(20_000, marks=pytest.mark.slow)], ids=["everyday", "long"]
)
def test_statements(world: World, examples: int) -> None:
    def law(sql: str) -> None:
        world.ask(sql)

    run(examples, law, sql=statements())


# -- bounds


def test_a_result_is_bounded(world: World) -> None:
    with pytest.raises(QueryError, match=r"more than 256 MiB. Ask for less"):
        world.catalog.query("SELECT range, range + 1 FROM range(40000000)")
    assert world.catalog.query("FROM trials").num_rows == 2


def test_memory_is_half_of_what_duckdb_would_take() -> None:
    def gibibytes(connection: duckdb.DuckDBPyConnection) -> float:
        setting = connection.sql("SELECT current_setting('memory_limit')").fetchall()[0][0]
        size, unit = setting.split()
        return float(size) * {"MiB": 2**-10, "GiB": 1, "TiB": 2**10}[unit]

    free, ours = duckdb.connect(":memory:"), reading.connect()
    assert gibibytes(ours) == pytest.approx(gibibytes(free) / 2, rel=0.1)


@pytest.mark.slow
def test_no_value_outgrows_the_limit_of_the_process(world: World) -> None:
    """Half of the machine's memory; here 100 MiB more than is in use when the query begins."""
    code = """
from lp_sweep.orchestrator.cli import __main__ as cli
from lp_sweep.storage import reading

def little(connection):
    told = open("/proc/self/status").read()
    return 1024 * int(told.split("VmData:")[1].split()[0]) + 100 * 2**20

reading._most_memory = little
try:
    cli.main()
finally:
    told = open("/proc/self/status").read()  # getrusage has what was there before exec
    print(int(told.split("VmHWM:")[1].split()[0]) // 1024)
"""
    sql = "SELECT lpad('a', 70000000, 'b')"
    asked = [sys.executable, "-c", code, "query", sql, "--store", "store"]
    done = subprocess.run(asked, cwd=world.folder, capture_output=True, text=True)
    assert done.returncode == 2, done
    assert "emory" in done.stderr
    assert "Traceback" not in done.stderr
    assert int(done.stdout) < 500  # MiB, most of it Python's libraries


def test_a_state_that_outgrows_memory_is_the_querys_error() -> None:
    connection = reading.connect()
    connection.execute("SET memory_limit = '100MB'")
    connection.execute("SET lock_configuration = true")
    with pytest.raises(QueryError, match="Out of Memory"):
        reading.run(connection, "SELECT count(DISTINCT hash(range)) FROM range(30000000)", {})
    assert reading.run(connection, "SELECT 1 AS a", {}).to_pylist() == [{"a": 1}]


def test_a_statement_that_ends_the_transaction_leaves_the_next_one_alone() -> None:
    connection = reading.connect()
    connection.execute("CREATE TABLE t AS SELECT 1 AS a")
    connection.execute("SET lock_configuration = true")
    reading.run(connection, "EXPLAIN ANALYZE COMMIT", {})
    assert reading.run(connection, "FROM t", {}).to_pylist() == [{"a": 1}]
    with pytest.raises(QueryError, match="read-only"):
        reading.run(connection, "DELETE FROM t", {})
    assert reading.run(connection, "FROM t", {}).num_rows == 1


READY = """
from lp_sweep.analysis import render, views
from lp_sweep.orchestrator.cli import __main__ as cli
from lp_sweep.orchestrator.service import store
print("ready", flush=True)
cli.main()
"""


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) FROM t",
        # DuckDB does not stop amid one value
        pytest.param("SELECT lpad('a', 2000000000, 'b')", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_ends_an_endless_query(world: World, sql: str) -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", READY, "query", sql, "--store", "store"],
        cwd=world.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"
    time.sleep(1.0)
    assert running.poll() is None
    running.send_signal(signal.SIGINT)
    asked = time.monotonic()
    output, errors = running.communicate(timeout=30)
    assert time.monotonic() - asked < 2
    assert (running.returncode, output) == (130, "")
    assert "Traceback" not in errors


def test_what_duckdb_makes_of_ctrl_c_is_ctrl_c_again() -> None:
    with pytest.raises(KeyboardInterrupt), reading.ctrl_c():
        raise RuntimeError("Query interrupted")
    for error in (RuntimeError("something else"), duckdb.InvalidInputException("else")):
        with pytest.raises(type(error), match="else"), reading.ctrl_c():
            raise error
    told = "counting the rows of 'incoming_rows' failed: KeyboardInterrupt: "
    for error in (duckdb.InvalidInputException(told), duckdb.InterruptException("Interrupted!")):
        with pytest.raises(KeyboardInterrupt), reading.ctrl_c():
            raise error


# -- the command line


@pytest.mark.parametrize(
    "sql",
    [
        "COPY trials TO 'out.csv'",
        "SELECT error(chr(27) || '[31mred' || chr(10) || 'next')",
        "",
        "SELECT '\udcff'",
    ],
    ids=ascii,
)
def test_a_refusal_is_one_message_and_exit_2(world: World, sql: str) -> None:
    done = sweep("query", sql, "--store", "store", cwd=world.folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr
    first, *further = done.stderr.splitlines()
    assert first.startswith("error: ")
    assert all(line.startswith("       ") for line in further), "none looks like a message"
    assert not ESCAPES.search(done.stderr)
    assert world.files() == world.before
