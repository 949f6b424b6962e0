"""Removes secrets from what is stored: a command line, a log, a message, a traceback.

It removes too much rather than too little: any value up to the next blank whose name or form is
that of a secret. Redacting a text twice is the same as once.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from urllib.parse import quote

REMOVED = "REMOVED"

_SHORTEST = 8  # characters of an environment variable; shorter values occur in any text
_SECRET_NAME = re.compile(
    r"(?:token|secret|password|passwd|passphrase|pwd|credentials?|authorization|auth|signature|sig"
    r"|cookie|bearer|(?:api|access|secret|private|account|shared|sign|signing|encryption|client"
    r"|storage|subscription|master|ssh|ssl|tls|service)key(?:id)?)$|^(?:pass|pat|pw|sas)$"
)
# a tokenizer's special tokens, which messages often name
_HARMLESS = re.compile(r"^(?:pad|cls|sep|unk|mask|bos|eos|special)token$")
_NO_VALUE = frozenset({"", "none", "null", "true", "false", REMOVED.lower()})

_LOOKS_LIKE_ONE = re.compile(
    r"\bhf_[A-Za-z0-9]{8,}|\bapi_org_[A-Za-z0-9]{8,}"  # Hugging Face
    r"|\b(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ANVA|AIPA|ABIA|ACCA)[A-Z0-9]{12,}"  # AWS
    r"|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bglpat-[\w-]{16,}"
    r"|\bsk-[\w-]{16,}|\bxox[abeoprs]-[\w-]{8,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{16,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"  # a JSON web token
    # 40 of Base64 with both cases and a digit: AWS's secret keys. A commit has no capitals.
    r"|(?<![\w/+])(?=\S{0,39}[a-z])(?=\S{0,39}[A-Z])(?=\S{0,39}[0-9])"
    r"[A-Za-z0-9+][A-Za-z0-9/+]{39}(?![\w/+])"
)
_PRIVATE_KEY = re.compile(  # also one whose beginning or end was cut off
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\A[A-Za-z0-9+/=\s]*-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
_URL_USER = re.compile(
    r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)(?:[^\s/@?#]{1,999}|[^\s/@]{0,999}:\S{0,999})@"
)
_SCHEME = re.compile(
    r"(?P<head>\bBearer[ \t]+|\bauthorization[\"']?[ \t]*[:=][ \t]*[\"']?(?:\w+[ \t]+)?)\S+",
    re.IGNORECASE,
)
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*)(?P<sign>[\"']?[ \t]*(?:=>|:=|=|:)[ \t]*|%3[dD])"
)
_OPTION = re.compile(r"(?<![\w.-])(?P<name>--?[A-Za-z][\w.-]*)(?P<sign>[ \t]+|[\"'],[ \t]*)")
_VALUE = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?|\S+")


def redact_command(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """The command line, quoted for a shell, without secrets."""
    shown: list[str] = []
    for position, argument in enumerate(argv):
        before = argv[position - 1] if position else ""
        name, sign, _ = argument.partition("=")
        if before.startswith("-") and "=" not in before and _is_secret(before, "="):
            shown.append(REMOVED)
        elif sign and _is_secret(name, "="):
            shown.append(f"{name}={REMOVED}")
        else:
            shown.append(redact_text(argument, environment))
    return shlex.join(shown)


def redact_text(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without secrets; also removes the values of secret environment variables."""
    for value in _secret_values(os.environ if environment is None else environment):
        text = text.replace(value, REMOVED)
    text = _PRIVATE_KEY.sub(REMOVED, text)
    text = _URL_USER.sub(rf"\g<scheme>{REMOVED}@", text)
    text = _SCHEME.sub(rf"\g<head>{REMOVED}", text)
    text = _without_values(text, _NAMED)
    text = _without_values(text, _OPTION)
    return _LOOKS_LIKE_ONE.sub(REMOVED, text)


def _without_values(text: str, naming: re.Pattern[str]) -> str:
    """Removes the values that follow the names of secrets."""
    kept, end = [], 0
    for match in naming.finditer(text):
        if match.start() < end or not _is_secret(match["name"], match["sign"]):
            continue
        value = _VALUE.match(text, match.end())
        if value and value[0].strip("\"'").rstrip(",;)]}\"'").lower() not in _NO_VALUE:
            kept += [text[end : match.end()], REMOVED]
            end = value.end()
    return "".join([*kept, text[end:]])


def _is_secret(name: str, sign: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    if _HARMLESS.search(plain):
        return False
    # before a colon, "key" is mostly the key of a table
    return bool(_SECRET_NAME.search(plain)) or (plain == "key" and ":" not in sign)


def _secret_values(environment: Mapping[str, str]) -> list[str]:
    """The longest first, since one may be the beginning of another."""
    values = {
        form
        for name, value in environment.items()
        if len(value) >= _SHORTEST and not name.endswith("PWD") and _is_secret(name, ":")
        for form in (value, quote(value, safe=""))
    }
    return sorted(values, key=len, reverse=True)
