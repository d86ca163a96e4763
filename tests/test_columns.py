"""Lines of Python, JavaScript and style sheets: at most 100 columns."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = 100
# A value of CSS that cannot be broken.
UNBROKEN = ("grid-template-columns:",)


def test_lines_have_at_most_100_columns() -> None:
    endings = ("py", "js", "mjs", "css")
    files = [path for ending in endings for path in ROOT.glob(f"labkit/**/*.{ending}")]
    for ending in ("js", "mjs"):
        files += ROOT.glob(f"tests/javascript/*.{ending}")
    # Scripts in tests/guard/scripts are as strangers wrote them.
    files += [path for path in ROOT.glob("tests/**/*.py") if "guard/scripts" not in path.as_posix()]
    files += ROOT.glob("docs/*.py")
    files += [path for path in ROOT.glob("labkit_lessons/*/*.py") if path.name != "lesson.py"]
    assert len(files) > 400
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS and not line.strip().startswith(UNBROKEN)
    ]
    assert long == []
