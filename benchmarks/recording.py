"""Records the terminal of a first run as an animated picture, `docs/recording.svg`.

    python -m benchmarks.recording

It needs asciinema 2 (`pip install asciinema==2.4.0`) and npx, which comes with npm and runs
svg-term. Two idle cores take two minutes; time is shortened: see SPEED.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

SPEED = 8.0  # seconds of the run in a second of the recording
FRAME = 0.1  # seconds that a picture stays at least: what comes sooner is drawn with it
END = 4.0  # seconds that the last picture stays
COLUMNS, ROWS = 100, 30
_OF = "--task toy-sentiment --store store --file quickstart"
COMMANDS = (
    "lp-sweep run quickstart task=toy-sentiment --store store",
    f"lp-sweep measure {_OF} --as onnx-int8 --seconds 0.5",
    f"lp-sweep export {_OF} --best --fastest --out smaller",
    'python smaller/predict.py "the film was hardly lovely"',
)


def played(commands: tuple[str, ...]) -> str:
    """A script that shows each command behind a prompt and runs it."""
    lines = (f"printf '\\033[1;32m$\\033[0m %s\\n' {json.dumps(one)}; {one}" for one in commands)
    return "\n".join(lines)


def shortened(cast: str) -> str:
    """The recording at SPEED, with one event for each picture."""
    head, *events = (json.loads(line) for line in cast.splitlines())
    pictures: list[list[object]] = []
    for at, kind, text in events:
        at = at / SPEED
        if pictures and at - float(str(pictures[-1][0])) < FRAME:
            pictures[-1][2] = f"{pictures[-1][2]}{text}"
        else:
            pictures.append([round(at, 3), kind, text])
    pictures.append([float(str(pictures[-1][0])) + END, "o", ""])
    return "\n".join(json.dumps(line) for line in [head, *pictures]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/recording.svg"))
    options = parser.parse_args()
    out = options.out.absolute()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        (scratch / "play.sh").write_text(played(COMMANDS), encoding="utf-8")
        size = ["--cols", str(COLUMNS), "--rows", str(ROWS)]
        record = ["asciinema", "rec", *size, "-c", "bash play.sh", "run.cast"]
        subprocess.run(record, cwd=scratch, check=True)
        cast = (scratch / "run.cast").read_text(encoding="utf-8")
        (scratch / "short.cast").write_text(shortened(cast), encoding="utf-8")
        draw = ["npx", "--yes", "svg-term-cli", "--in", "short.cast", "--out", str(out)]
        subprocess.run([*draw, "--window"], cwd=scratch, check=True)


if __name__ == "__main__":
    main()
