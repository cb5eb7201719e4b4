"""The notebook keeps its outputs, they are small, and it runs from an empty folder."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "recipes" / "first_training.ipynb"
LARGEST = 100_000  # bytes


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_keeps_small_outputs_of_a_run_without_an_error():
    text = NOTEBOOK.read_text(encoding="utf-8")
    cells = code_cells(json.loads(text))
    assert len(text) < LARGEST
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(output["output_type"] != "error" for cell in cells for output in cell["outputs"])
    assert "/tmp" not in text and str(ROOT) not in text
    assert "image/png" in text and "zero-signal" in text


def test_links_of_the_notebook_lead_somewhere():

    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    text = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (NOTEBOOK.parent / target).is_file(), target


@pytest.mark.slow
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("ipykernel", "nbclient", "vllm")),
    reason="the extras `docs` and `cpu` are not installed: make test-slow",
)
def test_the_notebook_runs(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in code_cells(notebook):
        cell["outputs"] = []
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    shown = json.dumps(notebook)
    assert "image/png" in shown and "ada_seq_balance" in shown
    assert (tmp_path / "runs" / "report.html").stat().st_size > 10_000
