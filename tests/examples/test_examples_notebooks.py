"""The notebooks run in a real kernel, redraw their progress in place, and are stored without outputs."""

from __future__ import annotations

import ast
import os
from collections import defaultdict
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


class RecordingClient(NotebookClient):
    """Client that also counts how often each display was redrawn, and keeps the texts that it showed."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.redrawn: dict[str, list[str]] = defaultdict(list)

    def process_message(self, msg, cell, cell_index):
        if msg["msg_type"] == "update_display_data":
            content = msg["content"]
            self.redrawn[content["transient"]["display_id"]].append(content["data"]["text/plain"])
        return super().process_message(msg, cell, cell_index)


def execute(notebook: NotebookNode, folder: Path) -> RecordingClient:
    """Run the cells of a notebook in a kernel whose current folder is `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    client = RecordingClient(notebook, timeout=280, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return client


def outputs_of(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def data_of(notebook: NotebookNode, mime_type: str) -> list[str]:
    return [output.data[mime_type] for output in outputs_of(notebook) if mime_type in output.get("data", {})]


def printed(notebook: NotebookNode) -> str:
    return "".join(output.text for output in outputs_of(notebook) if output.output_type == "stream")


def check_progress(client: RecordingClient, notebook: NotebookNode, num_runs: int) -> None:
    """Check that each run has one output, which was redrawn in place and ends with a picture."""
    pictures = [html for html in data_of(notebook, "text/html") if "data:image/png;base64," in html]
    assert len(pictures) == num_runs
    assert len(client.redrawn) == num_runs
    for texts in client.redrawn.values():
        assert len(texts) >= 3
        assert len(set(texts)) >= 3
    shown = [output for output in outputs_of(notebook) if "steps/s" in output.get("data", {}).get("text/plain", "")]
    assert len(shown) == num_runs, "something was displayed next to the output that is redrawn"


def read(name: str) -> NotebookNode:
    return nbformat.read(ROOT / f"examples/notebooks/{name}.ipynb", as_version=4)


def test_first_steps_trains_shows_a_video_and_resumes(tmp_path):
    notebook = read("first_steps")
    client = execute(notebook, tmp_path)
    check_progress(client, notebook, num_runs=2)
    (video,) = [html for html in data_of(notebook, "text/html") if "<video" in html]
    assert "data:video/mp4;base64," in video
    assert "40,000 steps, best mean return" in printed(notebook)
    first, resumed = client.redrawn.values()
    assert "30,000/30,000 steps" in first[-1]
    assert "30,000/40,000 steps" not in resumed[-1]


@pytest.mark.long
def test_a_loss_and_a_callback_of_a_cell_train_and_are_compared(tmp_path):
    notebook = read("own_loss")
    client = execute(notebook, tmp_path)
    check_progress(client, notebook, num_runs=4)
    assert len(data_of(notebook, "image/png")) == 2
    (table,) = data_of(notebook, "text/markdown")
    assert "probability that a run of the first is better" in table
    assert "act.py" in printed(notebook)


@pytest.mark.long
def test_an_environment_of_a_cell_is_stepped_in_processes_and_resumed(tmp_path):
    notebook = read("own_environment")
    client = execute(notebook, tmp_path)
    check_progress(client, notebook, num_runs=2)
    assert "9,000 steps, best mean return" in printed(notebook)
    assert data_of(notebook, "text/plain")[-1] == "array([ 1,  0, -1])"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    for cell in code:
        assert cell.outputs == []
        assert cell.execution_count is None
        ast.parse(cell.source)


def test_every_notebook_is_executed_by_a_test_and_linked_from_a_page():
    names = {path.stem for path in NOTEBOOKS}
    assert names == {"first_steps", "own_loss", "own_environment"}
    page = (ROOT / "docs/getting-started.md").read_text()
    assert {name for name in names if f"../examples/notebooks/{name}.ipynb" in page} == names
