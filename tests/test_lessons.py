"""What lessons say of themselves: minutes and points, the map, and words that lead to the glossary."""

from __future__ import annotations

import doctest
import re

import pytest

from labkit.grading import EXERCISES
from notebooks import build

SOURCES = {source.stem: source.read_text(encoding="utf-8") for source in build.sources()}
LESSONS = sorted({exercise.lesson for exercise in EXERCISES.values()} - {"00_start"})
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven")
TO_COME = {"04", "09", "10", "11"}  # lessons that the course has and the lab not yet


def markdown(notebook: build.Notebook) -> str:
    return "\n\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")


TEXTS = {source.stem: markdown(build.learners(source)) for source in build.sources()}


# --- heads and map ---


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_head_counts_the_exercises_and_their_points(lesson: str) -> None:
    exercises = [exercise for exercise in EXERCISES.values() if exercise.lesson == lesson]
    points = sum(check.points for exercise in exercises for check in exercise.checks)
    head = " ".join(SOURCES[lesson].split("# %% [markdown]")[1].replace("\n# ", " ").split())
    counted = re.findall(r"(\w+) (?:exercises|projects), (\d+) points", head)
    assert counted == [(NUMBERS[len(exercises)].capitalize(), str(points))]
    assert len(re.findall(r"About \d+ minutes", head)) == 1


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_takes_longer_than_its_exercises_alone(lesson: str) -> None:
    (minutes,) = re.findall(r"About (\d+) minutes", SOURCES[lesson])
    assert int(minutes) > sum(exercise.minutes for exercise in EXERCISES.values() if exercise.lesson == lesson)


def test_the_map_has_the_minutes_of_each_lesson_and_says_which_are_to_come() -> None:
    rows = re.findall(r"^# \| \**(\d\d)\** \| (.*?) \| (\d*) *\| (.*) \|$", SOURCES["00_start"], re.MULTILINE)
    minutes = {number: said for number, _, said, _ in rows}
    heads = {lesson[:2]: re.findall(r"About (\d+) minutes", SOURCES[lesson])[0] for lesson in LESSONS}
    assert {number: minutes[number] for number in heads} == heads
    assert list(minutes) == sorted({"00", *heads, *TO_COME})
    waiting = {number for number, _, said, about in rows if about.startswith("*to come*") and not said}
    assert waiting == TO_COME


# --- the glossary ---

GLOSSARY, TERMS = build.glossary(), build.terms()
ANCHORS = re.findall(r"^### (.*)$", markdown(GLOSSARY), flags=re.MULTILINE)


def test_the_examples_of_the_generator() -> None:
    assert doctest.testmod(build).failed == 0


def test_worked_example_the_first_appearance_becomes_a_link() -> None:
    names = {"ulp": "ulp", "loss scale": "loss scale", "FP16": "FP16"}
    text = "# ulp\n\n`ulp` and $ulp$: an ulp, two ulps. A **Loss scale** in FP16, fp16.\n\n```\nulp\n```"
    assert build.linked(text, names) == (
        "# ulp\n\n`ulp` and $ulp$: an [ulp](glossary.ipynb#ulp), two ulps. "
        "A **[Loss scale](glossary.ipynb#loss-scale)** in [FP16](glossary.ipynb#FP16), fp16.\n\n```\nulp\n```"
    )
    assert names == {}, "each word is linked once in a lesson"


@pytest.mark.parametrize("lesson", TEXTS)
def test_each_link_leads_to_a_word_or_to_a_notebook(lesson: str) -> None:
    links = re.findall(r"\]\(([^)\s]+?\.ipynb)(?:#([^)]*))?\)", TEXTS[lesson])
    assert {page for page, _ in links} <= {f"{name}.ipynb" for name in (*TEXTS, "glossary")}
    words = [anchor for page, anchor in links if page == "glossary.ipynb" and anchor]
    assert set(words) <= {name.replace(" ", "-") for name in ANCHORS}
    assert len(set(words)) == len(words), "a word is linked where it first appears, and only there"
    assert lesson == "00_start" or len(words) > 10


@pytest.mark.parametrize("lesson", TEXTS)
def test_no_word_stands_unlinked_before_its_link(lesson: str) -> None:
    """Read as a learner does, without code, formulas and headings."""
    not_words = r"```.*?```|\$\$.*?\$\$|\$[^$\n]*\$|`[^`]*`|^#.*?$"
    text = re.sub(not_words, "", TEXTS[lesson], flags=re.DOTALL | re.MULTILINE)
    for name, row in TERMS.items():
        before, link, _ = text.partition(f"]({build.anchor_of(name)})")
        plain = re.sub(r"\[[^\]]*\]\([^)]*\)", "", before.rpartition("[")[0] if link else text)
        for spelling in row.get("spellings", [name]):
            assert not re.search(rf"(?<![\w.]){re.escape(spelling)}(?![\w(])", plain), f"{spelling!r} is not linked"


def test_a_heading_s_name_in_a_link_needs_no_escape() -> None:
    assert [name for name in ANCHORS if not re.fullmatch(r"[\w -]+", name)] == []
    assert sorted(ANCHORS, key=str.lower) == ANCHORS


def test_a_spelling_means_one_word() -> None:
    spellings = [spelling for name, row in TERMS.items() for spelling in row.get("spellings", [name])]
    assert len(set(spellings)) == len(spellings)
    known = {"means", "example", "lesson", "spellings"}
    assert [name for name, row in TERMS.items() if not {"means", "lesson"} <= row.keys() <= known] == []


def test_the_glossary_on_disk_is_this_one_and_has_no_code() -> None:
    assert {cell["cell_type"] for cell in GLOSSARY["cells"]} == {"markdown"}
    assert (build.NOTEBOOKS / "glossary.ipynb").read_text(encoding="utf-8") == build.text_of(GLOSSARY)


@pytest.mark.parametrize("lesson", [name for name, text in SOURCES.items() if re.search(r"\bapex\b", text)])
def test_where_apex_is_named_its_end_is_too(lesson: str) -> None:
    assert "2025" in SOURCES[lesson]
