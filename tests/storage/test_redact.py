"""Secrets: whatever is planted never comes out of what is stored."""

from __future__ import annotations

import shlex
import string
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lp_sweep.storage.redact import REMOVED, redact_command, redact_text
from lp_sweep.storage.store import Store
from lp_sweep.trials.worker import run as running
from tests.support.plain_jobs import execute
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


@pytest.mark.parametrize("secret", LOOKS)
def test_what_looks_like_a_secret_is_one(secret: str) -> None:
    for form in ("{}", "no access with {}.", '"{}"', "x={}", "({})"):
        assert secret not in redact_text(form.format(secret), NONE)


@given(name=st.sampled_from(["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"]), secret=SECRETS)
def test_a_secret_variables_value_is_one_wherever_it_stands(name: str, secret: str) -> None:
    for form in (secret, quote(secret, safe="")):
        assert form not in redact_text(f"refused: <{form}> was wrong", {name: secret})


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


@pytest.mark.parametrize("url", URLS)
def test_the_rest_of_a_url_stays(url: str) -> None:
    assert redact_text(f"see {url}", NONE) == f"see {URLS[url]}"


@pytest.mark.parametrize("text", NO_SECRETS)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text, ENVIRONMENT) == text


def test_a_command_line_is_what_a_shell_takes() -> None:
    argv = ["lp-sweep", "run", "my sweep.yaml", "--store", "it's", "--token", "Zq12345678"]
    shown = redact_command(argv, NONE)
    assert shlex.split(shown) == [*argv[:-1], REMOVED]


@pytest.mark.parametrize(
    "key",
    [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\ndef==\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMIIabc\ndef==",
        "MIIabc\ndef==\n-----END PRIVATE KEY-----",
    ],
    ids=["whole", "without its end", "without its beginning"],
)
def test_a_private_key_goes(key: str) -> None:
    shown = redact_text(f"{key}\n", NONE)
    assert "MIIabc" not in shown
    assert "def==" not in shown


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
