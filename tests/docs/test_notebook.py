"""The notebook of examples/ runs from its first cell to its last, in a kernel of its own."""

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
