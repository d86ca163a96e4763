"""Cells of a notebook as HTML.

Markdown, code and colours of a terminal are converted by nbconvert's filters, formulas by
`labkit.site.formulas`. A text about buttons of the lab has another one for pages, in its metadata
`site`. A widget becomes an element with its state, as JSON, and its still picture;
site.js shows the widget in place of the picture if the widget answers without a kernel.

Invariant: classes of cells are those of JupyterLab, so that the style sheets of widgets find them.
Pictures are files: `Pictures` collects them. What is no HTML is escaped. A traceback, which names
folders of the machine, is left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from typing import Any

from labkit.site.formulas import typeset
from labkit.site.running import LAB_ONLY
from labkit.widgets.base.widget import PAGE_TYPE
from labkit.widgets.predict.waiting import waiting_classes

EXERCISE = "exercise-"
IN_THE_LAB = '<p class="site-note">{} <a href="index.html#install">Open it in the lab.</a></p>'
OWN_MACHINE = IN_THE_LAB.format("This cell is about your own machine.")
OWN_ANSWER = IN_THE_LAB.format("This cell needs your answer to the exercise.")
SOLVE = IN_THE_LAB.format(
    "<strong>Exercise.</strong> You write and check your answer in JupyterLab."
)
LIVE = """\
<div class="site-live" data-exercise="{id}" data-title="{title}">
<script type="application/json">{starter}</script>
<noscript>{solve}</noscript></div>
"""
NEEDS_PYTHON = IN_THE_LAB.format("This widget needs Python.")
DATA_URL = re.compile(r'src="data:image/(png);base64,([^"]+)"')


@dataclass
class Parts:
    """The pictures, widgets and questions that the cells of a page need."""

    pictures: dict[str, bytes] = field(default_factory=dict)
    widgets: set[str] = field(default_factory=set)
    questions: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)  # the elements of widgets
    live: Mapping[str, str] = field(default_factory=dict)  # titles of exercises checked in pages
    exercises: list[str] = field(default_factory=list)  # those of them in these cells

    def picture(self, content: bytes, kind: str) -> str:
        """Store a picture; return its address."""
        name = f"pictures/{hashlib.sha256(content).hexdigest()[:16]}.{kind}"
        self.pictures[name] = content
        return name


def markdown(source: str) -> str:
    r"""Return Markdown as HTML, with formulas as pictures; links to notebooks lead to their pages.

    >>> markdown("see [ulp](glossary.ipynb#cell-id=ulp)")
    '<p>see <a href="glossary.html#ulp">ulp</a></p>\n'
    """
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    renderer = MarkdownWithMath(renderer=IPythonRenderer(escape=False))
    html = re.sub(r'<a class="anchor-link".*?</a>', "", str(renderer.render(typeset(source))))
    html = re.sub(r'href="(\w+)\.ipynb(?:#(?:cell-id=)?([^"]*))?"', _link, html)
    html = html.replace(
        "<table>", '<div class="site-scroll" role="group" aria-label="table" tabindex="0"><table>'
    )
    return html.replace("</table>", "</table></div>")


def _link(found: re.Match[str]) -> str:
    return f'href="{found[1]}.html{"#" + found[2] if found[2] else ""}"'


@cache
def _highlighter() -> Any:
    from nbconvert.filters.highlight import Highlight2HTML

    return Highlight2HTML(pygments_lexer="ipython3")  # type: ignore[no-untyped-call]


def code(source: str) -> str:
    """Return Python as HTML in the colours of its parts."""
    return str(_highlighter()(source)).replace("<pre>", '<pre tabindex="0">')


def cell_html(cell: Any, parts: Parts) -> str:
    """Return a cell as HTML; what it needs is added to `parts`."""
    name = escape(cell.get("id", ""), quote=True)
    if cell.cell_type == "markdown":
        source = cell.metadata.get("site", cell.source)
        text = f'<div class="jp-RenderedMarkdown">{markdown(source)}</div>'
        return f'<div class="jp-Cell jp-MarkdownCell" id="{name}">\n{text}</div>\n'
    if cell.cell_type != "code":
        return (
            f'<div class="jp-Cell" id="{name}"><pre '
            f'tabindex="0">{escape(cell.source)}</pre></div>\n'
        )
    tags = cell.metadata.get("tags", ())
    if any(tag.startswith(EXERCISE) for tag in tags):
        outputs = [_exercise(cell.source, tags, parts)]
    elif LAB_ONLY in tags:
        outputs = [OWN_MACHINE]
    else:
        outputs = [_output(output, f"{name}", parts) for output in cell.outputs]
    kind = "jp-CodeCell" if outputs else "jp-CodeCell jp-mod-noOutputs"
    kind = f"{kind} {waiting_classes(tags)}".rstrip()
    below = f'<div class="jp-Cell-outputWrapper">\n{"".join(outputs)}</div>' if outputs else ""
    return f'<div class="jp-Cell {kind}" id="{name}">\n{code(cell.source)}{below}</div>\n'


def _exercise(source: str, tags: Sequence[str], parts: Parts) -> str:
    """Return the place where an exercise is solved, or where to solve it."""
    ids = [tag.removeprefix(EXERCISE) for tag in tags if tag.startswith(EXERCISE)]
    for id in ids:
        if id in parts.live:
            parts.exercises.append(id)
            title = escape(parts.live[id], quote=True)
            # in a script of HTML no text may look like its end
            starter = json.dumps(source).replace("</", "<\\/")
            return LIVE.format(id=escape(id, quote=True), title=title, starter=starter, solve=SOLVE)
    return SOLVE


def _output(output: Any, key: str, parts: Parts) -> str:
    from nbconvert.filters.ansi import ansi2html

    if output.output_type == "stream":
        kind = "site-warning" if output.name == "stderr" else "site-text"
        text = ansi2html(output.text)  # type: ignore[no-untyped-call]
        return f'<pre class="{kind}" tabindex="0">{text}</pre>\n'
    if output.output_type == "error":
        if output.ename == "NotImplementedError":
            return OWN_ANSWER
        return (
            '<pre class="site-warning" '
            f'tabindex="0">{escape(f"{output.ename}: {output.evalue}")}</pre>\n'
        )
    data = output.data
    if PAGE_TYPE in data:
        return widget_html(data, key, parts)
    if "text/html" in data:
        html = DATA_URL.sub(lambda found: _source(found[2], found[1], parts), data["text/html"])
        return f'<div class="site-html">{html}</div>\n'
    if "text/markdown" in data:
        return markdown(data["text/markdown"])
    return _still(data, parts)


def _source(encoded: str, kind: str, parts: Parts) -> str:
    return f'loading="lazy" src="{parts.picture(base64.b64decode(encoded), kind)}"'


def _still(data: Any, parts: Parts) -> str:
    """Return the picture of an output with its text as alternative, or the text."""
    from nbconvert.filters.ansi import ansi2html

    words = data.get("text/plain", "")
    if "image/svg+xml" in data:
        source = f'src="{parts.picture(data["image/svg+xml"].encode(), "svg")}"'
    elif "image/png" in data:
        source = _source(data["image/png"], "png", parts)
    elif "text/html" in data:
        return f'<div class="site-html">{data["text/html"]}</div>\n'
    else:
        text = ansi2html(words)  # type: ignore[no-untyped-call]
        return f'<pre class="site-text" tabindex="0">{text}</pre>\n'
    return f'<img alt="{escape(words, quote=True)}" {source}>\n'


def widget_html(data: Any, key: str, parts: Parts) -> str:
    """Return a widget's place in a page, and add what it needs to `parts`.

    Args:
        data: MIME type -> content, as an output has it: the state of the widget and its still
            picture.
        key: The name of the place, unique in its page.
        parts: What the page needs.
    """
    page = data[PAGE_TYPE]
    name = page["folder"]
    parts.widgets.add(name)
    if name == "predict":
        parts.questions.append(key)
    state = json.dumps(page["state"], separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    element = (
        f'<div class="site-widget" data-widget="{name}" data-key="{key}">'
        f'<script type="application/json">{state}</script>\n{_still(data, parts)}'
        f"<template>{NEEDS_PYTHON}</template></div>\n"
    )
    parts.shown.append(element)
    return element
