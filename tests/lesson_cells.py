"""Cells of the learners' notebooks by their ids, and the functions that they define.

Tests of a lesson's statements call the functions of its cells, without running the rest of them.
"""

import ast
from functools import cache
from typing import Any

from notebooks import build

DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


@cache
def cells_of(lesson: str) -> dict[str, str]:
    """Return the sources of a lesson's cells by the cells' ids."""
    notebook = build.learners(build.lesson(lesson))
    return {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}


def defined_in(lesson: str, *cells: str) -> dict[str, Any]:
    """Return what a lesson's setup and some of its cells import and define.

    Only their imports, functions and classes run.

    Args:
        lesson: The name of the lesson, such as "05_autocast".
        cells: The ids of the cells besides the setup.
    """
    names: dict[str, Any] = {}
    for cell in ("setup", *cells):
        statements = ast.parse(cells_of(lesson)[cell]).body
        definitions = [each for each in statements if isinstance(each, DEFINITIONS)]
        exec(compile(ast.Module(definitions, []), cell, "exec"), names)
    return names
