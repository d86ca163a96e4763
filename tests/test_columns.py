"""Lines of JavaScript, style sheets and C++ have at most 100 columns; ruff counts Python's."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = 100
# A value of CSS that cannot be broken.
UNBROKEN = ("grid-template-columns:",)


def test_lines_have_at_most_100_columns() -> None:
    endings = ("js", "mjs", "css")
    files = [path for ending in endings for path in ROOT.glob(f"labkit/**/*.{ending}")]
    files += ROOT.glob("tests/javascript/*.*js")
    files += ROOT.glob("tests/gpu/simulated/cpp/*")
    assert len(files) > 150
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS and not line.strip().startswith(UNBROKEN)
    ]
    assert long == []
