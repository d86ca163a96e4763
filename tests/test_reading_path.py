"""Can the engine be read in an afternoon? The README names its files, in the order of the course; they stay short."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = 3_600
LAYERS = ("formats", "interop", "instrument", "gemm", "amp", "train")


def named_files(readme: str) -> list[tuple[str, str]]:
    """Return (file, sentence) for each numbered line of the README that names a file of labkit."""
    return re.findall(r"^\d+\. `(labkit/[\w/]+\.py)`: (.+)$", readme, re.MULTILINE)


def test_worked_example_of_a_path_with_two_files():
    assert named_files("1. `labkit/a.py`: one.\nand\n2. `labkit/b/c.py`: two.") == [
        ("labkit/a.py", "one."), ("labkit/b/c.py", "two.")
    ]  # fmt: skip


def test_the_path_is_short_and_each_file_says_what_it_is():
    files = [ROOT / file for file, _ in named_files((ROOT / "README.md").read_text(encoding="utf-8"))]
    assert 12 <= len(files) <= 20
    assert len(set(files)) == len(files)
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    lines = {file.relative_to(ROOT).as_posix(): text.count("\n") for file, text in texts.items()}
    assert sum(lines.values()) <= LINES, f"{sum(lines.values())} lines are no afternoon: {lines}"
    for file, text in texts.items():
        assert ast.get_docstring(ast.parse(text)), f"{file} opens without a word"


def test_the_path_goes_the_way_of_the_course():
    files = [Path(file) for file, _ in named_files((ROOT / "README.md").read_text(encoding="utf-8"))]
    order = [LAYERS.index(file.parts[1].removesuffix(".py")) for file in files]
    assert order == sorted(order)
