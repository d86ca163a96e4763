"""What lessons say about themselves and about records.

Minutes and points, the map, answers of predictions, links to the glossary, numbers that are counted
again from records, and the verdicts on claims.
"""

import csv
import doctest
import itertools
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from labkit.amp import NO_SCALING, PRESETS, Recipe, ScalerConfig
from labkit.course import Cell, cells_of, slug
from labkit.grading import EXERCISES
from labkit.grading.exercise import Exercise
from labkit.train import recorded
from labkit.widgets import ScalerPresets, predictions, recorded_gemm, recorded_trace
from notebooks import build
from tests import lesson_cells

SOURCES = {source.name: source.text.read_text(encoding="utf-8") for source in build.sources()}
LESSONS = sorted({exercise.lesson for exercise in EXERCISES.values()} - {"00_start"})
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def markdown(notebook: build.Notebook) -> str:
    return "\n\n".join(
        "".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"
    )


@cache
def texts() -> dict[str, str]:
    return {source.name: markdown(build.learners(source)) for source in build.sources()}


# --- heads and map ---


def exercises_of(lesson: str) -> list[Exercise]:
    return [exercise for exercise in EXERCISES.values() if exercise.lesson == lesson]


def head_of(lesson: str) -> str:
    """Return the text of a lesson's first cell, in one line."""
    first_cell = SOURCES[lesson].split("# %% [markdown]")[1]
    return " ".join(first_cell.replace("\n# ", " ").split())


@pytest.mark.parametrize("lesson", LESSONS)
def test_head_counts_exercises_with_their_points(lesson: str) -> None:
    exercises = exercises_of(lesson)
    points = sum(check.points for exercise in exercises for check in exercise.checks)
    stated = re.findall(r"(\w+) (?:exercises?|projects), (\d+) points", head_of(lesson))
    assert stated == [(NUMBERS[len(exercises)].capitalize(), str(points))]


@pytest.mark.parametrize("lesson", LESSONS)
def test_minutes_of_a_lesson_exceed_those_of_its_exercises(lesson: str) -> None:
    (minutes,) = re.findall(r"About (\d+) minutes", head_of(lesson))
    assert int(minutes) > sum(exercise.minutes for exercise in exercises_of(lesson))


def test_last_line_of_a_lesson_links_its_neighbours() -> None:
    for before, after in itertools.pairwise(sorted(SOURCES)):
        assert re.search(rf"\({after}\.ipynb\) →$", texts()[before]), before
        last_line = texts()[after].splitlines()[-1]
        assert re.search(rf"^← \[.*?\]\({before}\.ipynb\)", last_line), after


def test_map_has_a_row_for_each_lesson() -> None:
    rows = re.findall(
        r"^\| \**(\w+)\** \| (.*?) \| (\d*) *\| (.*) \|$", texts()["00_start"], re.MULTILINE
    )
    assert [number for number, *_ in rows] == sorted({number for number, *_ in rows})
    written = {lesson.split("_")[0]: lesson for lesson in SOURCES}
    assert written.keys() <= {number for number, *_ in rows}
    for number, title, minutes, description in rows[1:]:
        if number not in written:
            assert description.startswith("*to come*")
            continue
        (stated,) = re.findall(r"About (\d+) minutes", head_of(written[number]))
        assert minutes == stated
        assert title.split("(")[1] == f"{written[number]}.ipynb)"
        assert description, "on_the_map is missing in the first line of the lesson's source"


# --- answers of predictions ---


def predictions_in(cell: Cell) -> list[str]:
    """Return the ids of the predictions that a cell asks for."""
    if cell.cell_type != "code":
        return []
    return re.findall(r'^predict\("([\w.]+)"', cell.source, re.MULTILINE)


def test_what_answers_a_prediction_comes_after_it() -> None:
    for lesson, source in SOURCES.items():
        before: set[str] = set()
        for cell in cells_of(source):
            assert set(cell.answers) <= before, (lesson, cell.source[:60])
            before.update(predictions_in(cell))


def test_an_answer_holds_no_heading_exercise_or_widget() -> None:
    open_text = re.compile(r"^#+ |^\*How exercises work|^\*No idea how to begin", re.MULTILINE)
    for lesson, source in SOURCES.items():
        for cell in cells_of(source):
            if not cell.answers:
                continue
            if cell.cell_type == "markdown":
                assert not open_text.search(cell.source), (lesson, cell.source[:60])
            assert not any(tag.startswith("exercise-") for tag in cell.tags), lesson


def test_texts_that_answer_are_folded() -> None:
    """A browser shows a <details> element closed until the reader opens it."""
    for source in build.sources():
        answers = [
            cell
            for cell in cells_of(SOURCES[source.name])
            if cell.answers and cell.cell_type == "markdown"
        ]
        cells = ["".join(cell["source"]) for cell in build.learners(source)["cells"]]
        folded = [text for text in cells if '<details class="labkit-answer' in text]
        assert len(folded) == len(answers), source.name
        for cell, text in zip(answers, folded, strict=True):
            assert text.startswith('<details class="labkit-answer labkit-answer-'), text[:80]
            assert text.endswith("\n\n</details>")
            assert all(f"labkit-answer-{slug(id)}" in text for id in cell.answers)


# Questions that no cell answers: a widget does, or the lesson's next question.
WITHOUT_CELL = {"recipes.fork", "autocast.stage", "rounding.thousandth"}
# Lessons whose predictions are answered by the learner's own trainings.
BY_TRAINING = ("clinic", "project")


def test_questions_of_a_choice_are_answered_by_a_cell() -> None:
    answered = {
        id for source in SOURCES.values() for cell in cells_of(source) for id in cell.answers
    }
    choices = {id for id, prediction in predictions().items() if not prediction.ruler}
    expected = {id for id in choices - WITHOUT_CELL if id.split(".")[0] not in BY_TRAINING}
    assert expected - answered == set()


# --- the glossary ---

GLOSSARY = build.glossary()
TERMS = build.terms()
ANCHORS = re.findall(r"^### (.*)$", markdown(GLOSSARY), flags=re.MULTILINE)


def test_the_first_appearance_of_a_word_becomes_a_link() -> None:
    names = {"ulp": "ulp", "loss scale": "loss scale", "FP16": "FP16"}
    page = "glossary.ipynb#cell-id="
    text = (
        "# ulp\n\n`ulp` and $ulp$: an ulp, two ulps. A **Loss scale** in FP16, fp16.\n\n"
        "```\nulp\n```"
    )
    assert build.linked(text, names) == (
        f"# ulp\n\n`ulp` and $ulp$: an [ulp]({page}ulp), two ulps. "
        f"A **[Loss scale]({page}loss-scale)** in [FP16]({page}FP16), fp16.\n\n```\nulp\n```"
    )
    assert names == {}, "each word is linked once in a lesson"


def test_examples_of_the_generator_are_right() -> None:
    assert doctest.testmod(build).failed == 0


def test_each_link_leads_to_a_word_or_to_a_notebook() -> None:
    for lesson, text in texts().items():
        links = re.findall(r"\]\(([^)\s]+?\.ipynb)(?:#([^)]*))?\)", text)
        assert {page for page, _ in links} <= {f"{name}.ipynb" for name in (*texts(), "glossary")}
        words = [
            anchor.removeprefix("cell-id=")
            for page, anchor in links
            if page == "glossary.ipynb" and anchor
        ]
        assert set(words) <= {cell["id"] for cell in GLOSSARY["cells"]}
        assert len(set(words)) == len(words), (
            "a word is linked where it first appears, and only there"
        )
        assert lesson == "00_start" or len(words) > 10


def test_the_first_use_of_a_word_is_its_link() -> None:
    """Read as a learner does, without code, formulas and headings."""
    not_words = r"<[^>]*>|```.*?```|\$\$.*?\$\$|\$[^$\n]*\$|`[^`]*`|^#.*?$"
    for lesson, whole in texts().items():
        text = re.sub(not_words, "", whole, flags=re.DOTALL | re.MULTILINE)
        for name, row in TERMS.items():
            before_link, link, _ = text.partition(f"]({build.anchor_of(name)})")
            before = text
            if link:
                # Without the linked word itself.
                before = before_link.rpartition("[")[0]
            plain = re.sub(r"\[[^\]]*\]\([^)]*\)", "", before)
            for spelling in row.get("spellings", [name]):
                found = re.search(rf"(?<![\w.]){re.escape(spelling)}(?![\w(])", plain)
                assert not found, f"{lesson}: {spelling!r} is not linked"


def test_ids_of_the_glossary_s_cells_are_those_of_nbformat() -> None:
    ids = [cell["id"] for cell in GLOSSARY["cells"]]
    assert [id for id in ids if not re.fullmatch(r"[\w-]{1,64}", id)] == []


def test_words_of_the_glossary_are_sorted() -> None:
    assert sorted(ANCHORS, key=str.lower) == ANCHORS


def test_the_glossary_has_text_only() -> None:
    assert {cell["cell_type"] for cell in GLOSSARY["cells"]} == {"markdown"}


def test_word_is_linked_where_it_is_explained() -> None:
    lessons = {name.split("_")[0]: text for name, text in texts().items()}
    for name, row in TERMS.items():
        assert f"]({build.anchor_of(name)})" in lessons[row["lesson"]], name


def test_no_spelling_belongs_to_two_words() -> None:
    spellings = [
        spelling for name, row in TERMS.items() for spelling in row.get("spellings", [name])
    ]
    assert len(set(spellings)) == len(spellings)


@pytest.mark.parametrize("name", TERMS)
def test_row_of_the_glossary_has_known_fields_only(name: str) -> None:
    fields = TERMS[name].keys()
    assert {"means", "lesson"} <= fields
    assert fields <= {"means", "example", "lesson", "spellings"}


# --- statements about records, computed again ---


def prose_of(lesson: str) -> str:
    """Return the source of a lesson as running text."""
    return " ".join(SOURCES[lesson].replace("\n# ", " ").split())


def windows_of_the_trace() -> tuple[np.ndarray, np.ndarray]:
    """Return, for each step of the recorded trace, the ends of the window of scales.

    They are the smallest scale at which no gradient is lost, and the first at which one overflows,
    computed without the lab's replay. FP16 rounds 65520 and more to infinity.
    """
    trace = recorded_trace()
    return np.exp2(trace.keeps_from), 65520 / np.array(trace.largest)


def test_lesson_06_counts_the_steps_that_no_scale_could_help() -> None:
    lower, upper = windows_of_the_trace()
    # torch starts at 2^16 and grows after 2,000 steps, so its scale is 2^16 in the whole trace.
    assert upper.min() > 2.0**16
    lossy = lower > 2.0**16
    hopeless = lower >= upper
    counts = {
        "lossy": int(lossy.sum()),
        "lossy at any scale": int((lossy & hopeless).sum()),
        "lossy at 2^16 only": int((lossy & ~hopeless).sum()),
        "first step without a window, from 1": int(hopeless.argmax()) + 1,
    }
    assert list(counts.values()) == [1651, 1148, 503, 780]
    assert hopeless[970:2000].all()
    text = SOURCES["06_loss_scaling"]
    assert [name for name, count in counts.items() if f"{count:,}" not in text] == []


@pytest.mark.parametrize("seed", range(3))
def test_lesson_06_states_the_dice_of_fp16(seed: int) -> None:
    assert f"{recorded('segmentation', 'FP16', seed).metric:.3f}" == "0.000"
    assert "Dice is 0.000, where FP32 reaches 0.67" in prose_of("06_loss_scaling")


def test_lesson_06_counts_the_losses_at_an_interval_of_50() -> None:
    lower, upper = windows_of_the_trace()
    presets = ScalerPresets(presets={"50": ScalerConfig(growth_interval=50)})
    presets.alike = False
    replay = presets.replays["50"]
    avoidable = (replay.lossy == 1) & (lower < upper)
    assert int(avoidable.sum()) == 41
    assert replay.skips == 27
    stated = "only 41 of them remain, at the price of 27 skipped steps"
    assert stated in prose_of("06_loss_scaling")


def test_lesson_09_names_the_scalers_with_a_cap() -> None:
    """The preset is fastai 1.

    Section 1 of lesson 09 trains with fastai 2, whose scaler is torch's.
    """
    assert [PRESETS[name].cap for name in ("apex", "fastai")] == [2.0**24, 2.0**24]
    assert PRESETS["torch"].cap > 2.0**25
    assert "apex and fastai 1 stop at 2^24, and torch goes on to 2^25" in SOURCES["09_frameworks"]


def test_lesson_03_states_the_loss_at_unaligned_sizes() -> None:
    (record,) = recorded_gemm("alignment", "cpu")
    speed = {
        (run.case.format.name, run.case.m, run.case.n, run.case.k): run.tflops
        for run in record.runs
    }
    # 512 is a multiple of 8; the other sizes of the record are near it.
    worst = min(tflops / speed[name, 512, 512, 512] for (name, *_), tflops in speed.items())
    assert worst == pytest.approx(0.75, abs=0.05)
    assert "loses a quarter at most" in SOURCES["03_tensor_cores"]


def test_bf16_loses_half_of_2048_micro_batches() -> None:
    """Section 7 of lesson 07: sums of micro-batches by its own cell.

    Its table and its prediction state them.
    """
    names: dict[str, Any] = {}
    exec("import torch\n" + lesson_cells.cells_of("07_master_weights")["touch-micro"], names)
    parts = names["micro_batches"]
    exact = {count: sum(part.double() for part in parts[:count]) for count in (8, 512, 2048)}

    def error(name: str, count: int) -> float:
        add, dtype = names["WAYS"][name]
        return float((add(parts[:count], dtype) - exact[count]).norm() / exact[count].norm())

    assert {name: round(error(name, 2048), 3) for name in names["WAYS"]} == {
        "BF16": 0.468,
        "FP16": 0.006,
        "FP32": 0.0,
        "BF16 in pairs": 0.003,
    }
    assert [round(error("BF16", count), 3) for count in (8, 512)] == [0.003, 0.040]
    assert predictions()["master.micro"].answer == "almost half of it is lost"


# --- predictions stay predictions ---


def test_start_explains_a_widget_that_is_not_shown() -> None:
    text = " ".join(texts()["00_start"].split())
    # The words of JupyterLab, which people search for.
    assert "`Error displaying widget: model not found`" in text
    assert "*Run > Run All Cells* creates the widget again" in text


def test_start_says_to_answer_before_the_next_cell() -> None:
    text = " ".join(texts()["00_start"].split())
    assert "Run **one cell at a time**. Answer each question before you run the next cell" in text


def test_start_does_not_answer_later_predictions() -> None:
    """How many bits the exponent has, and that there are numbers below the smallest normal one."""
    for words in (
        "5 of its 16",
        "(5, 10)",
        "smallest normal",
        "steps of 2^-24",
        "equal steps",
        "subnormal",
    ):
        assert words not in SOURCES["00_start"]


def test_a_project_is_diagnosed_after_its_prediction() -> None:
    source = SOURCES["12_project"]
    for project in ("targets", "drift", "digits"):
        begin = f'compare_with_fp32("{project}")'
        end = f'id="exercise-project-{project}"'
        part = source[source.index(begin) : source.index(end)]
        assert part.index(f'predict("project.{project}")') < part.index("find_pitfalls(record)")
        assert part.count("find_pitfalls(record)") == 1


def test_lesson_12_states_the_default_of_each_part_of_a_recipe() -> None:
    rows = re.findall(r"^# \| `(\w+)` \| .* \| (.*) \|$", SOURCES["12_project"], re.MULTILINE)
    stated = {name: default.strip("*`") for name, default in rows}
    assert len(stated) == 8
    recipe = Recipe("mine")
    # These two are stated in words.
    assert recipe.scaler == NO_SCALING
    assert stated.pop("scaler") == "no scaling"
    assert recipe.gradient_format is None
    assert stated.pop("gradient_format") == "that of `autocast"
    for name, default in stated.items():
        value = getattr(recipe, name)
        assert default == getattr(value, "name", str(value)), name


def test_powers_of_two_are_typeset_as_in_the_widgets() -> None:
    """2^-24 in code is code; in a sentence it is a formula, in every lesson and in the glossary."""
    for name, text in {**texts(), "glossary": markdown(GLOSSARY)}.items():
        prose = re.sub(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$", "", text, flags=re.DOTALL)
        assert re.findall(r"2\^-?\d+", prose) == [], name


# --- claims of tutorials: the table and the lessons agree on which are settled, and where ---


def settled_claims() -> dict[str, dict[str, str]]:
    """Return the settled rows of the table, each whole, by their ids."""
    with (build.ROOT / "data" / "claims.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"C{n:02}" for n in range(1, len(rows) + 1)]
    assert {row["verdict"] for row in rows} <= {"true", "half true", "false", "open"}
    for row in rows:
        settled = row["verdict"] != "open"
        assert bool(row["evidence"]) == settled, row["id"]
        assert bool(row["lesson"]) == settled, row["id"]
        if row["again"]:
            assert settled, row["id"]
    return {row["id"]: row for row in rows if row["verdict"] != "open"}


def test_claims_are_settled_as_the_table_says() -> None:
    """A second lesson on the same claim says that it is one."""
    claims = settled_claims()
    places = {
        (id, lesson)
        for id, row in claims.items()
        for lesson in (row["lesson"], row["again"])
        if lesson
    }
    tags = re.compile(r"^# %% .*tags=\[(.*?)\]", re.MULTILINE)
    tagged = {
        (id, name)
        for name, text in SOURCES.items()
        for id in re.findall(r'"claim-(\w+)"', str(tags.findall(text)))
    }
    rows = re.compile(r"^# \| (C\d\d) [^|]*\| ([^|]*)\|", re.MULTILINE)
    verdicts = {
        (id, name): verdict for name, text in SOURCES.items() for id, verdict in rows.findall(text)
    }
    assert tagged == places
    assert verdicts.keys() == places
    for (id, lesson), verdict in verdicts.items():
        assert re.match(rf"{claims[id]['verdict']}\b", verdict), (id, lesson)
    again = {(id, row["again"]) for id, row in claims.items() if row["again"]}
    marked = {place for place, verdict in verdicts.items() if f"again in {place[1][:2]}" in verdict}
    assert marked == again
    assert again != set()
