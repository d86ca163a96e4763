"""The playground's digits as JavaScript: `python -m tests.playground.digits` writes the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labkit.records.files import data_folder
from labkit.train.data import TRAIN_DIGITS

FILE = Path("labkit/widgets/playground/digits_data.js")
TRAINED, TESTED = 448, 64
LEVELS = "0123456789abcdefg"
COMMENTS = (
    f"Handwritten digits of 8 x 8 pixels: those of the lab, {TRAINED} to train on, then {TESTED} "
    "others.",
    "",
    "A text is a digit, and its pixels row by row, each a brightness from 0 to g, which is 16.",
    "",
    "Written by tests/playground/digits.py. Source: data/README.md (UCI, Optical Recognition of",
    "Handwritten Digits).",
)


def digits_script() -> str:
    """Return the module: the first digits for training, and the first of those for testing."""
    with np.load(data_folder() / "digits.npz") as stored:
        images = stored["images"]
        labels = stored["labels"]
    rows = [*range(TRAINED), *range(TRAIN_DIGITS, TRAIN_DIGITS + TESTED)]
    lines = []
    for row in rows:
        pixels = "".join(LEVELS[level] for level in images[row].ravel())
        lines.append(f'  "{labels[row]}{pixels}",\n')
    head = "\n".join(f"// {line}".rstrip() for line in COMMENTS)
    count = f"export const TRAINED_DIGITS = {TRAINED};"
    return f"{head}\n\n{count}\n\nexport const DIGITS = [\n{''.join(lines)}];\n"


if __name__ == "__main__":
    FILE.write_text(digits_script(), encoding="utf-8")
