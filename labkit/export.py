"""How is a lesson read without JupyterLab and without a network? As one HTML file whose formulas are pictures.

Idea: a page that nbconvert writes asks a server for MathJax, and without it shows LaTeX. Here matplotlib typesets each
formula beforehand; the picture is in the page, with its LaTeX as text alternative.

Invariant: what stands between backticks is no formula, and the page loads no script for mathematics.
"""

from __future__ import annotations

import base64
import io
import re
from html import escape
from pathlib import Path

from labkit.records import write_atomic

CODE_OR_FORMULA = re.compile(
    r"```.*?```|`[^`\n]*`|\$\$(?P<block>.+?)\$\$|(?<![\\$\w])\$(?P<inline>[^$\n]+?)\$(?![\d$])", re.S
)
CASES = re.compile(r"\\begin\{cases\}(.+?)\\end\{cases\}", re.S)
AS_MATPLOTLIB_SAYS = {  # what it has no name for, and its own
    r"\\le\b": r"\\leq",
    r"\\ge\b": r"\\geq",
    r"\\[Bb]igg?(?=[()|\[\]])": "",
    r"\\tfrac(\d)(\d)": r"\\frac{\1}{\2}",
    r"\\sqrt (\w)": r"\\sqrt{\1}",
}
EM = 10.0  # points


def to_html(notebook: Path) -> Path:
    """Write a notebook, with the outputs it has, as NAME.html beside it, and return where.

    Raises:
        FileNotFoundError: there is no such notebook.
        ValueError: a formula cannot be typeset; the message names it.
    """
    import nbformat
    from nbconvert import HTMLExporter

    document = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    document.metadata.pop("widgets", None)  # what draws them would come from the network; their pictures do not
    for cell in document.cells:
        if cell.cell_type == "markdown":
            cell.source = typeset(cell.source)
    page, _ = HTMLExporter(mathjax_url="", require_js_url="").from_notebook_node(document)  # type: ignore[no-untyped-call]
    page = re.sub(r"<!-- Load mathjax -->.*?<!-- End of mathjax configuration -->", "", page, flags=re.S)
    return write_atomic(notebook.with_suffix(".html"), page.encode())


def typeset(markdown: str) -> str:
    """Return Markdown with each formula as a picture.

    >>> typeset("`$x$` costs $5, they say")
    '`$x$` costs $5, they say'
    >>> typeset("the root $\\\\sqrt v$")[:32]
    'the root <img alt="\\\\sqrt v" styl'
    """
    return CODE_OR_FORMULA.sub(_replace, markdown)


def _replace(found: re.Match[str]) -> str:
    if found["inline"]:
        return _formula(found["inline"])
    if found["block"]:
        lines = " ".join(found["block"].split())
        return f'<span style="display:block;text-align:center">{_formula(lines)}</span>'
    return found[0]


def _formula(latex: str) -> str:
    cases = CASES.search(latex)
    if cases is None:
        return picture(latex)
    rows = "<br>".join("&emsp;".join(map(picture, row.split("&"))) for row in cases[1].split(r"\\"))
    style = "border-left:1px solid;display:inline-block;padding-left:.5em;text-align:left;vertical-align:middle"
    return f'{picture(latex[: cases.start()])}<span style="{style}">{rows}</span>'


def picture(latex: str) -> str:
    """Return a formula as an image of the text's height, standing on its line.

    Raises:
        ValueError: matplotlib cannot typeset it.
    """
    from matplotlib.mathtext import MathTextParser, math_to_image

    said = latex.strip()
    for theirs, ours in AS_MATPLOTLIB_SAYS.items():
        said = re.sub(theirs, ours, said)
    file = io.BytesIO()
    try:
        _, height, depth, *_ = MathTextParser("path").parse(f"${said}$", dpi=72)
        math_to_image(f"${said}$", file, dpi=72, format="svg")
    except ValueError as error:
        raise ValueError(f"matplotlib cannot typeset the formula {latex.strip()!r}: {error}") from error
    sizes = f"height:{height / EM:.2f}em;vertical-align:{-depth / EM:.2f}em"
    data = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{escape(latex.strip())}" style="display:inline;{sizes}" src="data:image/svg+xml;base64,{data}">'
