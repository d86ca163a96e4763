"""README and docs: their Python runs, their links lead somewhere, and their tables are right."""

import ast
import inspect
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from docs import errors
from docs import widgets as catalogue
from labkit import cli, widgets
from labkit.amp import PRESETS, RECIPES
from labkit.cli import parser_of
from labkit.course import lessons
from labkit.faults import Card, cards
from labkit.instrument.report import Report
from labkit.widgets.base.widget import LabWidget

ROOT = Path(__file__).parents[1]
GUIDES = ("docs/learners.md", "docs/teachers.md", "docs/practitioners.md", "docs/reading-path.md")
OTHERS = (
    "README.md CONTRIBUTING.md data/README.md docs/errors.md docs/widgets.md "
    "docs/frameworks.md docs/testing.md"
)
PAGES = [ROOT / name for name in (*OTHERS.split(), *GUIDES)]
README, LEARNERS, _, PRACTITIONERS, READING_PATH = (
    (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", *GUIDES)
)


def test_guide_names_each_export_of_a_report() -> None:
    exports = [name for name in vars(Report) if name.startswith("to_")]
    assert len(exports) >= 2
    assert [name for name in exports if f".{name}(" not in PRACTITIONERS] == []


CATALOGUE = catalogue.read_widgets()


def test_catalogue_of_widgets_is_up_to_date() -> None:
    page = catalogue.page(CATALOGUE)
    assert catalogue.PAGE.read_text(encoding="utf-8") == page, "`make docs` writes the page"


def test_catalogue_has_every_widget() -> None:
    classes = [getattr(widgets, name) for name in widgets.__all__]
    widget_classes = {
        each.__name__ for each in classes if inspect.isclass(each) and issubclass(each, LabWidget)
    }
    opened_by_functions = {"Predict", "Pulse", "Quiz"}
    assert widget_classes - {row.name for row in CATALOGUE} == opened_by_functions


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)
def test_code_of_the_catalogue_is_python(row: catalogue.Widget) -> None:
    ast.parse(catalogue.whole_code(row))


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)
def test_picture_exists_where_the_catalogue_shows_one(row: catalogue.Widget) -> None:
    picture = catalogue.PICTURES / f"{row.name}.png"
    assert picture.is_file() is row.still, "`make pictures` takes the pictures"


def test_lessons_of_the_catalogue_exist() -> None:
    assert {row.lesson for row in CATALOGUE} <= {lesson.name for lesson in lessons()}


def test_the_page_of_errors_is_up_to_date() -> None:
    assert errors.PAGE.read_text(encoding="utf-8") == errors.page(), "`make docs` writes the page"


def test_error_message_leads_to_its_repair() -> None:
    """Messages of torch name the type c10::Half or, in older versions, at::Half."""
    text = errors.page()
    section = text.split('<a id="mask_constant"></a>')[1].split("<a id=")[0]
    for name in ("c10::Half", "at::Half"):
        message = f"value cannot be converted to type {name} without overflow"
        assert f"- [`{message}`](#mask_constant)" in text
        assert message in section
    assert cards()["mask_constant"].repair in section
    assert "[NVIDIA/apex#1052](https://github.com/NVIDIA/apex/issues/1052)" in section


@pytest.mark.parametrize("card", cards().values(), ids=lambda card: card.id)
def test_each_message_of_a_fault_leads_to_its_section(card: Card) -> None:
    text = errors.page()
    assert text.count(f"`labkit explain {card.id}`") == 1
    assert text.count(f"(#{card.id})") == len(card.errors)


def test_script_of_the_readme_has_the_printed_diagnosis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are not compared, since they differ between processors."""
    (script,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (printed,) = re.findall(r"```text\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "train.py").write_text(script, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["diagnose", "train.py"]) == 1
    diagnosis = capsys.readouterr().out
    clip = 1 + script[: script.index("nn.utils.clip_grad_norm_")].count("\n")
    assert f"clipped while scaled: train.py:{clip}:" in diagnosis
    places = re.findall(r"train\.py:\d+", printed)
    assert places
    assert re.findall(r"train\.py:\d+", diagnosis) == places
    number = re.compile(r"\d[\d.e+]*")
    lines = number.sub("#", diagnosis).splitlines()
    assert [line for line in number.sub("#", printed).splitlines() if line not in lines] == []


def test_the_readme_has_at_most_140_lines() -> None:
    assert README.count("\n") <= 140


@pytest.mark.parametrize("guide", GUIDES)
def test_the_readme_links_each_guide(guide: str) -> None:
    assert f"]({guide})" in README


FACTS = dict(re.findall(r"^\| (\w+) \| (.*) \|$", README, flags=re.MULTILINE))
# The minutes of a lesson, in its first cell; lesson 00 has them in the row of its own map.
MINUTES = re.compile(r"^# About (\d+) minutes|^# \| \*\*00\*\* \| [^|]* \| (\d+) \|", re.MULTILINE)


def test_the_readme_adds_up_the_time_of_the_lessons() -> None:
    count, hours, minutes = map(int, re.findall(r"\d+", FACTS["Course"]))
    total = 0
    for lesson in lessons():
        ((elsewhere, in_the_map),) = MINUTES.findall(lesson.text.read_text(encoding="utf-8"))
        total += int(elsewhere or in_the_map)
    assert len(lessons()) == count
    assert total == 60 * hours + minutes


@pytest.mark.parametrize("page", ["README", "practitioners"])
def test_a_page_states_the_versions_of_torch(page: str) -> None:
    rows = {
        "README": FACTS["torch"],
        "practitioners": re.findall(r"^\| torch \| (.*) \|$", PRACTITIONERS, re.MULTILINE)[0],
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirement = re.fullmatch(r"torch>=([\d.]+),<(\d+)", project["dependencies"][0])
    assert requirement is not None
    oldest, below = requirement.groups()
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (pinned,) = re.findall(r"^torch==(.*)$", constraints, re.MULTILINE)
    assert f"{oldest} or newer, below {below}" in rows[page]
    assert pinned in rows[page]


def test_the_code_for_a_model_of_your_own_runs(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    loop, look, train = re.findall(r"```python\n(.*?)```", PRACTITIONERS, flags=re.DOTALL)
    exec(compile(train, "practitioners.md", "exec"), {})
    assert "StepReport(stepped=True, found_inf=False" in capsys.readouterr().out
    exec(compile(look, "practitioners.md", "exec"), {})
    assert capsys.readouterr().out.count("Fate(underflowed=") == 2
    exec(compile(loop, "practitioners.md", "exec"), {})
    assert "Sequential: 4 steps, 1 sampled, 0 skipped" in capsys.readouterr().out


def test_imports_of_the_practitioners_guide_work() -> None:
    lines = re.findall(r"`((?:from|import) labkit\.frameworks.*?)`", PRACTITIONERS)
    assert len(lines) == 6, "torch.amp, torch.cuda.amp, apex, fastai, and two of OneFlow's"
    for line in lines:
        exec(line, {})


def test_recipe_of_the_practitioners_guide_is_python() -> None:
    (code,) = re.findall(r"`(replace\(RECIPES.*?\))`", PRACTITIONERS)
    recipe = eval(code, {"replace": replace, "RECIPES": RECIPES, "PRESETS": PRESETS})
    assert recipe.scaler.init_scale == 2.0**32


@pytest.mark.parametrize("name", PRESETS)
def test_the_practitioners_guide_names_each_preset(name: str) -> None:
    assert name in PRACTITIONERS


def test_command_of_the_practitioners_guide_is_understood() -> None:
    (command,) = re.findall(r"^    labkit compare (.*)$", PRACTITIONERS, flags=re.MULTILINE)
    assert len(parser_of("compare").parse_args(shlex.split(command)).seeds) == 3


def test_table_of_lessons_is_that_of_lesson_00() -> None:
    rows = dict(re.findall(r"^\| (\d\w+) [^|]*\| (\d+) \|", LEARNERS, flags=re.MULTILINE))
    texts = {
        lesson.name: lesson.text.read_text(encoding="utf-8")
        for lesson in lessons()
        if lesson.name != "00_start"
    }
    about = re.compile(r"^# About (\d+) minutes", flags=re.MULTILINE)
    assert {lesson: [minutes] for lesson, minutes in rows.items()} == {
        name.split("_")[0]: about.findall(text) for name, text in texts.items()
    }


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings as GitHub names them, and its own."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    named = {re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings}
    return named | set(re.findall(r'<a id="([^"]+)">', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)\)|src(?:set)?=\"(?!http)([^\"]+)\"", text)
    assert [
        link for pair in links for link in pair if link and not (page.parent / link).exists()
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_headings(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    sections = re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", text)
    assert [
        (to, name) for to, name in sections if name not in anchors(page.parent / to if to else page)
    ] == []


LAYERS = ("formats", "interop", "gemm", "instrument", "amp", "train")


READING_FILES = re.findall(r"^\d+\. `(labkit/[\w/]+\.py)`: .+$", READING_PATH, re.MULTILINE)
READING_TEXTS = {file: (ROOT / file).read_text(encoding="utf-8") for file in READING_FILES}


def test_reading_path_has_12_to_20_files() -> None:
    assert 12 <= len(READING_FILES) <= 20
    assert f"Read these {len(READING_FILES)} files" in READING_PATH


def test_reading_path_names_no_file_twice() -> None:
    assert len(set(READING_FILES)) == len(READING_FILES)


def test_each_file_of_the_reading_path_has_a_header() -> None:
    trees = {file: ast.parse(text) for file, text in READING_TEXTS.items()}
    assert [file for file, tree in trees.items() if not ast.get_docstring(tree)] == []


def test_reading_path_follows_the_course() -> None:
    order = [LAYERS.index(Path(file).parts[1].removesuffix(".py")) for file in READING_FILES]
    assert order == sorted(order)


def test_reading_path_states_the_lines_of_its_files() -> None:
    (stated,) = re.findall(r"They have ([\d,]+) lines", READING_PATH)
    lines = sum(len(text.splitlines()) for text in READING_TEXTS.values())
    assert int(stated.replace(",", "")) == pytest.approx(lines, rel=0.03)
