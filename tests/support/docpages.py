"""Reads the pages of the documentation: their blocks of commands, and the marks that say how each
is tested. Runs nothing. Not a test.

A fence without a language, or with a shell's, contains commands, and tests run them. A mark is a
comment that readers don't see, on the line before the fence; several marks have a line each:

    <!-- not run: hours -->         WHY of NOT_RUN, perhaps with `, played by tests/docs/test_x.py`
    <!-- not run: run by tests/docs/test_x.py -->
    <!-- exit 2 -->                 exit code of the last command of the block
    <!-- new folder -->             run in an empty folder, without results of earlier blocks
    <!-- file: sweep.yaml -->       the block is the content of that file, not a command
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
WHERE = (
    "README.md",
    "CONTRIBUTING.md",
    "RELEASING.md",
    "SKILL.md",
    "docs/**/*.md",
    "quickstart/*.md",
    "examples/*.md",
)
SHELLS = ("", "bash", "console", "sh", "shell")
NOT_RUN = {
    "a GPU": "needs a CUDA device",
    "a cloud": "needs an account, and costs money",
    "a cluster": "needs machines, and a Ray on them",
    "the hub": "fetches models or data from the Hugging Face hub",
    "a registry": "installs packages, or needs those that do",
    "hours": "takes more than a minute",
    "Ctrl-C": "goes on until it is ended",
}
RUN_BY = "run by "
_MARKS = ("not run: ", "exit ", "new folder", "file: ")
_FENCE = re.compile(
    r"(?P<marks>(?:^ *<!-- [^\n]* -->\n)*)^(?P<indent> *)```(?P<language>\S*)[^\n]*\n"
    r"(?P<text>.*?)^(?P=indent)```[^\S\n]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fence of a page; `line` is that of its backticks."""

    page: str
    line: int
    language: str
    text: str
    marks: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def mark(self, kind: str) -> str | None:
        """The text of the mark of this kind: "" if it has none; None without such a mark."""
        said = (mark.removeprefix(kind) for mark in self.marks if mark.startswith(kind))
        return next(said, None)

    @property
    def is_commands(self) -> bool:
        return self.language in SHELLS and self.mark("file: ") is None

    @property
    def is_run(self) -> bool:
        return self.is_commands and self.mark("not run: ") is None


class Command(NamedTuple):
    """A typed command, and the output on the page below it: None if there is none."""

    typed: str
    shown: str | None


def pages() -> list[str]:
    """Paths below the root, in order."""
    found = {path for pattern in WHERE for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, page: str) -> list[Block]:
    """Every fence of a page, of whatever language."""
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start("indent")) + 1,
            language=found["language"],
            text=textwrap.dedent(found["text"]),
            marks=tuple(re.findall(r"<!-- (.*) -->", found["marks"])),
        )
        for found in _FENCE.finditer(text)
    ]


def loose_marks(text: str, page: str) -> list[str]:
    """Marks that no fence follows in the next line, and that so say nothing."""
    found = re.findall(r"^ *<!-- (.*) -->$", text, re.MULTILINE)
    held = [mark for block in blocks(text, page) for mark in block.marks]
    return sorted(Counter(mark for mark in found if mark.startswith(_MARKS)) - Counter(held))


def commands(block: Block) -> list[Command]:
    """A block with `$ ` is one command after another, with what each prints; any other is a script.
    A line that follows a backslash is of the command before it. Raises ValueError for a line before
    the first command."""
    if not re.search(r"^\$ ", block.text, re.MULTILINE):
        return [Command(block.text, None)]
    typed: list[str] = []
    shown: list[str] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            typed.append(line.removeprefix("$ "))
            shown.append("")
        elif typed and not shown[-1] and typed[-1].endswith("\\"):
            typed[-1] += f"\n{line}"
        elif typed:
            shown[-1] += f"{line}\n"
        else:
            raise ValueError(f"{line!r} stands before the first `$ `")
    return [
        Command(one, below.strip("\n") or None) for one, below in zip(typed, shown, strict=True)
    ]


def mistake(block: Block) -> str | None:
    """The mistake in the block's marks, and how to fix it; None if they are right."""
    for mark in block.marks:
        if not mark.startswith(_MARKS):
            return f"no such mark: {mark!r}. There are: {', '.join(_MARKS)}"
    why = block.mark("not run: ")
    return None if why is None else _no_reason(why, block.page)


def _no_reason(why: str, page: str) -> str | None:
    """The mistake in the reason why a block is not run; None if it is right."""
    if why.startswith(RUN_BY):
        test = why.removeprefix(RUN_BY)
        return None if _names(test, page) else f"there is no {test} that reads {page}"
    kind, _, player = why.partition(", played by ")
    if kind not in NOT_RUN:
        known = ", ".join(NOT_RUN)
        return f"not run for {kind!r}: say one of {known}, or `{RUN_BY}tests/docs/test_x.py`"
    return f"there is no {player}" if player and not (ROOT / player).is_file() else None


def _names(test: str, page: str) -> bool:
    """Whether a test reads the page, as "docs/sql.md" or as ROOT / "docs" / "sql.md"."""
    if not (ROOT / test).is_file():
        return False
    source = re.sub(r'"\s*/\s*"', "/", read(test))
    return re.search(rf"(?<![\w/]){re.escape(page)}", source) is not None


def words_after(program: str, text: str) -> Iterator[list[str]]:
    """The words behind each call of the program in some shell, up to a pipe or the like; also in
    what another command gets as a string (`ray exec cluster.yaml 'lp-sweep status'`)."""
    for line in text.replace("\\\n", " ").splitlines():
        call: list[str] | None = None
        for token in (*_tokens(line), ";"):
            if call is not None and not re.fullmatch(r"[();<>|&]+", token):
                call.append(token)
                continue
            if call is not None:
                yield call
            call = [] if token == program else None
            if token.startswith(f"{program} "):
                yield from words_after(program, token)


def _tokens(line: str) -> list[str]:
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    try:
        return list(reader)
    except ValueError:  # a quote that another line closes: no whole command
        return []


def inline(text: str, program: str) -> list[str]:
    """Each `program ...` in running text, outside fences."""
    found = re.findall(rf"`({re.escape(program)} [^`]+)`", _FENCE.sub("", text))
    return [" ".join(one.split()) for one in found]
