"""The error tree. Every error that the user can fix derives from LpSweepError.

    LpSweepError
    ├── SpecError               the sweep file or an override is wrong            exit 2
    ├── QueryError              SQL that DuckDB or the catalog refuses            exit 2
    ├── StoreError              the store can't be read or written                exit 4
    ├── PreflightError          no data, no model, no cluster, no space           exit 4
    ├── ExportError             a folder is not the network that was scored       exit 1
    └── TrialError              one trial can't be done; the sweep goes on
        ├── UnsupportedModelError   the architecture can't be pruned like that
        ├── MissingInputError       data or model not found, or not usable
        ├── DivergedError           the loss is NaN or infinite
        ├── DeviceOutOfMemoryError  the device has no room for the batch
        ├── UnsupportedDeviceError  the device can't do what the recipe asks for
        ├── NotDeterministicError   an operation can't be deterministic on this device
        └── GraphRecordingError     a CUDA graph could not be recorded; its process is unfit

The command line shows an LpSweepError as one message and its exit code; anything else is a bug
and keeps its traceback.
"""

from __future__ import annotations


class SweepWarning(UserWarning):
    """What fails beside the work, which goes on."""


class LpSweepError(Exception):
    """Base of every error whose message is meant for the user."""

    exit_code = 4


class SpecError(LpSweepError):
    """The sweep file, an override or an option is wrong."""

    exit_code = 2


class QueryError(LpSweepError):
    """The SQL is wrong, or does more than read."""

    exit_code = 2


class StoreError(LpSweepError):
    """The store can't be read or written."""


class PreflightError(LpSweepError):
    """Something a sweep needs is missing before it starts: data, model, cluster, space."""


class ExportError(LpSweepError):
    """A folder to be published is not the network that was scored."""

    exit_code = 1


class TrialError(LpSweepError):
    """One trial can't be done. `kind` is the `error_type` of its stored attempt."""

    kind = "bug"
    exit_code = 1


class UnsupportedModelError(TrialError):
    """The architecture can't be pruned, or not in the way asked for."""

    kind = "unsupported_model"


class MissingInputError(TrialError):
    """A data set or a model is missing or unusable."""

    kind = "missing_input"


class DivergedError(TrialError):
    """The training loss became NaN or infinite."""

    kind = "diverged"


class DeviceOutOfMemoryError(TrialError):
    """The device has no room for a batch of this size."""

    kind = "out_of_memory"


class UnsupportedDeviceError(TrialError):
    """Trials can't run on this type of device, or it can't do what the recipe asks for."""

    kind = "unsupported_device"


class NotDeterministicError(TrialError):
    """An operation has no deterministic kernel: the next try runs without determinism, and the
    record says so."""

    kind = "not_deterministic"

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation} has no deterministic kernel on this device, so the seed does not fix the "
            "result. The trial runs again without that promise, and its record says "
            "deterministic = false."
        )


class GraphRecordingError(TrialError):
    """A CUDA graph could not be recorded. This process can't use the device any more; the trial
    runs again in another one, without graphs."""

    kind = "graph_not_recorded"


def lines_of(error: BaseException) -> list[str]:
    """The lines of an error's message; the name of its type if the message is empty."""
    return str(error).strip().splitlines() or [type(error).__name__]
