"""Shared by the commands that read a sweep file: the file, its store, its plan."""

from __future__ import annotations

import shlex
from importlib.resources import as_file, files
from pathlib import Path
from typing import NamedTuple

from lp_sweep.orchestrator.inputs.resolve import Sweep, resolve
from lp_sweep.orchestrator.plan.known import (
    Known,
    Ledger,
    read_ledger,
    timing_columns,
    with_networks,
)
from lp_sweep.orchestrator.plan.listing import hidden_by, leftover, trained_otherwise
from lp_sweep.orchestrator.plan.plan import Plan
from lp_sweep.orchestrator.plan.planning import make_plan, missing_baselines
from lp_sweep.orchestrator.sweepfile.load import SweepFile, is_part, load_sweep
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN, DEFAULT_STORE, expanded
from lp_sweep.storage.spool import flush
from lp_sweep.storage.store import Store, is_store


class Request(NamedTuple):
    """A sweep file as named on the command line, with what overrides it."""

    file: str
    overrides: list[str]
    store: str | None
    data_dir: Path | None
    offline: bool
    manifest: Path | None = None  # of pinned revisions, where it is not beside the file

    @property
    def is_built_in(self) -> bool:
        """`quickstart`, where no file has that name."""
        return self.file == BUILT_IN and not Path(self.file).is_file()

    def sweep_file(self) -> SweepFile:
        """The file; `quickstart` is the built-in one where no such file exists."""
        if self.is_built_in:
            with as_file(files("lp_sweep.quickstart")) as folder:
                return load_sweep(folder / "sweep.yaml", self.overrides)
        return load_sweep(Path(self.file), self.overrides)

    def resolved(self, file: SweepFile) -> Sweep:
        """The file with its inputs found. Raises SpecError or PreflightError."""
        if self.manifest is not None and not self.manifest.is_file():
            raise SpecError(
                f"no manifest {self.manifest}. `lp-sweep prefetch {self.file} --manifest "
                f"{self.manifest}` writes one."
            )
        return resolve(file, data_dir=self.data_dir, offline=self.offline, manifest=self.manifest)

    def location(self, file: SweepFile) -> str:
        """--store (or LP_SWEEP_STORE), else the file's, else lp-sweep-store in this folder."""
        if self.store is not None:
            return self.store
        own = file.spec.store
        if own is None:
            return str(DEFAULT_STORE)
        return own if "://" in own else str(file.folder / expanded(own))

    def again(self, verb: str, store: Store, options: dict[str, object]) -> str:
        """The command that goes on: with every option that decides what is trained, and where."""
        words = ["lp-sweep", verb, self.file, *self.overrides]
        where = {"--store": store.location, "--data-dir": self.data_dir}
        for name, value in (where | {"--manifest": self.manifest} | options).items():
            for one in value if isinstance(value, list) else [value]:
                words += [name, str(one)] if one is not None else []
        return shlex.join([*words, "--offline"] if self.offline else words)


class Planned(NamedTuple):
    """A plan over what the store has, and where that is. The store may not exist yet."""

    file: SweepFile
    sweep: Sweep
    location: str
    ledger: Ledger
    plan: Plan


def planned(request: Request, *, patience: float = 0.0, cache_dir: Path | None = None) -> Planned:
    """Reads the file, its inputs and its store. Writes nothing but, with `cache_dir`, what an
    earlier run on this machine could not bring to the store."""
    file = request.sweep_file()
    sweep = request.resolved(file)
    location = request.location(file)
    ledger = Ledger(Known.nothing(), timing_columns(), [])
    store = None
    if is_store(location):
        store = Store(location, patience=patience)
        if cache_dir is not None:
            flush(store, cache_dir)
        ledger = read_ledger(store)
    plan = make_plan(sweep, ledger.known)
    left = leftover(store, plan) if store is not None and is_part(request.overrides) else []
    sweep.notes.extend(missing_baselines(plan, left))
    if store is not None and left:
        sweep.notes.extend(trained_otherwise(store, plan, left))
    if store is not None:
        sweep.notes.extend(hidden_by(store, plan, part=is_part(request.overrides)))
    if store is not None and (wanted := plan.needed_networks() | plan.trained_again()):
        plan.known = with_networks(plan.known, store, wanted)
    return Planned(file, sweep, location, ledger, plan)
