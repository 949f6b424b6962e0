"""A request of a command or a program: a sweep file, overrides, and where inputs are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from lp_sweep.orchestrator.inputs.resolve import Sweep, resolve
from lp_sweep.orchestrator.sweepfile.load import SweepFile, load_sweep
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN, DEFAULT_STORE, expanded
from lp_sweep.storage.store import Store


@dataclass(frozen=True)
class Request:
    """A sweep file as named on the command line, with the options for places. `manifest`: the
    pinned revisions, if they are not next to the file."""

    file: str = "sweep.yaml"
    overrides: Sequence[str] = ()
    store: str | None = None
    data_dir: Path | None = None
    offline: bool = False
    manifest: Path | None = None

    @property
    def is_built_in(self) -> bool:
        """Whether it is `quickstart`, and no file has that name."""
        return self.file == BUILT_IN and not Path(self.file).is_file()

    def sweep_file(self) -> SweepFile:
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
        """The command that continues, with every option that decides what is trained, and where."""
        words = ["lp-sweep", verb, self.file, *self.overrides]
        where = {"--store": store.location, "--data-dir": self.data_dir}
        for name, value in (where | {"--manifest": self.manifest} | options).items():
            for one in value if isinstance(value, list) else [value]:
                words += [name, str(one)] if one is not None else []
        return shlex.join([*words, "--offline"] if self.offline else words)
