"""Formulas as embedded pictures, for pages that need no network.

Pages by nbconvert load MathJax from a server, and show LaTeX without it. Here matplotlib typesets
each formula, and the page embeds the picture, whose alternative text is the LaTeX. Text between
backticks is not a formula.
"""

from __future__ import annotations

import base64
import io
import re

from labkit.records.templates import markup

# Code comes first, so that a dollar in it begins no formula; code in a line is between as many
# backticks as it begins with, one or two. As in pandoc, a formula touches both of its dollars; the
# first follows no letter or digit, the second comes before none, and neither is escaped.
CODE_OR_FORMULA = re.compile(
    r"""
      ```.*?```
    | (?<!`) (?P<ticks> `{1,2} ) (?!`) [^\n]*? (?<!`) (?P=ticks) (?!`)
    | \$\$ (?P<block> .+? ) \$\$
    | (?<![\\$\w]) \$ (?=\S) (?P<inline> [^$\n]+? ) (?<![\s\\]) \$ (?![\w$])
    """,
    re.DOTALL | re.VERBOSE,
)
CASES = re.compile(r"\\begin\{cases\}(.+?)\\end\{cases\}", re.S)
# LaTeX that matplotlib lacks -> its equivalent
MATPLOTLIB_SYNTAX = {
    r"\\le\b": r"\\leq",
    r"\\ge\b": r"\\geq",
    r"\\[Bb]igg?(?=[()|\[\]])": "",
    r"\\tfrac(\d)(\d)": r"\\frac{\1}{\2}",
    r"\\sqrt (\w)": r"\\sqrt{\1}",
}
# The size of text in matplotlib's picture, in points.
EM = 10.0


def typeset(markdown: str) -> str:
    r"""Return Markdown with each formula as a picture.

    >>> typeset("`$x$` costs $5, they say")
    '`$x$` costs $5, they say'
    >>> typeset("the root $\\sqrt v$")[:32]
    'the root <img alt="\\sqrt v" styl'
    """
    return CODE_OR_FORMULA.sub(_replace, markdown)


def _replace(found: re.Match[str]) -> str:
    if found["inline"] and found["inline"].strip():
        return _formula(found["inline"])
    if found["block"] and found["block"].strip():
        lines = " ".join(found["block"].split())
        return f'<span style="display:block;text-align:center">{_formula(lines)}</span>'
    return found[0]


def _formula(latex: str) -> str:
    cases = CASES.search(latex)
    if cases is None:
        return picture(latex)
    # matplotlib has no environments: each line of the cases is pictures beside a vertical rule
    rows = [
        "&emsp;".join(map(_picture_or_nothing, row.split("&"))) for row in cases[1].split(r"\\")
    ]
    style = (
        "border-left:1px solid;display:inline-block;padding-left:.5em;text-align:left;"
        "vertical-align:middle"
    )
    before = _picture_or_nothing(latex[: cases.start()])
    after = _picture_or_nothing(latex[cases.end() :])
    return f'{before}<span style="{style}">{"<br>".join(rows)}</span>{after}'


def _picture_or_nothing(latex: str) -> str:
    return picture(latex) if latex.strip() else ""


def picture(latex: str) -> str:
    """Return a formula as an inline image of the text's height, aligned with its baseline.

    Raises:
        ValueError: matplotlib cannot typeset it.
    """
    from matplotlib.mathtext import MathTextParser, math_to_image

    formula = latex.strip()
    for pattern, replacement in MATPLOTLIB_SYNTAX.items():
        formula = re.sub(pattern, replacement, formula)
    file = io.BytesIO()
    try:
        _, height, depth, *_ = MathTextParser("path").parse(f"${formula}$", dpi=72)
        math_to_image(f"${formula}$", file, dpi=72, format="svg")
    except ValueError as error:
        raise ValueError(
            f"matplotlib cannot typeset the formula {latex.strip()!r}: {error}"
        ) from error
    sizes = f"height:{height / EM:.2f}em;vertical-align:{-depth / EM:.2f}em"
    data = base64.b64encode(file.getvalue()).decode()
    element = markup(
        '<img alt="{}" style="display:inline;{}" src="data:image/svg+xml;base64,{}">'
    ).format(latex.strip(), sizes, data)
    return str(element)
