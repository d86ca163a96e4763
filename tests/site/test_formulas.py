"""Formulas of lessons as pictures in a page that needs no network."""

import base64
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import pytest

from labkit.site.formulas import picture, typeset
from tests.notebook_page import to_html

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_a_formula_is_a_picture_that_says_what_it_shows():
    made = picture(r"2^{-24} \le x")
    assert r'alt="2^{-24} \le x"' in made
    svg = base64.b64decode(re.search('base64,([^"]+)', made)[1])
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    for text in ("`$x$`", "```\n$x$\n```", "it costs $5 or $6", r"\$x\$"):  # no formulas
        assert typeset(text) == text
    cases = typeset("$$s = \\begin{cases} 1 & x < 0 \\\\ 2 & \\text{else} \\end{cases}$$")
    assert cases.count("<img") == 5, "one under the other"
    assert cases.count("<br>") == 1, "one under the other"
    with pytest.raises(ValueError, match=r"cannot typeset the formula '\\\\nosuchthing'"):
        picture(r"\nosuchthing")


def test_no_formula_of_a_lesson_needs_a_network():
    for path in NOTEBOOKS.glob("*.ipynb"):
        for cell in (cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"):
            shown = re.sub(r"```.*?```|`[^`\n]*`|<img [^>]*>", "", typeset(cell.source), flags=re.S)
            assert re.findall(r"\$[^$]+\$", shown) == [], path.stem


def test_a_page_loads_no_mathjax_and_asks_no_server(tmp_path):
    pytest.importorskip("nbconvert")
    lesson = tmp_path / "06_loss_scaling.ipynb"
    shutil.copy(NOTEBOOKS / lesson.name, lesson)
    page = to_html(lesson).read_text()
    assert "mathjax" not in page.lower()
    assert re.findall(r"src=\"(?:https?:)?//[^\"]+", page) == []
    assert r'alt="S \cdot \max|g| \geq 65520"' in page
