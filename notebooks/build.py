"""Generator of the learners' notebooks from the texts of the lessons.

    python notebooks/build.py            write notebooks/*.ipynb
    python notebooks/build.py --check    list those that are not up to date, and fail if any is

The source of a lesson is a text in jupytext's py:percent format, with the solutions of its
exercises. The notebook is generated from it:

- The lines from `### BEGIN SOLUTION` to `### END SOLUTION` become one line, which learners replace.
- The first use of each word of labkit_lessons/glossary.toml becomes a link to the glossary, which
  is a notebook of its own.
- Lesson 00 gets a table of all lessons, and each lesson a last line with links to its neighbours.
- If pyproject.toml names the address of the repository, badges open the lesson on hosts such as
  Colab, and its first code cell installs the lab there.

The same source always gives the same bytes: ids of cells are derived from their content, outputs
are empty, and metadata is constant.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.course import Lesson, lessons_folder, notebook_of, solution_of, text_of
from labkit.course.lesson import lessons_in
from labkit.course.notebook import METADATA, Notebook, lines

ROOT = Path(__file__).parents[1]
NOTEBOOKS = Path(__file__).parent
SOURCES = lessons_folder()
HOSTED = """\
# On Colab, Kaggle or a host like them: gets the lab, and keeps what is installed there.
# Elsewhere it does nothing.
import importlib.util, subprocess, sys

if importlib.util.find_spec("labkit") is None:
    get = ["pip", "install", "--quiet", "--no-deps", "git+ADDRESS"]
    for words in (get, ["labkit", "setup", "--here"]):
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
        print(done.stdout, done.stderr if done.returncode else "")
        done.check_returncode()
    importlib.invalidate_caches()"""
# Host -> the address of its badge's picture, and the address that the badge leads to.
BADGES = {
    "Colab": (
        "https://colab.research.google.com/assets/colab-badge.svg",
        "https://colab.research.google.com/github/{place}/blob/{revision}/notebooks/{lesson}.ipynb",
    ),
    "Kaggle": (
        "https://kaggle.com/static/images/open-in-kaggle.svg",
        "https://kaggle.com/kernels/welcome?src={address}/blob/{revision}/notebooks/{lesson}.ipynb",
    ),
    "Binder": (
        "https://mybinder.org/badge_logo.svg",
        "https://mybinder.org/v2/gh/{place}/{revision}?labpath=notebooks/{lesson}.ipynb",
    ),
}

GITHUB = "https://github.com/"
GLOSSARY = "glossary.ipynb"
# The head of the table of all lessons, in lesson 00.
MAP = "| | lesson | minutes | you will see |\n|---|---|---|---|\n"
MAP_ROW = re.compile(r"^\| \**(\w+)\** \| .*(?:\n|$)", re.MULTILINE)
# Code, formulas, headings and links, in which no word becomes a link.
UNTOUCHED = r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$|^#.*?$|\[[^\]]*\]\([^)]*\)"


def learners(lesson: Lesson) -> Notebook:
    """Return the learner's notebook, with a starter in place of each solution."""
    return _notebook(lesson, None)


def solved(lesson: Lesson) -> Notebook:
    """Return the same notebook with the solutions filled in."""
    return _notebook(lesson, solution_of)


def repository() -> str:
    """Return the repository's address from [tool.labkit] of pyproject.toml, "" if it has none."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(settings["tool"]["labkit"]["repository"])


def for_hosts(cells: list[dict[str, Any]], lesson: str, setting: str) -> list[dict[str, Any]]:
    """Return a lesson's cells with badges under its title and a first cell of code.

    Without an address the cells are returned unchanged. Only addresses on GitHub get badges: Colab
    and Kaggle open notebooks from there.

    Args:
        cells: The cells of the lesson's notebook.
        lesson: The lesson's name: "06_loss_scaling".
        setting: "https://github.com/OWNER/NAME", with "@REVISION" at its end where that is not
            main.

    Raises:
        ValueError: If the setting is not an address that can be cloned without an SSH key.
    """
    if not setting:
        return cells
    if not setting.startswith(("https://", "file://")):
        raise ValueError(
            'expected [tool.labkit] repository = "https://github.com/OWNER/NAME" in '
            f"pyproject.toml, got {setting!r}. "
            "A host clones without a key: give the address that a browser shows."
        )
    address, _, revision = setting.partition("@")
    if address.startswith(GITHUB):
        # `git clone` accepts these endings, but addresses of pages are built without them.
        address = address.removesuffix("/").removesuffix(".git")
    revision = revision or "main"
    place = address.removeprefix(GITHUB)
    names = {"address": address, "place": place, "revision": revision, "lesson": lesson}
    badges = [
        f"[![open in {host}]({picture})]({link.format(**names)})"
        for host, (picture, link) in BADGES.items()
    ]
    title, *others = cells
    if place != address:
        title = {**title, "source": [*title["source"], "\n\n", " ".join(badges)]}
    code = lines(HOSTED.replace("ADDRESS", f"{address}@{revision}"))
    common = {
        "cell_type": "code",
        "id": "get-the-lab",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
    }
    return [title, {**common, "source": code}, *others]


class Head(NamedTuple):
    """A lesson as other lessons refer to it.

    Attributes:
        name: The name of its file, such as "06_loss_scaling".
        number: The number, such as "06".
        title: The title without the number.
        minutes: How long it takes.
        shows: What a learner will see, for the table of all lessons.
    """

    name: str
    number: str
    title: str
    minutes: str
    shows: str

    @property
    def link(self) -> str:
        """A Markdown link to the lesson, by its number and title."""
        return f"[{self.number} · {self.title}]({self.name}.ipynb)"


def heads() -> list[Head]:
    """Return all lessons in their order, read from the first lines of each source.

    A field that a source does not have is "".
    """
    all_heads = []
    for lesson in sources():
        text = lesson.text.read_text(encoding="utf-8")
        head = Head(
            name=lesson.name,
            number=lesson.name.split("_")[0],
            title=_first_match(r"^# # (?:\w+ · )?([^:\n]+)", text),
            minutes=_first_match(r"About (\d+) minutes", text),
            shows=_first_match(r'^# %% \[markdown\] on_the_map="(.*)"$', text),
        )
        all_heads.append(head)
    return all_heads


def _first_match(pattern: str, text: str) -> str:
    """Return the group of a pattern's first match, or "" if nothing matches."""
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else ""


def mapped(text: str) -> str:
    """Return a cell's text with a row for each lesson in the table of lessons, if it has the table.

    A row of the text for a lesson that does not exist yet is kept.
    """
    above, head, below = text.partition(MAP)
    if not head:
        return text
    rows = {row[1]: row[0] for row in MAP_ROW.finditer(below)}
    for lesson in heads():
        if lesson.shows:
            rows[lesson.number] = (
                f"| **{lesson.number}** | [{lesson.title}]({lesson.name}.ipynb) | {lesson.minutes} "
                f"| {lesson.shows} |\n"
            )
    table = "".join(rows[number] for number in sorted(rows))
    return above + head + table + MAP_ROW.sub("", below)


def neighbours(name: str) -> str:
    """Return a line with links from a lesson to its neighbours and to the table of all lessons.

    Returns:
        The line; "" if the lesson is the only one.
    """
    every = heads()
    at = [lesson.name for lesson in every].index(name)
    before = [f"← {lesson.link}" for lesson in every[max(at - 1, 0) : at]]
    after = [f"{lesson.link} →" for lesson in every[at + 1 : at + 2]]
    # From the second lesson, the link to the lesson before already leads to the table.
    to_map = [f"[all lessons]({every[0].name}.ipynb)"] if at > 1 else []
    return " &emsp; ".join([*before, *to_map, *after])


def terms() -> dict[str, dict[str, Any]]:
    """Return the rows of glossary.toml by their words."""
    return tomllib.loads((SOURCES / "glossary.toml").read_text(encoding="utf-8"))


def glossary() -> Notebook:
    """Return the page of all words, in alphabetical order.

    Each word has a cell, so that a link can lead to it.
    """
    intro = (
        "# Glossary\n\nThe words of the lessons, in short. A lesson links here where a word "
        "first appears; the number says which lesson explains it.\n\n"
        "Keep this page open in its tab: the link that opens it leads to its top, and every "
        "later one straight to its word. The table of contents (on the left) lists all words."
    )
    rows = sorted(terms().items(), key=lambda row: row[0].lower())
    texts = {"glossary": intro} | {_slug(name): _explained(name, row) for name, row in rows}
    common = {"cell_type": "markdown", "metadata": {}}
    cells = [{**common, "id": id, "source": lines(text)} for id, text in texts.items()]
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def anchor_of(name: str) -> str:
    """Return the target of a link to a word of the glossary.

    The link names the word's cell by its id, which JupyterLab and HTML exports find. JupyterLab
    finds a heading only after its cell has been drawn, which is too late if the link opens the
    glossary.

    >>> anchor_of("loss scale")
    'glossary.ipynb#cell-id=loss-scale'
    """
    return f"{GLOSSARY}#cell-id={_slug(name)}"


def typeset(text: str) -> str:
    """Return a cell's text with each power of two as a formula, as widgets write it.

    Code and formulas stay as they are.

    >>> typeset("from 2^-24 on, in code `2^-24`")
    'from $2^{-24}$ on, in code `2^-24`'
    """
    power = re.compile(rf"{UNTOUCHED}|(?<![\w.^{{])2\^(?P<power>-?\d+)", re.MULTILINE | re.DOTALL)
    return power.sub(
        lambda found: f"$2^{{{found['power']}}}$" if found["power"] else found[0], text
    )


def linked(text: str, names: dict[str, str]) -> str:
    """Return a cell's text with a link at the first appearance of each word.

    Formulas, headings and links are not changed, nor is inline code, unless the whole of it is a
    word.

    Args:
        text: Markdown of the cell.
        names: Spelling -> word of the glossary. All spellings of a word that is linked are removed,
            so that it is linked once in a lesson.

    >>> linked("One ulp, two ulps; `ulp`", {"ulp": "ulp"})
    'One [ulp](glossary.ipynb#cell-id=ulp), two ulps; `ulp`'
    """
    spellings = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    pattern = rf"{UNTOUCHED}|(?<![\w.])(?P<word>{spellings})s?(?![\w(])"
    word = re.compile(pattern, re.MULTILINE | re.DOTALL | re.IGNORECASE)

    def link(found: re.Match[str]) -> str:
        # Inline code matches UNTOUCHED, so it has no group "word"; as a whole it may be a word.
        spelling = _spelling(found["word"] or found[0], names)
        if spelling is None:
            return found[0]
        name = names[spelling]
        for other in list(names):
            if names[other] == name:
                del names[other]
        return f"[{found[0]}]({anchor_of(name)})"

    return word.sub(link, text) if names else text


def sources() -> list[Lesson]:
    """Return the lab's own lessons, in their order."""
    return lessons_in(SOURCES)


def lesson(name: str) -> Lesson:
    """Return one of the lab's own lessons: "06_loss_scaling"."""
    return Lesson(SOURCES / f"lesson_{name}")


def target_of(lesson: Lesson) -> Path:
    """Return where the learner's notebook of a lesson belongs."""
    return NOTEBOOKS / f"{lesson.name}.ipynb"


def wanted() -> dict[Path, str]:
    """Return the texts of all learners' notebooks and of the glossary, by their paths."""
    return {NOTEBOOKS / GLOSSARY: text_of(glossary())} | {
        target_of(s): text_of(learners(s)) for s in sources()
    }


def stale() -> list[Path]:
    """Return the notebooks that are missing, have no source, or differ from what it gives."""
    texts = wanted()
    written = {path: path.read_text(encoding="utf-8") for path in NOTEBOOKS.glob("*.ipynb")}
    return sorted(
        path for path in texts.keys() | written.keys() if texts.get(path) != written.get(path)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the notebooks, or check them; return the exit status."""
    parser = argparse.ArgumentParser(
        description="Write the learners' notebooks from labkit_lessons."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a notebook is not up to date"
    )
    check = parser.parse_args(arguments).check
    texts = wanted()
    status = 0
    for path in stale():
        if path not in texts:
            message = f"{path.name} has no source in {SOURCES}: delete it, or write one"
            print(message, file=sys.stderr)
            status = 1
        elif check:
            message = f"{path.name} differs from its source; `make notebooks` writes it"
            print(message, file=sys.stderr)
            status = 1
        else:
            path.write_text(texts[path], encoding="utf-8", newline="\n")
            print(f"wrote {path.name}")
    return status


def _notebook(lesson: Lesson, edit: Callable[[str], str] | None) -> Notebook:
    """Return a lesson as a notebook whose code cells are edited and whose text has links.

    Args:
        lesson: The lesson.
        edit: Turns the source of a code cell into what the notebook has; None puts starters in
            place of the solutions.
    """
    names = {
        spelling: name for name, row in terms().items() for spelling in row.get("spellings", [name])
    }
    notebook = notebook_of(lesson, edit, lambda text: linked(typeset(mapped(text)), names))
    if links := neighbours(lesson.name):
        notebook["cells"].append(
            {"cell_type": "markdown", "id": "neighbours", "metadata": {}, "source": lines(links)}
        )
    return {**notebook, "cells": for_hosts(notebook["cells"], lesson.name, repository())}


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _explained(name: str, row: dict[str, Any]) -> str:
    example = f"\n\n*For example:* {row['example']}" if "example" in row else ""
    return typeset(f"### {name}\n\n{row['means']}{example}\n\nLesson {row['lesson']}.")


def _spelling(found: str, names: dict[str, str]) -> str | None:
    """Return the key of `names` that a word of a text is an instance of, or None.

    A word may be capitalised where `names` has small letters, as at the start of a sentence, but
    not the other way round.
    """
    for spelling in (found, found.lower(), found[:1].lower() + found[1:]):
        if spelling in names:
            return spelling
    return None


if __name__ == "__main__":
    sys.exit(main())
