"""Notebooks of version 0.2.0: one that was saved with widgets, and one as it was handed out."""

from pathlib import Path

import nbformat
import pytest
from nbformat.sign import NotebookNotary

pytestmark = pytest.mark.browser

NOTEBOOKS = Path(__file__).with_name("notebooks")


def saved_at_0_2(name):
    """Return a notebook of version 0.2.0, signed, so that JupyterLab trusts it as if saved here."""
    document = nbformat.read(NOTEBOOKS / name, as_version=4)
    NotebookNotary().sign(document)
    return document


def errors_of(notebook):
    return notebook.page.evaluate(
        """() => jupyterapp.shell.currentWidget.content.widgets
            .flatMap((cell) => cell.model.outputs?.toJSON() ?? [])
            .filter((output) => output.output_type === "error")
            .map((output) => output.evalue)"""
    )


def test_a_notebook_saved_at_0_2_shows_its_widgets(lab):
    notebook = lab.open(saved_at_0_2("saved_0_2.ipynb"), "saved_0_2")
    for kind in ("patient-wall", "live"):
        notebook.page.wait_for_selector(f".labkit-{kind} .lk-sentence:not(:empty)")
    lab.close(notebook)


def test_a_notebook_saved_at_0_2_runs_again(lab):
    notebook = lab.open(saved_at_0_2("saved_0_2.ipynb"), "saved_0_2_again")
    notebook.run_all()
    for kind in ("fault-wall", "live"):
        notebook.page.wait_for_selector(f".labkit-{kind} .lk-sentence:not(:empty)")
    assert errors_of(notebook) == []
    lab.close(notebook)


def test_a_notebook_handed_out_at_0_2_shows_its_wall(lab):
    """Its trainings take minutes; the cells run here are the imports and the wall."""
    document = nbformat.read(NOTEBOOKS / "handed_out_0_2.ipynb", as_version=4)
    document.cells = [cell for cell in document.cells if cell.id in ("setup", "touch-wall")]
    assert "PatientWall" in document.cells[0].source
    notebook = lab.open(document, "handed_out_0_2")
    notebook.run_all()
    notebook.page.wait_for_selector(".labkit-fault-wall .lk-sentence:not(:empty)")
    assert errors_of(notebook) == []
    lab.close(notebook)
