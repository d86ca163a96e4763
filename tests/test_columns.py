"""No line of the JavaScript and of the style sheets is longer than a reader's window."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = 100
# A value of CSS that cannot be broken.
UNBROKEN = ("grid-template-columns:",)


def test_lines_of_scripts_and_styles_have_at_most_100_columns() -> None:
    files = [path for ending in ("js", "mjs", "css") for path in ROOT.glob(f"labkit/**/*.{ending}")]
    files += [
        path for ending in ("js", "mjs") for path in ROOT.glob(f"tests/javascript/*.{ending}")
    ]
    assert len(files) > 80
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS and not line.strip().startswith(UNBROKEN)
    ]
    assert long == []
