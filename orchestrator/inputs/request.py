"""A request of a command or a program: a sweep file, overrides, and where inputs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from lp_sweep.orchestrator.options import DataDirOption, ManifestOption, OfflineOption, StoreOption
from lp_sweep.storage.errors import SpecError
from lp_sweep.storage.places import BUILT_IN, DEFAULT_STORE, expanded

if TYPE_CHECKING:  # `--help` needs the options alone
    from lp_sweep.orchestrator.inputs.resolve import SweepInputs
    from lp_sweep.orchestrator.sweepfile.load import SweepFile


@dataclass(frozen=True)
class Request:
    """A sweep file as named on the command line, and the options for places."""

    file: str = "sweep.yaml"
    overrides: Sequence[str] = ()
    store: StoreOption = None
    data_dir: DataDirOption = None
    offline: OfflineOption = False
    manifest: ManifestOption = None

    @property
    def is_built_in(self) -> bool:
        """Whether it is `quickstart`, and no file has that name."""
        return self.file == BUILT_IN and not Path(self.file).is_file()

    def sweep_file(self) -> SweepFile:
        from lp_sweep.orchestrator.sweepfile.load import load_sweep

        if self.is_built_in:
            with as_file(files("lp_sweep.quickstart")) as folder:
                return load_sweep(folder / "sweep.yaml", self.overrides)
        return load_sweep(Path(self.file), self.overrides)

    def resolved(self, file: SweepFile) -> SweepInputs:
        """The file with its inputs found. Raises SpecError or PreflightError."""
        from lp_sweep.orchestrator.inputs.resolve import resolve

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
