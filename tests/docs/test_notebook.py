"""The notebook of examples/ runs from its first cell to its last, in a kernel of its own; and how a
run is shown in one."""

from __future__ import annotations

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="of the dev extra: pip install nbclient")
nbclient = pytest.importorskip("nbclient", reason="of the dev extra: pip install nbclient")
pytest.importorskip("ipykernel", reason="of the dev extra: pip install ipykernel")

NOTEBOOK = Path(__file__).parents[2] / "examples" / "minimum-layers.ipynb"


def test_it_holds_no_output_of_somebody() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
@pytest.mark.ray
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LP_SWEEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(notebook, timeout=400, resources=where).execute()
    shown = [
        output["data"]
        for cell in done.cells
        for output in cell.get("outputs", ())
        if "data" in output
    ]
    assert "sweep quickstart" in shown[0]["text/plain"]
    assert any("Layers needed to stay within a loss" in data.get("text/html", "") for data in shown)
    assert any("image/png" in data for data in shown)
    assert (tmp_path / "notebook-store" / "trials").is_dir()


PROGRESS = """
from pathlib import Path

from lp_sweep.orchestrator.watch.reporters import make_display
from tests.support.courses import new_queue, taken

queue, display = new_queue(Path(".")), make_display()
display.opened(queue, 1)
for status in ("failed", "done", "done", "done"):
    work = taken(queue)
    display.started(work)
    queue.ended(work.id, None if status == "done" else "bug")
    display.ended(work.id, status, "no such <b>")
display.note("nothing more")
"""


@pytest.mark.slow
def test_a_run_is_one_line_of_its_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real kernel; what fails and notes stay."""
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    cells = [nbformat.v4.new_code_cell(PROGRESS)]
    where = {"metadata": {"path": str(tmp_path)}}
    notebook = nbformat.v4.new_notebook(cells=cells)
    done = nbclient.NotebookClient(notebook, timeout=200, resources=where).execute()
    outputs = done.cells[0].outputs
    (line,) = [output for output in outputs if output["output_type"] == "display_data"]
    assert "[1 left" in line["data"]["text/plain"], "the last of them"
    stayed = "".join(output["text"] for output in outputs if output.get("name") == "stderr")
    assert "no such <b>" in stayed
    assert "nothing more" in stayed
    assert "start " not in stayed
    assert "done " not in stayed
