"""What a data file really is, told by its first bytes, where its name says something else."""

from __future__ import annotations

from pathlib import Path

_TEXTS = ("csv", "tsv", "jsonl")
_MAGIC = {
    b"\x1f\x8b": "is compressed by gzip: unpack it",
    b"BZh": "is compressed by bzip2: unpack it",
    b"\xfd7zXZ": "is compressed by xz: unpack it",
    b"\x28\xb5\x2f\xfd": "is compressed by zstd: unpack it",
    b"PK\x03\x04": "is a zip archive or a spreadsheet: unpack it, or export its table as CSV",
    b"\xd0\xcf\x11\xe0": "is a spreadsheet: export its table as CSV",
    b"ARROW1": "is an Arrow file: write it as Parquet",
}
_WIDE = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def other_than(path: Path, kind: str) -> str | None:
    """`is compressed by gzip: unpack it`, or None where the bytes may be what `kind` says.

    kind: a value of `tasks.FORMATS`. Raises OSError.
    """
    with path.open("rb") as stream:
        first = stream.read(64)
    for magic, what in _MAGIC.items():
        if first.startswith(magic):
            return what
    if kind not in _TEXTS:
        return None
    if first.startswith(b"PAR1"):
        return "is a Parquet file: give it the suffix .parquet"
    encoding = next((name for bom, name in _WIDE.items() if first.startswith(bom)), None)
    if encoding is None and len(first) > 3 and not (any(first[::2]) and any(first[1::2])):
        encoding = "UTF-16"  # no mark, but each second byte of the first words is zero
    return encoding and f"is {encoding}, not UTF-8: save it as UTF-8"


def first_bad_line(path: Path) -> str:
    """`line 3 (b'caf\\xe9')`: the first that is not UTF-8; empty where there is none."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"line {number} ({line[max(0, error.start - 20) : error.start + 10]!r})"
    return ""
