"""Files of a site: a page for each notebook, an index, scripts, a style sheet and pictures.

Everything a page needs lies beside it as a classic script, a style sheet or a picture, or is part
of the page itself, since a browser loads no module and fetches nothing from `file://`.

Invariant: a page asks no server for anything; its content security policy forbids it. A folder is
only written if it is new, empty, or holds a site: its list of files, MARKER. Files of the former
site that the new one lacks are deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any

from labkit.records import write_atomic
from labkit.site.cells import Parts, cell_html, widget_html
from labkit.site.live_files import LiveFiles, site_script
from labkit.site.running import PROBLEM
from labkit.widgets.base.widget import PAGE_TYPE, page_script, page_style, style
from labkit.widgets.playground.widget import Playground

MARKER = "labkit-site.json"
INDEX = "index.html"
GLOSSARY = "glossary.html"
LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")  # in Markdown
MAP_ROW = re.compile(
    r"^\| \**\w+\** \| \[[^]]+\]\((?P<name>\w+)\.ipynb\) \| (?P<minutes>\w*) \| (?P<seen>.*) \|$",
    re.M,
)
PAGE_LINK = re.compile(r'<a href="(?P<page>\w+\.html)(?:#[^"]*)?"[^>]*>(?P<text>.*?)</a>', re.S)
OWN = "'self' file:"  # this page's server, or the folder of its file
POLICY = (
    f"default-src 'none'; img-src {OWN} data:; "
    f"style-src {OWN} 'unsafe-inline'; script-src {OWN} 'unsafe-inline'"
)
NO_TITLES: Mapping[str, str] = MappingProxyType({})
DOWNLOAD = """
<div id="site-download" hidden>
<button type="button" class="site-button"
 id="site-download-button">Download my answers as notebooks</button>
<span id="site-download-status" role="status"></span></div>
"""
IN_THE_LAB = (
    "For exercises, checks of your answers and trainings of your own you need the lab itself."
)
IN_PAGES = (
    "Some exercises are solved and checked on these pages: their Python runs in your browser, "
    "and no answer "
    "leaves it. For the other exercises, and trainings of your own, you need the lab itself."
)
TRY_IT = (
    "Try it: drag the loss scale, or focus it with Tab and use the arrow keys. These are "
    "gradients of a real network. "
    "Those in the left zone become zero in FP16."
)


class SiteError(ValueError):
    """An error in the folder or in the notebooks of a site."""


@dataclass(frozen=True)
class Page:
    """A notebook as a page.

    Attributes:
        title: Of its first heading, as HTML.
        sections: (id, HTML) of its headings of the second level.
        problem: Why outputs are missing, or "".
    """

    name: str
    title: str
    body: str
    sections: tuple[tuple[str, str], ...]
    parts: Parts
    problem: str


def require_site_folder(folder: Path) -> None:
    """Require that a site can be written to a folder.

    Raises:
        SiteError: it is a file, or holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise SiteError(f"expected a folder, got the file {folder}; name another place")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise SiteError(
            "expected a new folder, an empty one or a site that this command wrote, got "
            f"{folder}, which holds other "
            "files; name another folder, or empty this one"
        )


def page_of(name: str, notebook: Any, live: Mapping[str, str] = NO_TITLES) -> Page:
    """Return a notebook as a page.

    Args:
        name: Of its file, without a suffix.
        notebook: The notebook, with the outputs of a run.
        live: The titles of the exercises that pages check, by id.
    """
    parts = Parts(live=live)
    body = "".join(cell_html(cell, parts) for cell in notebook.cells)
    title = re.search(r"<h1[^>]*>(.*?)</h1>", body)
    sections = re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', body)
    coded = [cell for cell in notebook.cells if cell.cell_type == "code"]
    problem = str(notebook.metadata.get(PROBLEM, ""))
    if coded and not any(cell.outputs for cell in coded):
        problem = "it was never run, so its pictures and results are missing"
    return Page(name, title[1] if title else escape(name), body, tuple(sections), parts, problem)


def write_site(
    folder: Path, notebooks: Mapping[str, Any], live: LiveFiles | None = None
) -> list[Path]:
    """Write the pages of notebooks, by name, and an index into a folder; return the files.

    Args:
        folder: A new folder, an empty one, or one of such pages.
        notebooks: The notebooks, each as a run left it.
        live: What pages need that check exercises; None: exercises are solved in the lab.

    Raises:
        SiteError: the folder holds something else, or it has no notebook.
    """
    require_site_folder(folder)
    if not notebooks:
        raise SiteError("expected one notebook at least, got none")
    titles = live.titles() if live else NO_TITLES
    pages = [page_of(name, notebook, titles) for name, notebook in notebooks.items()]
    shown = [id for page in pages for id in page.parts.exercises]
    if live is not None and shown:
        live = live.of(shown)
    else:
        live = None
    written = {INDEX, *(f"{page.name}.html" for page in pages)}
    pages = [replace(page, body=_live_links(page.body, written)) for page in pages]
    glossary = GLOSSARY in written
    playground, first_parts = _playground()
    index = _index(pages, playground, _map(notebooks), glossary, live)
    contents: dict[str, bytes] = {INDEX: index.encode(), **first_parts.pictures}
    for page in pages:
        contents[f"{page.name}.html"] = _lesson(page, glossary, live).encode()
        contents |= page.parts.pictures
    widgets = sorted(first_parts.widgets.union(*(page.parts.widgets for page in pages)))
    for widget in widgets:
        contents[f"scripts/{widget}.js"] = page_script(widget).encode()
    own = files("labkit.site")
    contents["scripts/site.js"] = site_script(live is not None).encode()
    if live is not None:
        contents |= live.contents()
    sheet = [page_style("predict"), *(style(widget) for widget in widgets), _code_style()]
    contents["site.css"] = "\n".join(
        [*sheet, (own / "site.css").read_text(encoding="utf-8")]
    ).encode()
    former = (
        json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if (folder / MARKER).is_file()
        else []
    )
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, content)
    for name in set(former) - contents.keys():
        (folder / name).unlink(missing_ok=True)
    for emptied in sorted({(folder / name).parent for name in former}, reverse=True):
        if emptied.is_dir() and not any(emptied.iterdir()):
            emptied.rmdir()
    write_atomic(folder / MARKER, json.dumps(sorted(contents), indent=1).encode())
    return [folder / name for name in sorted(contents)]


def _live_links(body: str, written: Collection[str]) -> str:
    """Return a page whose links to pages that are not written are plain text.

    >>> _live_links('<a href="02_rounding.html#ulp">lesson <b>02</b></a>', {"index.html"})
    'lesson <b>02</b>'
    """

    def live(found: re.Match[str]) -> str:
        return found[0] if found["page"] in written else found["text"]

    return PAGE_LINK.sub(live, body)


def _map(notebooks: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return lesson name -> (minutes, summary), from the map of the course in its first lesson."""
    text = "\n".join(cell.source for notebook in notebooks.values() for cell in notebook.cells)
    return {
        row["name"]: (row["minutes"], LINK.sub(r"\1", row["seen"]))
        for row in MAP_ROW.finditer(text)
    }


def _code_style() -> str:
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="default")
    dark = HtmlFormatter(style="github-dark")
    return "\n".join(
        [
            light.get_style_defs(".highlight"),
            dark.get_style_defs('[data-jp-theme-light="false"] .highlight'),
        ]
    )


def _page(
    title: str,
    body: str,
    widgets: Sequence[str],
    here: str,
    glossary: bool,
    live: LiveFiles | None = None,
) -> str:
    """Return a whole page, with a header and a footer.

    Args:
        title: The title of the page.
        body: HTML between the header and the footer.
        widgets: The names of the widgets on the page.
        here: The file name of the page, which the header marks.
        glossary: Whether the site has a glossary to link to.
        live: What its exercises need; None: it has none that it checks.
    """
    if live is not None:
        body += live.settings()
    links = [(INDEX, "All lessons"), *([(GLOSSARY, "Glossary")] if glossary else [])]
    current = ' aria-current="page"'
    scripts = [*(f"scripts/{widget}.js" for widget in widgets), "scripts/site.js"]
    return _template("page.html").substitute(
        policy=POLICY if live is None else live.policy(OWN),
        title=title,
        menu="".join(
            f'<a href="{to}"{current if to == here else ""}>{name}</a>' for to, name in links
        ),
        body=body,
        scripts="\n".join(f'<script src="{script}"></script>' for script in scripts),
    )


def _template(name: str) -> Template:
    return Template((files("labkit.site") / name).read_text(encoding="utf-8"))


def _lesson(page: Page, glossary: bool, live: LiveFiles | None) -> str:
    title = re.sub(r"<[^>]+>", "", page.title)
    banner = (
        f'<p class="site-banner">This page is not complete: {escape(page.problem)}.</p>'
        if page.problem
        else ""
    )
    entries = "".join(f'<li><a href="#{id}">{text}</a></li>' for id, text in page.sections)
    contents = (
        f'<nav class="site-contents" aria-label="Sections"><ol>{entries}</ol></nav>'
        if entries
        else ""
    )
    own = page.parts.exercises
    counted = f'<p class="site-counted" data-exercises="{" ".join(own)}"></p>' if own else ""
    text = f"{banner}{counted}\n{page.body}{DOWNLOAD if own else ''}"
    main = f'<main id="main" tabindex="-1">{text}</main>'
    return _page(
        f"{title} | FP16 lab",
        f'<div class="site-columns">{contents}{main}</div>',
        sorted(page.parts.widgets),
        f"{page.name}.html",
        glossary,
        live if own else None,
    )


def _playground() -> tuple[str, Parts]:
    """Return the playground's place in the index, and what it needs."""
    parts = Parts()
    widget = Playground()
    widget.in_address = True
    page = {"folder": widget.script_folder, "state": widget.page_state()}
    html = widget_html({**widget.still(), PAGE_TYPE: page}, "playground", parts)
    widget.close()
    return html, parts


def _index(
    pages: Sequence[Page],
    playground: str,
    course: Mapping[str, tuple[str, str]],
    glossary: bool,
    live: LiveFiles | None,
) -> str:
    first = [
        shown for page in pages for shown in page.parts.shown if 'data-widget="underflow"' in shown
    ][:1]
    hero = "".join(f"<p>{TRY_IT}</p>\n{shown}" for shown in first)
    rows = []
    for page in pages:
        if page.name == "glossary":
            continue
        minutes, seen = course.get(page.name, ("", ""))
        keys = " ".join(f"{page.name}/{key}" for key in page.parts.questions)
        rows.append(
            f'<li><a href="{page.name}.html">{page.title}</a>'
            f'<span class="site-minutes">{minutes + " min" if minutes else ""}</span>'
            f"<span>{escape(seen)}</span>"
            f'<span class="site-progress" data-questions="{keys}" '
            f'data-exercises="{" ".join(page.parts.exercises)}"></span></li>'
        )
    body = _template("index.html").substitute(
        playground=playground,
        hero=hero,
        rows="\n".join(rows),
        download="" if live is None else DOWNLOAD,
        exercises=IN_THE_LAB if live is None else IN_PAGES,
    )
    return _page(
        "FP16 lab: mixed-precision training",
        body,
        ["playground", *(["underflow"] if first else [])],
        INDEX,
        glossary,
        live,
    )
