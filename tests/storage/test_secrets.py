"""Secrets: whatever is planted never comes out of what is stored or shown."""

from __future__ import annotations

import base64
import io
import json
import shlex
import string
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.storage.redact import REMOVED, redact_command, redact_text
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker import run as running
from tests.support.faults import sweep, wait_for, with_changes
from tests.support.plain_jobs import execute
from tests.support.program import command
from tests.support.toyworld import jobs, save_world

NONE: dict[str, str] = {}
# no part of these is in the words around them
SECRETS = st.text(string.ascii_letters + string.digits + "!#$%+./:=?@^_~-", min_size=8).map(
    lambda text: f"Zq{text}"
)
WORDS = st.text(string.ascii_lowercase + " =-./:", max_size=12)
IN_ARGUMENTS = (
    ["--token", "{}"],
    ["--hf-token", "{}"],
    ["--password={}"],
    ["--api-key={}"],
    ["key={}"],
    ["recipe.secret={}"],
    ["AWS_SECRET_ACCESS_KEY={}"],
    ["--header", "Authorization: Bearer {}"],
    ["s3://access:{}@bucket/prefix"],
    ["--store", "https://host/a?X-Amz-Signature={}&b=1"],
)
IN_TEXT = (
    "--token {}",
    "['curl', '--password', '{}']",
    "token={}",
    "password: {}",
    '{{"api_key": "{}", "b": 1}}',
    "AWS_SECRET_ACCESS_KEY={}",
    "Authorization: Bearer {}",
    "Authorization: Basic {}",
    "error at https://user:{}@host/path",
    "GET https://host/x?a=1&token={}",
    "export HF_TOKEN='{}'",
    "aws_secret_access_key = {}",
)
LOOKS = (
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "sk-abcdefghijklmnopqrstuvwxyz",
    "xoxb-123456789012-abcdefghijkl",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
)


@given(
    before=st.lists(WORDS),
    after=st.lists(WORDS),
    form=st.sampled_from(IN_ARGUMENTS),
    secret=SECRETS,
)
def test_a_secret_never_leaves_a_command_line(
    before: list[str], after: list[str], form: list[str], secret: str
) -> None:
    planted = [part.format(secret) for part in form]
    shown = redact_command(["lp-sweep", *before, *planted, *after], NONE)
    assert secret not in shown
    assert secret[:6] not in shown


@given(before=WORDS, after=WORDS, form=st.sampled_from(IN_TEXT), secret=SECRETS)
def test_a_secret_never_leaves_a_text(before: str, after: str, form: str, secret: str) -> None:
    shown = redact_text(f"{before} {form.format(secret)} {after}", NONE)
    assert secret not in shown
    assert secret[:6] not in shown


@given(st.text() | st.builds(str.format, st.sampled_from(IN_TEXT), SECRETS))
def test_doing_it_twice_changes_nothing(text: str) -> None:
    once = redact_text(text, NONE)
    assert redact_text(once, NONE) == once


@given(name=st.sampled_from(["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"]), secret=SECRETS)
def test_a_secret_variables_value_is_one_wherever_it_stands(name: str, secret: str) -> None:
    for form in (secret, quote(secret, safe="")):
        assert form not in redact_text(f"refused: <{form}> was wrong", {name: secret})


@pytest.mark.parametrize("secret", LOOKS)
def test_what_looks_like_a_secret_is_one(secret: str) -> None:
    for form in ("{}", "no access with {}.", '"{}"', "x={}", "({})"):
        assert secret not in redact_text(form.format(secret), NONE)


def test_a_private_key_goes() -> None:
    begin, end = (f"-----{word} RSA PRIVATE KEY-----" for word in ("BEGIN", "END"))
    for key in (f"{begin}\nMIIabc\nd==\n{end}", f"{begin}\nMIIabc\nd==", f"MIIabc\nd==\n{end}"):
        shown = redact_text(f"{key}\n", NONE)
        assert "MIIabc" not in shown
        assert "d==" not in shown


URLS = {
    "https://me:secret1@host/a": "https://REMOVED@host/a",
    "https://secret1@host/a": "https://REMOVED@host/a",
    "s3://access:secret/1@bucket/a": "s3://REMOVED@bucket/a",
    "https://host/a?x=1&sig=secret1": "https://host/a?x=1&sig=REMOVED",
}
NO_SECRETS = (
    "see https://host/a@b?x=1",
    "File '/usr/lib/python3.11/site-packages/torch/nn/modules/module.py', line 1",
    "commit 9e2a67f8051a028d0224a85e3f7d9a5c82404d03-dirty",
    "sha256:240b3a2f298713fe3044d0031dbf1883afef68e2cce0164065a198043753e1f2",
    "lp-sweep run sweep.yaml --store s3://bucket/prefix task=sst2 recipe.lr=2e-5",
    "the model's pad_token='[PAD]' and tokenizer=BertTokenizer, max_tokens=5",
    "Missing key: encoder.layer.3.bias; token=None, use_auth_token=False",
    "https://huggingface.co/bert-base-cased/resolve/main/config.json",
    "t1-7a4d177b534eb20008b0.ab12cd34 failed after 3.5 s: loss is nan",
    "able in /home/someone and /home/other and /home/third",
)
ENVIRONMENT = {
    "MY_TOKEN": "ab",  # so short that it is in many words
    "PWD": "/home/someone",
    "OLDPWD": "/home/other",
    "HOME": "/home/third",
}


def test_what_is_no_secret_stays() -> None:
    for text, shown in {**URLS, **dict(zip(NO_SECRETS, NO_SECRETS, strict=True))}.items():
        assert redact_text(f"see {text}", ENVIRONMENT) == f"see {shown}"


def test_a_command_line_is_what_a_shell_takes() -> None:
    argv = ["lp-sweep", "run", "my sweep.yaml", "--store", "it's", "--token", "Zq12345678"]
    shown = redact_command(argv, NONE)
    assert shlex.split(shown) == [*argv[:-1], REMOVED]


@pytest.mark.parametrize(
    "text",
    ["a" * 32_000, "a://" * 8_000, "token" * 6_000, "= " * 16_000, '"' * 32_000, "a:" * 16_000,
     "--a " * 8_000, " " * 32_000, "A1a/" * 8_000, "-----BEGIN PRIVATE KEY-----" * 1_000],
    ids=lambda text: text[:6],
)  # fmt: skip
def test_no_log_takes_long(text: str) -> None:
    began = time.perf_counter()
    redact_text(text, NONE)
    assert time.perf_counter() - began < 5


def test_a_stored_attempt_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "Zqhunter2hunter2"

    def leak(*args: Any) -> Any:
        print(f"calling with --token {secret}")
        raise RuntimeError(f"https://me:{secret}@host refused Zq-from-the-environment")

    monkeypatch.setenv("HF_TOKEN", "Zq-from-the-environment")
    monkeypatch.setattr(running, "run_trial", leak)
    store = Store(tmp_path / "store", create=True)
    job = jobs(save_world(tmp_path), "k=0")[0]
    told = str(execute(job, store.location))
    [row] = store.read_all("attempts").rows.to_pylist()
    assert "calling with --token" in row["log"]
    assert "refused" in row["message"]
    content = b"".join(path.read_bytes() for path in Path(store.location).rglob("*.parquet"))
    for text in (told, str(row), content.decode(errors="replace")):
        assert secret not in text
        assert "Zq-from" not in text


# -- a run with secrets in the environment of driver and workers, also in what a library prints and
#    raises: after it, a failure and every verb that shows them, no file and no output has them

PLANTED = {
    "HF_TOKEN": "hf_PlantedTokenOfTheHub0123456789ab",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED0123456789",
    "AWS_SECRET_ACCESS_KEY": "plantedSecret/Key+OfTheCloud0123456789xy",
    "AWS_SESSION_TOKEN": "planted//session++token==0123456789",
    "WANDB_API_KEY": "9f1e0ab19f1e0ab19f1e0ab19f1e0ab19f1e0ab1",
}
READERS = (
    "status",
    "logs {trial}",
    "show {trial}",
    "query 'FROM attempts' --json",
    "table tasks --json",
    "report --out report.html",
    "doctor",
    "retry sweep.yaml",
)


def forms(secret: str) -> Iterator[bytes]:
    """As it is, in a URL, in JSON, in Base64 whatever comes before it, and in hexadecimal."""
    plain = secret.encode()
    yield from {plain, quote(secret, safe="").encode(), json.dumps(secret).strip('"').encode()}
    yield from (base64.b64encode(b"x" * before + plain)[4:-4] for before in range(3))
    yield plain.hex().encode()


def texts(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file, and of a Parquet file its values: its pages are compressed."""
    for path in folder.rglob("*"):
        if not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        yield path, content
        if content[:4] == b"PAR1":
            rows: list[Any] = pq.read_table(io.BytesIO(content)).to_pylist()
            yield path, repr(rows).encode()


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    """Where Ray keeps its session: a short path, for the sake of its sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.ray
@pytest.mark.slow
def test_no_secret_leaves_the_environment(tmp_path: Path, ray_folder: Path) -> None:
    save_world(tmp_path, seeds=[1, 2])
    settings = with_changes(
        LP_SWEEP_TEST_NOOP="1",
        LP_SWEEP_TEST_SECONDS="1",
        LP_SWEEP_TEST_LEAK="2",
        LP_SWEEP_TEST_SECRETS=",".join(PLANTED),
        RAY_TMPDIR=str(ray_folder),
        HOME=str(tmp_path / "home"),
        **PLANTED,
    )
    tokens = set()
    with sweep(tmp_path, "sweep.yaml", **settings) as run:
        wait_for(lambda: " start " in run.text(), run.text())
        for process in run.relatives():
            tokens.add(process.environ().get("RAY_AUTH_TOKEN"))
        assert run.wait() == 1, run.text()
    said = run.text()
    trial = next(word for word in said.split() if word.startswith("t1-"))
    for line in READERS:
        done = subprocess.run(
            ["sh", "-c", f"{' '.join(command())} {line.format(trial=trial)}"],
            cwd=tmp_path,
            env={**psutil.Process().environ(), **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Traceback (most" not in done.stderr, done.stderr
        said += done.stdout + done.stderr
    assert "refused: " in said  # the failure is shown, without its secrets
    [token] = tokens - {None}
    assert token
    wanted = {**PLANTED, "RAY_AUTH_TOKEN": token}
    found = {
        (name, str(path))
        for path, content in [
            *texts(tmp_path),
            *texts(ray_folder),
            (Path("printed"), said.encode()),
        ]
        for name, secret in wanted.items()
        if any(form in content for form in forms(secret))
    }
    looked = [path for path, _ in [*texts(tmp_path), *texts(ray_folder)]]
    print(f"{len(looked)} files: {sorted(found)}")
    assert len(looked) > 20
    assert found == set()


def test_a_secret_that_begins_with_another_is_removed_whole() -> None:
    environment = {"SHORT_TOKEN": "tulip-garden", "LONG_TOKEN": "tulip-garden-walk"}
    assert redact_text("opened tulip-garden-walk", environment) == f"opened {REMOVED}"
