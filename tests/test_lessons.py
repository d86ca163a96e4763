"""The statements of lessons about themselves: minutes and points, the map, and links to the
glossary.
"""

import csv
import doctest
import itertools
import re
from functools import cache
from typing import Any

import numpy as np

from labkit.amp import NO_SCALING, PRESETS, Recipe, ScalerConfig
from labkit.course import Cell, cells_of, slug
from labkit.grading import EXERCISES
from labkit.train import recorded
from labkit.widgets import ScalerPresets, predictions, recorded_gemm, recorded_trace
from notebooks import build

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


def test_head_counts_exercises_points_and_minutes() -> None:
    for lesson in LESSONS:
        exercises = [exercise for exercise in EXERCISES.values() if exercise.lesson == lesson]
        points = sum(check.points for exercise in exercises for check in exercise.checks)
        head = " ".join(SOURCES[lesson].split("# %% [markdown]")[1].replace("\n# ", " ").split())
        counted = re.findall(r"(\w+) (?:exercises?|projects), (\d+) points", head)
        assert counted == [(NUMBERS[len(exercises)].capitalize(), str(points))], lesson
        (minutes,) = re.findall(r"About (\d+) minutes", head)
        assert int(minutes) > sum(exercise.minutes for exercise in exercises), lesson
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
    for number, title, minutes, seen in rows[1:]:
        if number not in written:
            assert seen.startswith("*to come*")
            continue
        said = re.search(r"About (\d+) minutes", SOURCES[written[number]])
        assert said is not None
        assert minutes == said[1]
        assert title.split("(")[1] == f"{written[number]}.ipynb)"
        assert seen, "the first line of the lesson's source says it"


# --- answers of predictions ---


def asked(cell: Cell) -> str:
    """Return the id of the prediction that a cell asks for; "" for none."""
    found = re.search(r'^predict\("([\w.]+)"', cell.source, re.MULTILINE)
    return found[1] if found and cell.cell_type == "code" else ""


def test_what_answers_a_prediction_comes_after_it() -> None:
    for lesson, source in SOURCES.items():
        before: set[str] = set()
        for cell in cells_of(source):
            assert set(cell.answers) <= before, (lesson, cell.source[:60])
            before.add(asked(cell))


def test_an_answer_holds_no_heading_exercise_or_widget() -> None:
    open_text = re.compile(r"^#+ |^\*How exercises work|^\*No idea how to begin", re.MULTILINE)
    for lesson, source in SOURCES.items():
        for cell in filter(lambda each: each.answers, cells_of(source)):
            if cell.cell_type == "markdown":
                assert not open_text.search(cell.source), (lesson, cell.source[:60])
            assert not any(tag.startswith("exercise-") for tag in cell.tags), lesson


def test_texts_that_answer_are_closed_until_they_are_opened() -> None:
    for source in build.sources():
        answering = [cell for cell in cells_of(SOURCES[source.name]) if cell.answers]
        texts = [cell for cell in answering if cell.cell_type == "markdown"]
        written = [
            "".join(cell["source"])
            for cell in build.learners(source)["cells"]
            if cell["cell_type"] == "markdown"
            and '<details class="labkit-answer' in "".join(cell["source"])
        ]
        assert len(written) == len(texts), source.name
        for cell, text in zip(texts, written, strict=True):
            assert text.startswith('<details class="labkit-answer labkit-answer-'), text[:80]
            assert text.endswith("\n\n</details>")
            assert all(f"labkit-answer-{slug(id)}" in text for id in cell.answers)


def test_questions_of_a_choice_have_an_answer_that_waits() -> None:
    """But those that a widget, a project or the clinic answers, and the warm-up of a lesson's next
    question.
    """
    by_touch = {"recipes.fork", "autocast.stage", "rounding.thousandth"}
    answered = {
        id for source in SOURCES.values() for cell in cells_of(source) for id in cell.answers
    }
    for id, prediction in predictions().items():
        if prediction.ruler or id in by_touch or id.split(".")[0] in ("clinic", "project"):
            continue
        assert id in answered, id


# --- the glossary ---

GLOSSARY = build.glossary()
TERMS = build.terms()
ANCHORS = re.findall(r"^### (.*)$", markdown(GLOSSARY), flags=re.MULTILINE)


def test_worked_example_the_first_appearance_becomes_a_link() -> None:
    names, page = (
        {"ulp": "ulp", "loss scale": "loss scale", "FP16": "FP16"},
        "glossary.ipynb#cell-id=",
    )
    text = (
        "# ulp\n\n`ulp` and $ulp$: an ulp, two ulps. A **Loss scale** in FP16, fp16.\n\n"
        "```\nulp\n```"
    )
    assert build.linked(text, names) == (
        f"# ulp\n\n`ulp` and $ulp$: an [ulp]({page}ulp), two ulps. "
        f"A **[Loss scale]({page}loss-scale)** in [FP16]({page}FP16), fp16.\n\n```\nulp\n```"
    )
    assert names == {}, "each word is linked once in a lesson"
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
            before, link, _ = text.partition(f"]({build.anchor_of(name)})")
            plain = re.sub(r"\[[^\]]*\]\([^)]*\)", "", before.rpartition("[")[0] if link else text)
            for spelling in row.get("spellings", [name]):
                found = re.search(rf"(?<![\w.]){re.escape(spelling)}(?![\w(])", plain)
                assert not found, f"{lesson}: {spelling!r} is not linked"


def test_word_is_linked_where_it_is_explained() -> None:
    assert [
        cell["id"] for cell in GLOSSARY["cells"] if not re.fullmatch(r"[\w-]{1,64}", cell["id"])
    ] == []
    assert sorted(ANCHORS, key=str.lower) == ANCHORS
    assert {cell["cell_type"] for cell in GLOSSARY["cells"]} == {"markdown"}
    lessons = {name.split("_")[0]: text for name, text in texts().items()}
    links = {name: f"]({build.anchor_of(name)})" for name in TERMS}
    assert [name for name, row in TERMS.items() if links[name] not in lessons[row["lesson"]]] == []
    spellings = [
        spelling for name, row in TERMS.items() for spelling in row.get("spellings", [name])
    ]
    assert len(set(spellings)) == len(spellings)
    known = {"means", "example", "lesson", "spellings"}
    assert [
        name for name, row in TERMS.items() if not {"means", "lesson"} <= row.keys() <= known
    ] == []


# --- what lessons say of records, counted again ---


def test_lesson_06_counts_the_steps_that_no_scale_could_help() -> None:
    """torch as shipped stays at 2^16 for all 2,000 steps; numpy counts them, without the lab's
    replay.
    """
    trace = recorded_trace()
    lower = np.exp2(trace.keeps_from)
    upper = 65520 / np.array(trace.largest)
    none = np.flatnonzero(lower >= upper)
    assert upper.min() > 2.0**16, (
        "torch never overflows here, so its scale never moves before step 2,000"
    )
    lossy = set(np.flatnonzero(lower > 2.0**16))
    counts = [len(lossy), len(lossy & set(none)), len(lossy - set(none)), none[0] + 1]
    assert counts == [1651, 1148, 503, 780]
    assert set(range(970, 2000)) < set(none), "after step 970 (counted from 1) there is no window"
    said = SOURCES["06_loss_scaling"]
    assert all(f"{count:,}" in said for count in counts)
    assert {f"{recorded('segmentation', 'FP16', seed).metric:.3f}" for seed in range(3)} == {
        "0.000"
    }
    assert "Dice is 0.000, where FP32 reaches 0.67" in said.replace("\n# ", " ")
    presets = ScalerPresets(presets={"50": ScalerConfig(growth_interval=50)})
    presets.alike = False
    fifty = presets.replays["50"]
    helpable = (fifty.lossy == 1) & (lower < upper)
    assert int(helpable.sum()) == 41
    assert fifty.skips == 27
    assert "only 41 of them remain, at the price of 27 skipped steps" in " ".join(
        said.replace("\n# ", " ").split()
    )


def test_lesson_09_names_the_scalers_with_a_cap() -> None:
    """The preset is fastai 1; section 1 of lesson 09 trains with fastai 2, whose scaler
    is torch's.
    """
    assert [PRESETS[name].cap for name in ("apex", "fastai")] == [2.0**24, 2.0**24]
    assert PRESETS["torch"].cap > 2.0**25
    assert "apex and fastai 1 stop at 2^24, and torch goes on to 2^25" in SOURCES["09_frameworks"]
    (record,) = recorded_gemm("alignment", "cpu")  # at sizes that are no multiple of 8
    speed = {
        (run.case.format.name, run.case.m, run.case.n, run.case.k): run.tflops
        for run in record.runs
    }
    worst = min(taken / speed[name, 512, 512, 512] for (name, *_), taken in speed.items())
    assert 0.70 < worst < 0.80
    assert "loses a quarter at most" in SOURCES["03_tensor_cores"]


def test_bf16_loses_half_of_2048_micro_batches() -> None:
    """Section 7 of lesson 07: sums of micro-batches by its own cell, as its table and its
    prediction state them.
    """
    cells = {
        cell["id"]: "".join(cell["source"])
        for cell in build.learners(build.lesson("07_master_weights"))["cells"]
    }
    names: dict[str, Any] = {}
    exec("import torch\n" + cells["touch-micro"], names)
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


def test_start_does_not_answer_later_predictions() -> None:
    """How many bits the exponent has, and that there are numbers below the smallest normal one."""
    text = " ".join(texts()["00_start"].split())
    # JupyterLab's words, which people search for
    assert "`Error displaying widget: model not found`" in text
    assert "*Run > Run All Cells* makes the widget anew" in text
    assert "Run **one cell at a time**. Answer each question before you run the next cell" in text
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


def test_lesson_12_says_what_a_part_is_that_is_left_out() -> None:
    rows = re.findall(r"^# \| `(\w+)` \| .* \| (.*) \|$", SOURCES["12_project"], re.MULTILINE)
    says = {name: default.strip("*`") for name, default in rows}
    fp32 = Recipe("mine")
    names = {"scaler": "no scaling", "gradient_format": "that of `autocast"}
    for name, default in says.items():
        value = getattr(fp32, name)
        assert default == names.get(name, getattr(value, "name", str(value))), name
    assert len(says) == 8
    assert fp32.scaler == NO_SCALING
    assert fp32.gradient_format is None


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
        assert bool(row["evidence"]) == bool(row["lesson"]) == settled >= bool(row["again"]), row[
            "id"
        ]
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
    assert not {
        at: said
        for at, said in verdicts.items()
        if not re.match(rf"{claims[at[0]]['verdict']}\b", said)
    }
    again = {(id, row["again"]) for id, row in claims.items() if row["again"]}
    assert {at for at, said in verdicts.items() if f"again in {at[1][:2]}" in said} == again
    assert again != set()
