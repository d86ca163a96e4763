"""A word of a lesson, followed in a real JupyterLab: the glossary opens, and from then on links lead to their words."""

from __future__ import annotations

import json

import nbformat
import pytest

from notebooks import build

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

SEEN = """(name) => {
  const page = jupyterapp.shell.currentWidget.node;
  const box = [...page.querySelectorAll("h3")].find((h) => h.dataset.jupyterId === name)?.getBoundingClientRect();
  return Boolean(box && box.top > 0 && box.bottom < innerHeight);
}"""


@pytest.mark.slow
def test_a_link_opens_the_glossary_and_the_next_one_leads_to_its_word(lab):
    """JupyterLab 4 forgets the place in a notebook that it has yet to open; the glossary says so at its top."""
    (lab.folder / "glossary.ipynb").write_text(build.text_of(build.glossary()), encoding="utf-8")
    (source,) = [source for source in build.sources() if source.name == "01_numbers"]
    lesson = nbformat.reads(json.dumps(build.learners(source)), as_version=4)
    lesson.cells = [cell for cell in lesson.cells if cell.cell_type == "markdown"]
    notebook = lab.open(lesson, "words")
    own = notebook.page.evaluate("jupyterapp.shell.currentWidget.id")
    for name in ("significand", "ulp", "subnormal"):
        notebook.page.evaluate("id => jupyterapp.shell.activateById(id)", own)
        notebook.page.locator("a[href*='glossary']", has_text=name).first.click()
        notebook.page.wait_for_function("() => jupyterapp.shell.currentWidget.title.label === 'glossary.ipynb'")
        if name != "significand":
            notebook.page.wait_for_function(SEEN, arg=name)
    assert notebook.errors == []
    lab.close(notebook)
