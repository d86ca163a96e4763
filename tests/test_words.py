"""Is one thing called by one name? What the word table of CONTRIBUTING.md gave up stands nowhere any more.

Names are read from the code: Python's by `ast`, JavaScript's where they are declared. Sentences are read as text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GIVEN_UP = frozenset(
    "arrive bad_step bad_steps begin_with close_the_doors crumbs deed deeds dice_cup "
    "forget go_on good_step good_steps heard hurry last_words lent look_again make_room mantissa obey parted patience "
    "stranger turned why_not worry".split()
)
SENTENCES = {
    "a clean step, or one that was skipped": r"\b(good|bad)[ _-]steps?\b",
    "rounding draws random numbers; Dice is a metric": r"\bno dice\b|\bsame dice\b",
    "the gaps between numbers grow with the exponent: significand": r"\bmantissa\b",
    "images belong into lessons": r"survive the night|\bcrumbs\b",
    "a number is cast; a model is converted": r"convert (the file|it) to FP\d|before it is converted",
}


def test_a_name_that_was_given_up_is_found(tmp_path: Path) -> None:
    """A worked example: a house with an old name in each language."""
    (tmp_path / "a.py").write_text("def _go_on(lent):\n    return heard.parted\n")
    (tmp_path / "b.js").write_text("const deed = 1;\nfunction goOn() {}\n")
    assert {name for _, name in names(tmp_path / "a.py")} == {"_go_on", "lent", "heard", "parted"}
    assert [name for _, name in names(tmp_path / "b.js")] == ["deed", "goOn"]
    assert all(plain(name) in GIVEN_UP for path in tmp_path.iterdir() for _, name in names(path))


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of all that is defined, taken as an argument, read or assigned."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        for number, line in enumerate(text.splitlines(), 1):
            yield from ((number, name) for name in re.findall(r"\b(?:const|let|function) (\w+)", line))
        return
    for node in ast.walk(ast.parse(text)):
        for field in ("name", "arg", "id", "attr"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield getattr(node, "lineno", 0), name


def plain(name: str) -> str:
    """_goOn and GO_ON are go_on.

    >>> plain("_goOn"), plain("GO_ON")
    ('go_on', 'go_on')
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    return words.strip("_").lower()


@pytest.mark.parametrize("folder", ["labkit", "tests"])
def test_no_name_in_the_code_was_given_up(folder: str) -> None:
    files = [path for ending in ("py", "js") for path in sorted((ROOT / folder).rglob(f"*.{ending}"))]
    assert len(files) > 50
    found = [(path, line, name) for path in files for line, name in names(path) if plain(name) in GIVEN_UP]
    assert [f"{path.relative_to(ROOT)}:{line} {name}" for path, line, name in found] == []


@pytest.mark.parametrize(("say", "pattern"), SENTENCES.items())
def test_no_sentence_uses_a_word_that_was_given_up(say: str, pattern: str) -> None:
    texts = [ROOT / "README.md", *sorted((ROOT / "notebooks" / "source").glob("*.py"))]
    texts += [path for ending in ("py", "js", "toml") for path in sorted((ROOT / "labkit").rglob(f"*.{ending}"))]
    found = [
        f"{path.relative_to(ROOT)}:{number} {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line, re.IGNORECASE)
    ]
    assert found == [], say
