"""The README's Python runs as it stands, and its links lead somewhere."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from labkit.amp import PRESETS, RECIPES
from labkit.commands.race import add_arguments
from labkit.course import lessons

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "data/README.md", "docs/errors.md")]


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_code_for_a_model_of_your_own_runs(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    train, look, loop = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(train, "README.md", "exec"), {})
    assert "StepReport(stepped=True, found_inf=False" in capsys.readouterr().out
    exec(compile(look, "README.md", "exec"), {})
    assert capsys.readouterr().out.count("Fate(underflowed=") == 2
    exec(compile(loop, "README.md", "exec"), {})
    assert "Sequential: 4 steps, 1 sampled, 0 skipped" in capsys.readouterr().out


def test_what_else_the_readme_names_is_there() -> None:
    lines = re.findall(r"`((?:from|import) labkit\.frameworks.*?)`", README)
    assert len(lines) == 5, "torch.amp, apex, fastai, and two of OneFlow's"
    for line in lines:
        exec(line, {})
    (recipe,) = re.findall(r"`(replace\(RECIPES.*?\))`", README)
    assert eval(recipe, {"replace": replace, "RECIPES": RECIPES, "PRESETS": PRESETS}).scaler.init_scale == 2.0**32
    assert all(name in README for name in PRESETS)
    (command,) = re.findall(r"^    labkit race (.*)$", README, flags=re.MULTILINE)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert len(parser.parse_args(shlex.split(command)).seeds) == 3


def test_the_table_of_lessons_is_that_of_lesson_00_with_each_lesson_s_minutes() -> None:
    rows = dict(re.findall(r"^\| (\d\w+) [^|]*\| (\d+) \|", README, flags=re.MULTILINE))
    sources = {lesson.name: lesson.text.read_text(encoding="utf-8") for lesson in lessons()}
    on_the_map = sources.keys() - {"00_start"}
    about = re.compile(r"^# About (\d+) minutes", flags=re.MULTILINE)
    minutes = {lesson.split("_")[0]: about.findall(sources[lesson]) for lesson in on_the_map}
    assert {lesson: [said] for lesson, said in rows.items()} == minutes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)\)|src(?:set)?=\"(?!http)([^\"]+)\"", text)
    missing = [link for pair in links for link in pair if link and not (page.parent / link).exists()]
    assert not missing
