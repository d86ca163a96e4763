"""Texts that Python and JavaScript both format, and their list in CONTRIBUTING.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from labkit.widgets.base.figures import spread
from labkit.widgets.base.number_words import percent, short
from tests.widgets.pages import Scripts

FOLDERS = ("base",)
ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<what>.+?) \| (?P<python>.+?) \| (?P<script>.+?) \| `(?P<test>.+?)` \|$")


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that are the same in each test, whichever tests run before."""
    return np.random.default_rng(54)


def table() -> list[re.Match[str]]:
    """Return the rows of the list in CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text[text.index("Some things are formed in both languages") :].split("\n\n")[1]
    rows = [ROW.match(line) for line in section.splitlines()[2:]]
    assert None not in rows, section
    return [row for row in rows if row is not None]


def test_the_list_names_existing_files() -> None:
    assert len(table()) >= 10
    for row in table():
        for cell in (row["python"], row["script"]):
            for path in re.findall(r"`([\w/]+(?:\.\w+|/\w+))`", cell):
                known = [ROOT / path, ROOT / "labkit" / "widgets" / path]
                assert any(place.exists() for place in known), f"{row['what']}: {path}"
        assert (ROOT / row["test"]).is_file(), row["test"]


def test_each_test_of_the_list_runs_the_javascript() -> None:
    for row in table():
        text = (ROOT / row["test"]).read_text(encoding="utf-8")
        assert re.search(r"\bjs\b|Scripts\(", text), row["test"]


@pytest.mark.parametrize("share", [0.125, 0.00999, 0.0949, 0.0996, 0.9899, 0.998, 1e-9, 0.0, 1.0])
def test_a_share_has_the_same_words(js: Scripts, share: float) -> None:
    assert js.run("percent", share) == percent(share)


def test_drawn_shares_have_the_same_words(js: Scripts, rng: np.random.Generator) -> None:
    drawn = [float(x) for x in np.concatenate([rng.random(200), 10.0 ** -rng.uniform(0, 9, 200)])]
    drawn += [1 - x for x in drawn]
    found = js.run("(shares) => shares.map(percent)", drawn)
    assert found == [percent(share) for share in drawn]


def test_drawn_numbers_have_the_same_words(js: Scripts, rng: np.random.Generator) -> None:
    """Integers are left out, because only the page gives them commas."""
    drawn = [float(x) for x in 10.0 ** rng.uniform(-12, 12, 400) * rng.choice([-1, 1], 400)]
    drawn = [x for x in drawn if x != int(x)]
    found = js.run("(numbers) => numbers.map(decimal)", drawn)
    assert found == [short(x) for x in drawn]


def test_drawn_labels_stand_in_the_same_places(js: Scripts, rng: np.random.Generator) -> None:
    for _ in range(50):
        heights = [float(x) for x in rng.random(rng.integers(1, 9))]
        found = js.run("spreadLabels", heights, 0.1)
        assert np.allclose(found, spread(heights, 0.1), atol=1e-8)
