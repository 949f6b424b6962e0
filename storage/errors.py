"""The error tree. Every error that the user can fix derives from LpSweepError.

    LpSweepError
    ├── SpecError               the sweep file, an override or an option is wrong   exit 2
    ├── QueryError              the SQL is wrong, or does more than read            exit 2
    ├── StoreError              the store can't be read or written                  exit 4
    ├── PreflightError          no data, no model, no cluster, no space             exit 4
    ├── ExportError             a folder is not the network that was scored         exit 1
    └── TrialError              one trial can't be done; the sweep goes on          exit 1
        ├── UnsupportedModelError   the architecture can't be pruned, or not like that
        ├── MissingInputError       a data set or a model is missing or unusable
        ├── DivergedError           the training loss became NaN or infinite
        ├── DeviceOutOfMemoryError  the device has no room for a batch of this size
        ├── UnsupportedDeviceError  trials can't run on this type of device, or not as asked for
        ├── NotDeterministicError   an operation has no deterministic kernel on this device
        └── GraphRecordingError     a CUDA graph could not be recorded: the trial runs again in
                                    another process, without graphs

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
    exit_code = 2


class QueryError(LpSweepError):
    exit_code = 2


class StoreError(LpSweepError):
    pass


class PreflightError(LpSweepError):
    pass


class ExportError(LpSweepError):
    exit_code = 1


class TrialError(LpSweepError):
    """`kind` is the `error_type` of its stored attempt."""

    kind = "bug"
    exit_code = 1


class UnsupportedModelError(TrialError):
    kind = "unsupported_model"


class MissingInputError(TrialError):
    kind = "missing_input"


class DivergedError(TrialError):
    kind = "diverged"


class DeviceOutOfMemoryError(TrialError):
    kind = "out_of_memory"


class UnsupportedDeviceError(TrialError):
    kind = "unsupported_device"


class NotDeterministicError(TrialError):
    kind = "not_deterministic"

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation} has no deterministic kernel on this device, so the seed does not fix the "
            "result. The trial runs again without that promise, and its record says "
            "deterministic = false."
        )


class GraphRecordingError(TrialError):
    kind = "graph_not_recorded"


def lines_of(error: BaseException) -> list[str]:
    """The lines of an error's message; the name of its type if the message is empty."""
    return str(error).strip().splitlines() or [type(error).__name__]
