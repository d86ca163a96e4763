"""Files of a site: a page for each notebook, an index, scripts, a style sheet and pictures.

Everything a page needs is beside it as a classic script, a style sheet or a picture, or is part
of the page itself, since a browser loads no module and fetches nothing from `file://`. The HTML is
in page.html.jinja, lesson.html.jinja and index.html.jinja.

Invariant: a page loads nothing from another server; its content security policy forbids it. A
folder is only written if it is new, empty, or holds a site: its list of files, MARKER. Files of the
former site that the new one lacks are deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape, unescape
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote

from labkit.records import write_atomic
from labkit.records.templates import markup, render
from labkit.site.cells import Parts, cell_html, widget_html
from labkit.site.live_files import LiveFiles, site_script
from labkit.site.running import PROBLEM
from labkit.widgets.base.widget import PAGE_TYPE, page_script, page_style, style
from labkit.widgets.playground.widget import Playground

MARKER = "labkit-site.json"
INDEX = "index.html"
GLOSSARY = "glossary.html"
# A link in Markdown.
LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
# A row of the table of lessons: number, link, minutes, summary.
MAP_ROW = re.compile(
    r"^\| \**\w+\** \| \[[^]]+\]\((?P<name>\w+)\.ipynb\)"
    r" \| (?P<minutes>\w*) \| (?P<summary>.*) \|$",
    re.M,
)
# A link to a page in the same folder.
PAGE_LINK = re.compile(
    r'<a href="(?P<page>[^"/:#?]+\.html)(?:#[^"]*)?"[^>]*>(?P<text>.*?)</a>', re.S
)
# The sources that a page may load from: its own server, or files beside its own.
OWN = "'self' file:"
POLICY = (
    f"default-src 'none'; img-src {OWN} data:; "
    f"style-src {OWN} 'unsafe-inline'; script-src {OWN} 'unsafe-inline'"
)
NO_TITLES: Mapping[str, str] = MappingProxyType({})


class SiteError(ValueError):
    """An error in the folder or in the notebooks of a site."""


@dataclass(frozen=True)
class Page:
    """A notebook as a page.

    Attributes:
        name: The file name of the notebook, without a suffix.
        title: The first heading, as HTML.
        body: The cells, as HTML.
        sections: (id, HTML) of the headings of the second level.
        parts: What the cells need.
        problem: Why outputs are missing, or "".
    """

    name: str
    title: str
    body: str
    sections: tuple[tuple[str, str], ...]
    parts: Parts
    problem: str


@dataclass(frozen=True)
class Site:
    """What all pages of a site share.

    Attributes:
        has_glossary: Whether the pages link to a glossary.
        live: What pages need that check exercises; None: exercises are solved in the lab.
    """

    has_glossary: bool
    live: LiveFiles | None


def require_site_folder(folder: Path) -> None:
    """Require that a site can be written to a folder.

    Raises:
        SiteError: It is a file, or holds something else, or a damaged list of a site's files.
    """
    if folder.exists() and not folder.is_dir():
        raise SiteError(f"expected a folder, got the file {folder}; name another place")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise SiteError(
            "expected a new folder, an empty one or a site that this command wrote, got "
            f"{folder}, which holds other files; name another folder, or empty this one"
        )
    _former_files(folder)


def _former_files(folder: Path) -> list[str]:
    """Return the names of the files that an earlier call of `write_site` wrote to a folder."""
    marker = folder / MARKER
    if not marker.is_file():
        return []
    try:
        names = json.loads(marker.read_text(encoding="utf-8"))
    except ValueError:
        names = None
    # These files are deleted, so each of them must be inside the folder.
    if isinstance(names, list) and all(_is_inside(folder, name) for name in names):
        return names
    raise SiteError(
        f"expected the list of a site's files in {marker}, got another text; name another folder, "
        "or empty this one"
    )


def _is_inside(folder: Path, name: object) -> bool:
    return isinstance(name, str) and (folder / name).resolve().is_relative_to(folder.resolve())


def page_of(name: str, notebook: Any, live: Mapping[str, str] = NO_TITLES) -> Page:
    """Return a notebook as a page.

    Args:
        name: The file name of the notebook, without a suffix.
        notebook: The notebook, with the outputs of a run.
        live: The titles of the exercises that pages check, by id.
    """
    parts = Parts(live=live)
    body = "".join(cell_html(cell, parts) for cell in notebook.cells)
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", body)
    sections = re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', body)
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    problem = str(notebook.metadata.get(PROBLEM, ""))
    if code_cells and not any(cell.outputs for cell in code_cells):
        problem = "it was never run, so its pictures and results are missing"
    return Page(
        name=name,
        title=heading[1] if heading else escape(name),
        body=body,
        sections=tuple(sections),
        parts=parts,
        problem=problem,
    )


def write_site(
    folder: Path, notebooks: Mapping[str, Any], live: LiveFiles | None = None
) -> list[Path]:
    """Write the pages of notebooks and an index into a folder; return the files.

    Args:
        folder: A new folder, an empty one, or one with a site.
        notebooks: Name -> the notebook as a run left it.
        live: What pages need that check exercises; None: exercises are solved in the lab.

    Raises:
        SiteError: The folder holds something else, or there are no notebooks.
    """
    require_site_folder(folder)
    if not notebooks:
        raise SiteError("expected one notebook at least, got none")
    titles = live.titles() if live is not None else NO_TITLES
    pages = [page_of(name, notebook, titles) for name, notebook in notebooks.items()]
    names = {INDEX, *(f"{page.name}.html" for page in pages)}
    pages = [replace(page, body=_live_links(page.body, names)) for page in pages]

    # The site has the files of the exercises that are in its pages, and no others.
    exercises = [id for page in pages for id in page.parts.exercises]
    if live is not None and exercises:
        live = live.of(exercises)
    else:
        live = None
    contents = _contents(pages, _course_map(notebooks), Site(GLOSSARY in names, live))
    _replace_files(folder, contents)
    return [folder / name for name in sorted(contents)]


def _contents(
    pages: Sequence[Page], course: Mapping[str, tuple[str, str]], site: Site
) -> dict[str, bytes]:
    """Return the files of a site by name.

    Args:
        pages: The pages of its notebooks.
        course: Lesson name -> (minutes, summary).
        site: What all of them share.
    """
    playground, parts = _playground()
    contents = {INDEX: _index(pages, playground, course, site).encode()}
    widgets = set(parts.widgets)
    contents |= parts.pictures
    for page in pages:
        contents[f"{page.name}.html"] = _lesson(page, site).encode()
        widgets |= page.parts.widgets
        contents |= page.parts.pictures
    for widget in sorted(widgets):
        contents[f"scripts/{widget}.js"] = page_script(widget).encode()
    contents["scripts/site.js"] = site_script(site.live is not None).encode()
    if site.live is not None:
        contents |= site.live.contents()

    # The site's own rules come last: they overrule those of the widgets.
    own_style = (files("labkit.site") / "site.css").read_text(encoding="utf-8")
    styles = [page_style("predict"), *map(style, sorted(widgets)), _code_style(), own_style]
    contents["site.css"] = "\n".join(styles).encode()
    return contents


def _replace_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write a site's files and its list of them; delete what only the former site had."""
    former = _former_files(folder)
    # first all names, so that a call after one that was interrupted knows what it has written
    _write_list(folder, {*former, *contents})
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, content)
    for name in set(former) - contents.keys():
        (folder / name).unlink(missing_ok=True)
    # In reverse order a folder comes after those inside it.
    for place in sorted({(folder / name).parent for name in former}, reverse=True):
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
    _write_list(folder, contents)


def _write_list(folder: Path, names: Collection[str]) -> None:
    """Write the list of a site's files."""
    write_atomic(folder / MARKER, json.dumps(sorted(names), indent=1).encode())


def _live_links(body: str, names: Collection[str]) -> str:
    """Return a page in which links to pages that the site does not have are plain text.

    >>> _live_links('<a href="02_rounding.html#ulp">lesson <b>02</b></a>', {"index.html"})
    'lesson <b>02</b>'
    """

    def link_or_text(found: re.Match[str]) -> str:
        # In an address, characters such as blanks are escaped, and so is & in HTML.
        page = unquote(unescape(found["page"]))
        return found[0] if page in names else found["text"]

    return PAGE_LINK.sub(link_or_text, body)


def _course_map(notebooks: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return lesson name -> (minutes, summary), from the map of the course in its first lesson."""
    text = "\n".join(cell.source for notebook in notebooks.values() for cell in notebook.cells)
    return {
        row["name"]: (row["minutes"], LINK.sub(r"\1", row["summary"]))
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


# Pages


def _page(
    template: str,
    *,
    name: str,
    title: str,
    widgets: Sequence[str],
    site: Site,
    live: LiveFiles | None,
    **values: object,
) -> str:
    """Return a page of the site.

    Args:
        template: The file name of its template in this package, which extends page.html.jinja.
        name: The file name of the page, which the menu marks.
        title: The title of the page, as HTML.
        widgets: The names of the widgets on the page.
        site: What all pages share.
        live: What the exercises of this page need; None: it has none that it checks.
        **values: Further variables of the template, by name.
    """
    links = [(INDEX, "All lessons")]
    if site.has_glossary:
        links.append((GLOSSARY, "Glossary"))
    menu = [
        {"address": address, "name": text, "is_current": address == name} for address, text in links
    ]
    return render(
        f"site/{template}",
        policy=live.policy(OWN) if live is not None else POLICY,
        title=markup(title),
        menu=menu,
        settings=live.settings() if live is not None else "",
        scripts=[*(f"scripts/{widget}.js" for widget in widgets), "scripts/site.js"],
        **values,
    )


def _lesson(page: Page, site: Site) -> str:
    plain_title = re.sub(r"<[^>]+>", "", page.title)
    return _page(
        "lesson.html.jinja",
        name=f"{page.name}.html",
        title=f"{plain_title} | FP16 lab",
        widgets=sorted(page.parts.widgets),
        site=site,
        live=site.live if page.parts.exercises else None,
        sections=[(markup(id), markup(text)) for id, text in page.sections],
        problem=page.problem,
        exercises=page.parts.exercises,
        cells=markup(page.body),
    )


def _index(
    pages: Sequence[Page], playground: str, course: Mapping[str, tuple[str, str]], site: Site
) -> str:
    """Return the first page: the playground, a picture of gradients, and the lessons.

    Args:
        pages: The pages of the notebooks.
        playground: The element of the playground.
        course: Lesson name -> (minutes, summary).
        site: What all pages share.
    """
    elements = [element for page in pages for element in page.parts.elements]
    pictures = [element for element in elements if 'data-widget="underflow"' in element]
    widgets = ["playground"]
    first_picture = ""
    if pictures:
        widgets.append("underflow")
        first_picture = pictures[0]
    rows = []
    for page in pages:
        if f"{page.name}.html" == GLOSSARY:
            continue
        minutes, summary = course.get(page.name, ("", ""))
        # as encodeURIComponent of JavaScript, by which site.js names a page
        address = quote(page.name, safe="!*'()")
        rows.append(
            {
                "address": address,
                "title": markup(page.title),
                "minutes": minutes,
                "summary": summary,
                "questions": [f"{address}/{key}" for key in page.parts.questions],
                "exercises": page.parts.exercises,
            }
        )
    return _page(
        "index.html.jinja",
        name=INDEX,
        title="FP16 lab: mixed-precision training",
        widgets=widgets,
        site=site,
        live=site.live,
        playground=markup(playground),
        first_picture=markup(first_picture),
        lessons=rows,
        has_live_exercises=site.live is not None,
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
