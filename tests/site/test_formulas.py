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


def test_a_formula_is_a_picture_in_svg():
    html = picture(r"2^{-24} \le x")
    svg = base64.b64decode(re.search('base64,([^"]+)', html)[1])
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_the_picture_of_a_formula_has_its_text():
    assert r'alt="2^{-24} \le x"' in picture(r"2^{-24} \le x")


def test_the_picture_of_a_letter_is_lower_than_a_line():
    (height,) = re.findall(r"height:([\d.]+)em", picture("x"))
    assert 0.2 < float(height) < 1


@pytest.mark.parametrize(
    "text",
    [
        "`$x$`",
        "``it is `$x$` there``",
        "```\n$x$\n```",
        "it costs $5 or $6",
        "set $HOME and $PATH first",
        "about $5 (or $n for n)",
        r"costs $5, or 5\$ each",
        r"\$x\$",
        "$ $",
        "$$ $$",
    ],
    ids=[
        "code",
        "code with backticks in it",
        "block of code",
        "prices",
        "variables",
        "a price and a variable",
        "a price and an escape",
        "escaped",
        "a blank",
        "a block of a blank",
    ],
)
def test_text_with_dollars_that_is_not_a_formula_is_unchanged(text):
    assert typeset(text) == text


def test_cases_of_a_formula_are_pictures_in_two_lines():
    """One picture is of what is before the cases, and two of each case."""
    cases = typeset("$$s = \\begin{cases} 1 & x < 0 \\\\ 2 & \\text{else} \\end{cases}$$")
    assert cases.count("<img") == 5
    assert cases.count("<br>") == 1


@pytest.mark.parametrize(
    ("formula", "pictures"),
    [
        (r"\begin{cases} 1 & x \end{cases}", 2),
        (r"\begin{cases} 1 & x \end{cases} + 1", 3),
        (r"\begin{cases} 1 & \\ 2 & x \end{cases}", 3),
    ],
    ids=["nothing before", "a term after", "an empty place"],
)
def test_each_part_of_cases_is_a_picture(formula, pictures):
    assert typeset(f"$${formula}$$").count("<img") == pictures


def test_a_formula_that_cannot_be_typeset_is_named():
    with pytest.raises(ValueError, match=r"cannot typeset the formula '\\\\nosuchthing'"):
        picture(r"\nosuchthing")


# What may hold dollars on a page: blocks of code, code in a line, and pictures of formulas.
NO_FORMULAS = re.compile(r"```.*?```|`[^`\n]*`|<img [^>]*>", re.DOTALL)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_each_formula_of_a_lesson_becomes_a_picture(path):
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown":
            text = NO_FORMULAS.sub("", typeset(cell.source))
            assert re.findall(r"\$[^$]+\$", text) == []


@pytest.fixture(scope="module")
def page_of_a_lesson(tmp_path_factory):
    """The HTML that nbconvert makes of lesson 06."""
    pytest.importorskip("nbconvert")
    lesson = tmp_path_factory.mktemp("page") / "06_loss_scaling.ipynb"
    shutil.copy(NOTEBOOKS / lesson.name, lesson)
    return to_html(lesson).read_text()


def test_a_page_of_nbconvert_has_the_formulas_as_pictures(page_of_a_lesson):
    assert r'alt="S \cdot \max|g| \geq 65520"' in page_of_a_lesson


def test_a_page_of_nbconvert_loads_no_mathjax(page_of_a_lesson):
    assert "mathjax" not in page_of_a_lesson.lower()


def test_a_page_of_nbconvert_loads_nothing_from_a_server(page_of_a_lesson):
    assert re.findall(r"src=\"(?:https?:)?//[^\"]+", page_of_a_lesson) == []
