"""No line of the library, of the JavaScript and of the style sheets is longer than 100 columns."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = 100
# A value of CSS that cannot be broken.
UNBROKEN = ("grid-template-columns:",)


def test_lines_of_the_library_have_at_most_100_columns() -> None:
    endings = ("py", "js", "mjs", "css")
    files = [path for ending in endings for path in ROOT.glob(f"labkit/**/*.{ending}")]
    files += [
        path for ending in ("js", "mjs") for path in ROOT.glob(f"tests/javascript/*.{ending}")
    ]
    assert len(files) > 400
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS and not line.strip().startswith(UNBROKEN)
    ]
    assert long == []
