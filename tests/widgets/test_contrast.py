"""Contrast in both themes: 4.5 for words and 3 for graphics (WCAG 2.1, 1.4.3 and 1.4.11)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.widgets.base import widget as base
from tests.widgets.contrasts import LEAST, contrast
from tests.widgets.pages import Scripts

# The folders of the scripts that `js` runs.
FOLDERS = ("base",)
ROOT = Path(__file__).parents[2]
GRAPHICS = 3.0
FATES = ("underflowed", "subnormal", "normal", "overflowed")
INKS_OF_FORMATS = ("FP32", "FP16", "BF16", "FP8")
PAGES = {"light": "#ffffff", "dark": "#111111"}
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
DECLARED = re.compile(r"(?:^|;)\s*([\w-]+)\s*:\s*([^;]+)")
REFERENCE = re.compile(r"var\((--[\w-]+)(?:,\s*(.+))?\)", re.DOTALL)
# The variables of JupyterLab that colour words of labkit.
JUPYTERLAB = {
    "light": {"--jp-content-font-color1": "#212121", "--jp-content-font-color2": "#616161"},
    "dark": {"--jp-content-font-color1": "#ffffff", "--jp-content-font-color2": "#d3d3d3"},
}
FORMATS = ("FP32", "FP16", "BF16", "E4M3")


def rules(name: str) -> list[tuple[str, dict[str, str]]]:
    """Return the rules of a style sheet: selector and declarations."""
    text = (base.FOLDERS / name).read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = []
    for selector, body in RULE.findall(text):
        found.append((" ".join(selector.split()), dict(DECLARED.findall(body))))
    return found


def variables(theme: str, number_format: str = "FP32") -> dict[str, str]:
    """Return the variables of base.css in a theme, inside of an element of a number format."""
    known = dict(JUPYTERLAB[theme])
    for selector, declared in rules("base/base.css"):
        of_theme = selector == ".labkit" or (theme == "dark" and ".vscode-dark .labkit" in selector)
        of_format = selector == ".labkit [data-format]"
        named = re.search(r'^\.labkit \[data-format(\^?)="(\w+)"\]$', selector)
        if named and named[1]:
            of_format = number_format.startswith(named[2])
        elif named:
            of_format = number_format == named[2]
        if of_theme or of_format:
            own = {name: value for name, value in declared.items() if name.startswith("--lk-")}
            known.update(own)
    return known


def resolved(value: str, known: dict[str, str]) -> str:
    """Follow references to variables.

    The second value of a `var()` is for hosts that lack the variable.
    """
    reference = REFERENCE.fullmatch(value.strip())
    if reference is None:
        return value.strip()
    if reference[1] in known:
        return resolved(known[reference[1]], known)
    return resolved(reference[2] or "", known)


def coloured() -> Iterator[tuple[str, str]]:
    """Yield (rule, value) of all rules that give words a colour of labkit."""
    for sheet in sorted(base.FOLDERS.glob("*/*.css")):
        name = f"{sheet.parent.name}/{sheet.name}"
        for selector, declared in rules(name):
            value = declared.get("color", "")
            # Words in the colour of the surface stand on a filled background, whose contrast to the
            # page is the same.
            if "--lk-surface" in value and "background" in declared:
                value = declared["background"]
            # White words on the accent colour have a test of their own.
            if "--lk-on-accent" in value:
                continue
            if value.startswith("var(--lk-"):
                yield f"{name}: {selector}", value


@pytest.mark.parametrize("theme", PAGES)
def test_words_in_style_sheets_have_enough_contrast(theme: str) -> None:
    judged = list(coloured())
    # The style sheets have more than 40 such rules; fewer mean that they were not read.
    assert len(judged) > 40
    for number_format in FORMATS:
        known = variables(theme, number_format)
        for where, value in judged:
            colour = resolved(value, known)
            assert contrast(colour, PAGES[theme]) >= LEAST, (where, number_format, colour)


@pytest.mark.parametrize("theme", PAGES)
def test_words_in_pictures_have_enough_contrast(js: Scripts, theme: str) -> None:
    known = variables(theme)
    names = js.run("() => Object.entries(PROPERTIES)")
    palette = {ink: resolved(f"var({variable})", known) for ink, variable in names}
    drawn = set(palette) - {"line", "line2", "surface", "surface2"}
    assert {"underflowed", "overflowed", "bf16", "fp8"} <= drawn
    words = "(palette, names) => names.map((name) => wordColour(palette[name], palette))"
    for name, colour in zip(sorted(drawn), js.run(words, palette, sorted(drawn)), strict=True):
        assert contrast(colour, PAGES[theme]) >= LEAST, (name, colour)


@pytest.mark.parametrize("theme", PAGES)
def test_words_on_the_accent_have_enough_contrast(theme: str) -> None:
    known = variables(theme)
    words = resolved("var(--lk-on-accent)", known).replace("#fff", "#ffffff")
    assert contrast(words, resolved("var(--lk-accent)", known)) >= LEAST


@pytest.mark.parametrize("theme", PAGES)
def test_fills_and_lines_of_widgets_are_seen_on_the_page(theme: str) -> None:
    known = variables(theme)
    graphics = [f"--lk-{name}" for name in (*FATES, *(name.lower() for name in INKS_OF_FORMATS))]
    for name in graphics:
        assert contrast(resolved(f"var({name})", known), PAGES[theme]) >= GRAPHICS, name


@pytest.mark.parametrize("theme", PAGES)
def test_bars_of_memory_and_their_letters_are_seen(theme: str) -> None:
    script = (base.FOLDERS / "workbench" / "memory.js").read_text(encoding="utf-8")
    (listed,) = re.findall(r"const COLOURS = \[(.*?)\]", script)
    colours = re.findall(r"#\w{6}", listed)
    assert len(colours) == 4
    for colour in colours:
        assert contrast(colour, PAGES[theme]) >= GRAPHICS, colour
        assert contrast("#1a1a1a", colour) >= LEAST, colour


@pytest.mark.parametrize(("theme", "place"), [("light", 0), ("dark", 1)])
def test_fills_of_a_report_are_seen_on_its_page(theme: str, place: int) -> None:
    sheet = (ROOT / "labkit" / "instrument" / "report_page.css").read_text(encoding="utf-8")
    known = dict(re.findall(r"(--[\w-]+): light-dark\((.*?)\);", sheet))
    page = known["--paper"].split(", ")[place]
    for name in FATES:
        colour = known[f"--{name}"].split(", ")[place]
        assert contrast(colour, page) >= GRAPHICS, (name, colour)
