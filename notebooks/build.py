"""The learners' notebooks, from the texts of the lessons.

Idea: a lesson is written once, as a text (jupytext's py:percent) that holds the solutions. The
learner's notebook is the same without them: what stands between `### BEGIN SOLUTION` and `### END
SOLUTION` becomes one line to replace. The words of the field stand in labkit_lessons/glossary.toml;
they become a notebook too, and a lesson's text links to a word where it first uses it. Its head
says what others say of it: lesson 00 has a row for each lesson in its map, and each lesson ends
with a line that leads to its neighbours. Where pyproject.toml names the repository's address, a
badge opens a lesson on a host, and a first cell gets the lab there.

Invariant: the same source gives the same bytes. Ids of cells come from their content, outputs are
empty, and metadata is ours.

    python notebooks/build.py            write notebooks/*.ipynb
    python notebooks/build.py --check    say which differ from their sources, and fail if any does
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
BADGES = {  # what it opens, its picture, the address it leads to
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
# Under it, lesson 00 has a row for each.
MAP = "| | lesson | minutes | you will see |\n|---|---|---|---|\n"
MAP_ROW = re.compile(r"^\| \**(\w+)\** \| .*(?:\n|$)", re.MULTILINE)
# Code, formulas, headings, and what is a link already: no word in there becomes a link.
UNTOUCHED = r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$|^#.*?$|\[[^\]]*\]\([^)]*\)"


def learners(lesson: Lesson) -> Notebook:
    """Return the learner's notebook: a starter where the solution stands."""
    return _notebook(lesson, None)


def solved(lesson: Lesson) -> Notebook:
    """Return the same notebook with the solutions filled in."""
    return _notebook(lesson, solution_of)


def repository() -> str:
    """Return the setting of [tool.labkit] in pyproject.toml: the repository's address.

    Returns:
        The address; "" if the project names none.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(settings["tool"]["labkit"]["repository"])


def for_hosts(cells: list[dict[str, Any]], lesson: str, setting: str) -> list[dict[str, Any]]:
    """Return a lesson's cells with badges under its title and a first cell of code.

    Without an address the cells stay as they are. Only GitHub's addresses get badges: the hosts
    ask for them.

    Args:
        cells: The cells of the lesson's notebook.
        lesson: The lesson's name: "06_loss_scaling".
        setting: "https://github.com/OWNER/NAME", with "@REVISION" at its end where that is not
            main.

    Raises:
        ValueError: the setting is an address that a host without a key cannot clone.
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
        # `git clone` takes both, a page's address has neither
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
    """What other lessons say of one: file, number, title, minutes, and what it shows."""

    name: str
    number: str
    title: str
    minutes: str
    seen: str

    @property
    def link(self) -> str:
        """A link to it, by its number and title."""
        return f"[{self.number} · {self.title}]({self.name}.ipynb)"


def heads() -> list[Head]:
    """Return all lessons in their order, read from the first lines of each source.

    A field that a source leaves out is "".
    """
    patterns = (
        r"^# # (?:\w+ · )?([^:\n]+)",
        r"About (\d+) minutes",
        r'^# %% \[markdown\] on_the_map="(.*)"$',
    )
    found = []
    for lesson in sources():
        text = lesson.text.read_text(encoding="utf-8")
        said = [re.search(pattern, text, re.MULTILINE) for pattern in patterns]
        found.append(
            Head(
                lesson.name,
                lesson.name.split("_")[0],
                *[match[1] if match else "" for match in said],
            )
        )
    return found


def mapped(text: str) -> str:
    """Return a cell's text with a row for each lesson in its map.

    A row that the text has already stays until its lesson exists.
    """
    above, head, below = text.partition(MAP)
    if not head:
        return text
    rows = {row[1]: row[0] for row in MAP_ROW.finditer(below)}
    for name, number, title, minutes, seen in heads():
        if seen:
            rows[number] = f"| **{number}** | [{title}]({name}.ipynb) | {minutes} | {seen} |\n"
    table = "".join(rows[number] for number in sorted(rows))
    return above + head + table + MAP_ROW.sub("", below)


def neighbours(name: str) -> str:
    """Return the line that leads from a lesson to its neighbours and to the map.

    Returns:
        The line; "" if the lesson is the only one.
    """
    every = heads()
    at = [lesson.name for lesson in every].index(name)
    before = [f"← {lesson.link}" for lesson in every[max(at - 1, 0) : at]]
    after = [f"{lesson.link} →" for lesson in every[at + 1 : at + 2]]
    to_map = [f"[all lessons]({every[0].name}.ipynb)"] if at > 1 else []
    return " &emsp; ".join([*before, *to_map, *after])


def terms() -> dict[str, dict[str, Any]]:
    """Return the words of the field: name -> what glossary.toml says of it."""
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
    """Return the target of a link to a word: the word's cell.

    JupyterLab and an HTML export find the cell by its id.

    (By its heading JupyterLab finds it only once the cell is drawn, so not in a notebook that the
    link opens.)

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

    Linked words are removed from `names`.

    Formulas, headings and what is a link already stay as they are; so does code, unless all of it
    is a word.

    Args:
        text: Markdown of the cell.
        names: spelling -> the word of the glossary that it stands for.

    >>> linked("One ulp, two ulps; `ulp`", {"ulp": "ulp"})
    'One [ulp](glossary.ipynb#cell-id=ulp), two ulps; `ulp`'
    """
    spellings = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    pattern = rf"{UNTOUCHED}|(?<![\w.])(?P<word>{spellings})s?(?![\w(])"
    word = re.compile(pattern, re.MULTILINE | re.DOTALL | re.IGNORECASE)

    def link(found: re.Match[str]) -> str:
        spelling = _spelling(found["word"] or found[0], names)  # `growth_factor` is a word, too
        if spelling is None:
            return found[0]
        name = names[spelling]
        for known in [known for known, its in names.items() if its == name]:
            del names[known]
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
    """Return the text of each learner's notebook, the glossary among them, by where it belongs."""
    return {NOTEBOOKS / GLOSSARY: text_of(glossary())} | {
        target_of(s): text_of(learners(s)) for s in sources()
    }


def stale() -> list[Path]:
    """Return the notebooks that are missing, lack a source, or differ from what theirs gives."""
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
    changed = stale()
    if check:
        for path in changed:
            print(
                f"{path.name} differs from its source; `make notebooks` writes it anew",
                file=sys.stderr,
            )
        return 1 if changed else 0
    texts = wanted()
    for path in changed:
        if path in texts:
            path.write_text(texts[path], encoding="utf-8", newline="\n")
            print(f"wrote {path.name}")
        else:
            print(
                f"{path.name} has no source in {SOURCES}: delete it, or write one", file=sys.stderr
            )
    return 1 if set(changed) - texts.keys() else 0


def _notebook(lesson: Lesson, edit: Callable[[str], str] | None) -> Notebook:
    """Return a lesson as a notebook, each code cell edited, and its text with links."""
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
    """Return the spelling that was found: a name with a capital letter stands only for itself."""
    for spelling in (found, found.lower(), found[:1].lower() + found[1:]):
        if spelling in names:
            return spelling
    return None


if __name__ == "__main__":
    sys.exit(main())
