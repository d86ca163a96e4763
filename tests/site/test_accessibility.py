"""Pages under the rules of axe-core in a real Chromium: no serious finding in either theme.

The pages are all that `labkit site --live` writes for two lessons, and one of each kind of the
documentation. `npm ci` installs axe-core.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main
from labkit.site import server_of
from tests.site.test_live import pyodide, serving
from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
THEMES = ("light", "dark")
# A lesson of widgets and predictions, and one with live exercises and a live training.
LESSONS = ("01", "06")
# The start, a guide, the catalogue with its widgets, a long table, and a page of the API.
DOCUMENTATION = ("index", "practitioners", "widgets", "errors", "api/amp")
# Widgets are drawn after the page has loaded: wait until it has not changed for half a second, and
# no longer than 10 seconds, since a training may play for ever.
WHEN_STILL = """() => new Promise((done) => {
  let quiet = setTimeout(done, 500);
  setTimeout(done, 10_000);
  const changed = () => {
    clearTimeout(quiet);
    quiet = setTimeout(done, 500);
  };
  new MutationObserver(changed).observe(document, { subtree: true, childList: true });
})"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 * slowness())]


def serious_findings(browser: Any, address: str, theme: str) -> list[str]:
    """Return what axe-core finds on a page and calls serious or critical."""
    if not AXE.is_file():
        pytest.skip("axe-core is missing; `npm ci` installs it")
    context = browser.new_context(color_scheme=theme, viewport={"width": 1280, "height": 800})
    try:
        page = context.new_page()
        page.set_default_timeout(120_000 * slowness())
        response = page.goto(address)
        # A page that is missing has nothing to find.
        assert response.ok, f"{address}: {response.status}"
        page.evaluate(WHEN_STILL)
        page.evaluate(AXE.read_text(encoding="utf-8"))
        violations = page.evaluate("axe.run().then((result) => result.violations)")
    finally:
        context.close()
    findings = []
    for violation in violations:
        if violation["impact"] in ("serious", "critical"):
            element = violation["nodes"][0]["html"][:200]
            findings.append(f"{address} {theme}: {violation['id']}, {element}")
    return findings


@pytest.fixture(scope="module")
def lessons_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder and the address of pages as the command writes them, from notebooks that ran."""
    pyodide()
    folder = tmp_path_factory.mktemp("pages") / "site"
    assert main(["site", str(folder), "--live", "--lessons", *LESSONS]) == 0
    with serving(server_of(folder)) as address:
        yield folder, address


@pytest.fixture(scope="module")
def documentation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the documentation, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("documentation")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    with serving(server_of(folder)) as address:
        yield address


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_serious_in_pages_of_lessons(
    browser: Any, lessons_site: tuple[Path, str], theme: str
) -> None:
    folder, address = lessons_site
    pages = sorted(path.name for path in folder.glob("*.html"))
    # The lessons and the index.
    assert len(pages) >= len(LESSONS) + 1
    findings = []
    for name in pages:
        findings += serious_findings(browser, f"{address}/{name}", theme)
    assert findings == []


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_serious_in_the_documentation(
    browser: Any, documentation: str, theme: str
) -> None:
    findings = []
    for name in DOCUMENTATION:
        findings += serious_findings(browser, f"{documentation}/{name}.html", theme)
    assert findings == []
