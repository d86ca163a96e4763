"""Cells of a notebook as HTML.

nbconvert's filters convert Markdown, code and the colours of a terminal; `labkit.site.formulas`
converts formulas. A cell whose text is about buttons of the lab has another text for pages, in its
metadata `site`. A widget becomes an element with its state, as JSON, and its still picture; site.js
shows the widget in place of the picture if the widget answers without a kernel.

Invariant: classes of cells are those of JupyterLab, so that the style sheets of widgets find them.
Pictures are files: `Parts` collects them. Text is escaped; HTML of a notebook stays HTML. A
traceback, which names folders of the machine, is left out.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from labkit.records.templates import markup, render, script_json
from labkit.site.formulas import typeset
from labkit.site.running import LAB_ONLY
from labkit.widgets.base.widget import PAGE_TYPE
from labkit.widgets.predict.waiting import waiting_classes

if TYPE_CHECKING:
    from markupsafe import Markup

EXERCISE = "exercise-"
IN_THE_LAB = '<p class="site-note">{} <a href="index.html#install">Open it in the lab.</a></p>'
OWN_MACHINE = IN_THE_LAB.format("This cell is about your own machine.")
OWN_ANSWER = IN_THE_LAB.format("This cell needs your answer to the exercise.")
SOLVE = IN_THE_LAB.format(
    "<strong>Exercise.</strong> You write and check your answer in JupyterLab."
)
NEEDS_PYTHON = IN_THE_LAB.format("This widget needs Python.")
PRE = '<pre class="{}" tabindex="0">{}</pre>\n'
# A link to a notebook in the same folder.
NOTEBOOK_LINK = re.compile(r'href="([^"/:#?]+)\.ipynb(?:#(?:cell-id=)?([^"]*))?"')
DATA_URL = re.compile(r'src="data:image/(png);base64,([^"]+)"')


@dataclass
class Parts:
    """What the cells of a page need, collected while they become HTML.

    Attributes:
        pictures: name -> content.
        widgets: names of the widgets.
        questions: keys of the predictions, unique in the page.
        elements: the elements of widgets, as HTML.
        live: the titles of the exercises that pages check, by id; an input.
        exercises: those of them that are in these cells.
    """

    pictures: dict[str, bytes] = field(default_factory=dict)
    widgets: set[str] = field(default_factory=set)
    questions: list[str] = field(default_factory=list)
    elements: list[str] = field(default_factory=list)
    live: Mapping[str, str] = field(default_factory=dict)
    exercises: list[str] = field(default_factory=list)

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
    html = NOTEBOOK_LINK.sub(_link, html)
    html = html.replace(
        "<table>", '<div class="site-scroll" role="group" aria-label="table" tabindex="0"><table>'
    )
    return html.replace("</table>", "</table></div>")


def _link(found: re.Match[str]) -> str:
    name, place = found.groups()
    address = f"{name}.html"
    if place:
        address += f"#{place}"
    return f'href="{address}"'


@cache
def _highlighter() -> Any:
    from nbconvert.filters.highlight import Highlight2HTML

    return Highlight2HTML(pygments_lexer="ipython3")  # type: ignore[no-untyped-call]


def code(source: str) -> str:
    """Return Python as HTML in the colours of its parts."""
    return str(_highlighter()(source)).replace("<pre>", '<pre tabindex="0">')


def cell_html(cell: Any, parts: Parts) -> str:
    """Return a cell as HTML; what it needs is added to `parts`."""
    id = cell.get("id", "")
    outputs: list[str] = []
    if cell.cell_type == "markdown":
        kind = "jp-MarkdownCell"
        source = cell.metadata.get("site", cell.source)
        content = f'<div class="jp-RenderedMarkdown">{markdown(source)}</div>'
    elif cell.cell_type == "code":
        tags = cell.metadata.get("tags", ())
        if any(tag.startswith(EXERCISE) for tag in tags):
            outputs = [_exercise(cell.source, tags, parts)]
        elif LAB_ONLY in tags:
            outputs = [OWN_MACHINE]
        else:
            outputs = [_output(output, id, parts) for output in cell.outputs]
        kind = "jp-CodeCell"
        if not outputs:
            kind += " jp-mod-noOutputs"
        kind = f"{kind} {waiting_classes(tags)}".rstrip()
        content = code(cell.source)
    else:
        kind = ""
        content = markup('<pre tabindex="0">{}</pre>').format(cell.source)
    return render(
        "site/cell.html.jinja",
        kind=kind,
        id=id,
        content=markup(content),
        outputs=markup("".join(outputs)),
    )


def _exercise(source: str, tags: Sequence[str], parts: Parts) -> str:
    """Return the place where an exercise is solved, or where to solve it."""
    for tag in tags:
        id = tag.removeprefix(EXERCISE)
        if tag.startswith(EXERCISE) and id in parts.live:
            parts.exercises.append(id)
            return render(
                "site/live_exercise.html.jinja",
                id=id,
                title=parts.live[id],
                starter=script_json(source),
                solve=markup(SOLVE),
            )
    return SOLVE


def _output(output: Any, key: str, parts: Parts) -> str:
    """Return an output of a cell as HTML; `key` names the place of a widget in its page."""
    if output.output_type == "stream":
        kind = "site-warning" if output.name == "stderr" else "site-text"
        return markup(PRE).format(kind, _terminal(output.text))
    if output.output_type == "error":
        if output.ename == "NotImplementedError":
            return OWN_ANSWER
        return markup(PRE).format("site-warning", f"{output.ename}: {output.evalue}")
    data = output.data
    if PAGE_TYPE in data:
        return widget_html(data, key, parts)
    if "text/html" in data:

        def as_file(found: re.Match[str]) -> str:
            kind, encoded = found.groups()
            return _source(encoded, kind, parts)

        return f'<div class="site-html">{DATA_URL.sub(as_file, data["text/html"])}</div>\n'
    if "text/markdown" in data:
        return markdown(data["text/markdown"])
    return _still(data, parts)


def _terminal(text: str) -> Markup:
    """Return a terminal's text as HTML, in its colours."""
    from nbconvert.filters.ansi import ansi2html

    return markup(ansi2html(text))  # type: ignore[no-untyped-call]


def _source(encoded: str, kind: str, parts: Parts) -> str:
    """Store a picture in base64; return the attributes of its element."""
    address = parts.picture(base64.b64decode(encoded), kind)
    return f'loading="lazy" src="{address}"'


def _still(data: Any, parts: Parts) -> str:
    """Return the picture of an output with its text as alternative, or the text."""
    text = data.get("text/plain", "")
    if "image/svg+xml" in data:
        source = f'src="{parts.picture(data["image/svg+xml"].encode(), "svg")}"'
    elif "image/png" in data:
        source = _source(data["image/png"], "png", parts)
    elif "text/html" in data:
        return f'<div class="site-html">{data["text/html"]}</div>\n'
    else:
        return markup(PRE).format("site-text", _terminal(text))
    return markup('<img alt="{}" {}>\n').format(text, markup(source))


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
    element = render(
        "site/widget.html.jinja",
        name=name,
        key=key,
        state=script_json(page["state"]),
        picture=markup(_still(data, parts)),
        needs_python=markup(NEEDS_PYTHON),
    )
    parts.elements.append(element)
    return element
