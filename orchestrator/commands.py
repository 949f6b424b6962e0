"""What each command does, without parsing and printing: one function a verb."""

from __future__ import annotations

import json
import shlex
import sys
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

from lp_sweep.orchestrator.estimate import Rates, estimate
from lp_sweep.orchestrator.load import SweepFile, load_sweep
from lp_sweep.orchestrator.options import BUILT_IN, DEFAULT_STORE
from lp_sweep.orchestrator.plan import Known, Plan, make_plan, read_known
from lp_sweep.orchestrator.resolve import Sweep, resolve
from lp_sweep.storage.errors import StoreError
from lp_sweep.storage.store import Store, is_store


class Request(NamedTuple):
    """A sweep file as named on the command line, with what overrides it."""

    file: str
    overrides: list[str]
    store: Path | None
    data_dir: Path | None
    offline: bool


def _sweep_file(request: Request) -> SweepFile:
    """The file; `quickstart` is the built-in one where no such file exists."""
    if request.file == BUILT_IN and not Path(request.file).is_file():
        with as_file(files("lp_sweep.quickstart")) as folder:
            return load_sweep(folder / "sweep.yaml", request.overrides)
    return load_sweep(Path(request.file), request.overrides)


def _store_path(request: Request, file: SweepFile) -> Path:
    """--store (or LP_SWEEP_STORE), else the file's, else lp-sweep-store in this folder."""
    if request.store is not None:
        return request.store
    if file.spec.store is not None:
        return file.folder / Path(file.spec.store).expanduser()
    return DEFAULT_STORE


def _plan(request: Request, file: SweepFile, sweep: Sweep) -> tuple[Plan, Rates]:
    path = _store_path(request, file)
    if not is_store(path):
        return make_plan(sweep, Known.nothing()), Rates([])
    store = Store(path)
    return make_plan(sweep, read_known(store)), Rates(store.read_all("trials").rows.to_pylist())


def plan(request: Request, as_json: bool) -> str:
    from lp_sweep.orchestrator.planview import plan_json, plan_text

    file = _sweep_file(request)
    made, rates = _plan(
        request, file, resolve(file, data_dir=request.data_dir, offline=request.offline)
    )
    hours = estimate(made, rates)
    return json.dumps(plan_json(made, hours)) if as_json else plan_text(made, hours, rates)


def run(request: Request, *, address: str | None, cache_dir: Path | None, as_json: bool) -> int:
    """Returns the exit code."""
    from lp_sweep.orchestrator import preflight
    from lp_sweep.orchestrator.cluster import Options
    from lp_sweep.orchestrator.driver import run_sweep
    from lp_sweep.orchestrator.overrides import is_part
    from lp_sweep.orchestrator.progress import make_reporter

    file = _sweep_file(request)
    sweep = resolve(file, data_dir=request.data_dir, offline=request.offline)
    store = Store(_store_path(request, file), create=True)
    first = make_plan(sweep, read_known(store))
    for note in sweep.notes:
        _say(f"note: {note}")
    preflight.check(first, store, offline=request.offline)
    store.put_text("sweeps", f"{sweep.name}.yaml", _as_run(file))
    resources = sweep.spec.resources_per_trial
    outcome = run_sweep(
        sweep,
        store,
        Options(
            cache_dir=cache_dir or preflight.default_cache_dir(),
            address=address,
            cpus_per_trial=resources.cpu,
            gpus_per_trial=resources.gpu,
            offline=request.offline,
            part=is_part(request.overrides),
        ),
        make_reporter(),
    )
    again = _again(request, store, address, cache_dir)
    totals = outcome.plan.totals()
    if as_json:
        print(json.dumps({"totals": totals, "done": outcome.done, "failed": outcome.failed}))
    return _farewell(outcome, store, again)


def _again(request: Request, store: Store, address: str | None, cache_dir: Path | None) -> str:
    """The command that goes on: with every option that decides what is trained, and where."""
    options = {"--store": store.root, "--data-dir": request.data_dir} | {
        "--address": address,
        "--cache-dir": cache_dir,
    }
    words = ["lp-sweep", "run", request.file, *request.overrides]
    for name, value in options.items():
        words += [name, str(value)] if value is not None else []
    return shlex.join([*words, "--offline"] if request.offline else words)


def _farewell(outcome: Any, store: Store, again: str) -> int:
    """Says how the run ended and what to do next; gives the exit code."""
    where = shlex.quote(str(store.root))
    for id_, error_type in outcome.failed.items():
        _say(f"failed: {id_} ({error_type}) {_last_message(store, id_)}")
    if outcome.stopped_by:
        _say(f"stopped by {outcome.stopped_by}: {outcome.done} done in this run. Go on: {again}")
        return 130 if outcome.stopped_by == "SIGINT" else 3
    if outcome.failed:
        _say(
            f'{len(outcome.failed)} failed. Tracebacks: lp-sweep query "SELECT * FROM attempts" '
            f"--store {where}. Try them again: {again}"
        )
        return 1
    what = f"{outcome.done} done in this run" if outcome.done else "nothing was missing"
    _say(f"complete: {what}. Records: {store.root}")
    _say(f"next: lp-sweep table min-layers --store {where}")
    return 0


def _last_message(store: Store, id_: str) -> str:
    names = [name for name in store.names("attempts") if name.partition(".")[0] == id_]
    rows = store.read_all("attempts", names).rows.to_pylist()
    rows.sort(key=lambda row: str(row["ended_at"]))
    return str(rows[-1]["message"]).splitlines()[0] if rows else ""


def _as_run(file: SweepFile) -> str:
    import yaml

    return str(yaml.safe_dump(file.document.content, sort_keys=False, allow_unicode=True))


def _existing(path: Path) -> Store:
    """The store to read. Raises StoreError for a folder that is none: a wrong --store, mostly."""
    store = Store(path)
    if not is_store(store.root):
        raise StoreError(f"no store at {store.root}: the folder has no records of lp-sweep.")
    return store


def status(store: Path, sweep: str | None, as_json: bool) -> str:
    from lp_sweep.orchestrator.statusview import states_text, sweep_states

    states = sweep_states(_existing(store), sweep)
    _warn_unreadable(states.unreadable)
    return json.dumps(states.sweeps) if as_json else states_text(states.sweeps)


def query(store: Path, sweep: str | None, sql: str, form: str) -> str:
    from lp_sweep.analysis.render import render_rows
    from lp_sweep.analysis.views import open_views

    catalog = open_views(_existing(store), sweep=sweep)
    rows = catalog.query(sql)
    _warn_unreadable(catalog.unreadable)  # predictions are read only when the query names them
    return render_rows(rows, form)


def table(store: Path, sweep: str | None, name: str, form: str, request: dict[str, Any]) -> str:
    from lp_sweep.analysis.render import render
    from lp_sweep.analysis.tables import TABLES
    from lp_sweep.analysis.views import open_views

    catalog = open_views(_existing(store), sweep=sweep, deltas=request["deltas"])
    _warn_unreadable(catalog.unreadable)
    return render(TABLES[name](catalog, unit=request["unit"]), form)


def _warn_unreadable(files_: list[Any]) -> None:
    for item in files_:
        _say(f"warning: {item.path} is left out: {item.reason}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
