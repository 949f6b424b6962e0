"""An exported folder, to a repository of the Hugging Face hub. Only where it is asked for."""

from __future__ import annotations

from pathlib import Path

from lp_sweep.storage.errors import PreflightError, SpecError
from lp_sweep.storage.printable import short
from lp_sweep.storage.redact import redact_text


def check_may_push(repo_id: str, *, offline: bool) -> None:
    """Before hours of work. Raises SpecError for a bad name, or where the hub must not be asked;
    PreflightError where it can't be reached, or the token may not write."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if offline or constants.HF_HUB_OFFLINE:
        which = "--offline" if offline else "HF_HUB_OFFLINE"
        raise SpecError(f"--push-to-hub {repo_id}: {which} is set, so nothing goes to the hub.")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise SpecError(f"--push-to-hub: {error}") from None
    _check_token(repo_id)


_LOG_IN = "Set HF_TOKEN to a token that may write there, or log in with `hf auth login`"


def _check_token(repo_id: str) -> None:
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError

    if get_token() is None:
        raise PreflightError(f"--push-to-hub {repo_id}: there is no token. {_LOG_IN}.")
    try:
        who = HfApi().whoami()
    except HfHubHTTPError as error:
        raise PreflightError(
            f"--push-to-hub {repo_id}: the hub refused the token: {error.response.status_code}. "
            f"{_LOG_IN}."
        ) from None
    except Exception as error:  # no network: types of three libraries
        said = short(redact_text(str(error))).rstrip(".") or type(error).__name__
        raise PreflightError(
            f"--push-to-hub {repo_id}: the hub can't be reached: {said}. Leave the option out, and "
            f"send the folder later with `hf upload {repo_id} FOLDER`."
        ) from None
    if who.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise PreflightError(f"--push-to-hub {repo_id}: the token may only read. {_LOG_IN}.")


def push(folder: Path, repo_id: str, *, private: bool) -> str:
    """One commit; the repository is made where it is not there. Gives its address.

    The token is that of HF_TOKEN or of `hf auth login`. Raises PreflightError.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi()
    try:
        made = api.create_repo(repo_id, private=private or None, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id, folder_path=folder, commit_message="Exported by lp-sweep"
        )
    except HfHubHTTPError as error:
        status = error.response.status_code
        help_ = _LOG_IN if status in (401, 403) else "Try again later"
        raise PreflightError(
            f"the hub refused {repo_id}: {status}. The folder is whole in {folder}. {help_}, and "
            f"send it with `hf upload {repo_id} {folder}`."
        ) from None
    except Exception as error:  # no network, no token, a bad file: types of three libraries
        said = short(redact_text(str(error))).rstrip(".") or type(error).__name__
        raise PreflightError(
            f"can't send {folder} to the hub: {said}. The folder is whole; send it with "
            f"`hf upload {repo_id} {folder}`."
        ) from None
    return str(made)
