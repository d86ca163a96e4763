"""A headless Chromium for the tests that look at a page: the one that is named, or the first found
in PATH.

Where none is found the tests are skipped and say how to get one; with LABKIT_REQUIRE_BROWSER=1 that
is an error.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WHERE_TO_GET_ONE = (
    f"no browser found (looked for {', '.join(NAMES)} in PATH). Debian and Ubuntu: `apt-get "
    "install chromium`; macOS: `brew install --cask chromium`; or name one: "
    "LABKIT_BROWSER=/path/to/chrome"
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--force-color-profile=srgb",
]


def find() -> str | None:
    """Return the path of a Chromium, or None."""
    named = os.environ.get("LABKIT_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def running() -> Iterator[object]:
    """Start a Chromium and end it; in between this thread has Playwright's event loop, and no
    second one can begin.
    """
    executable = find()
    if executable is None:
        if os.environ.get("LABKIT_REQUIRE_BROWSER") == "1":
            pytest.fail(f"LABKIT_REQUIRE_BROWSER=1, but {WHERE_TO_GET_ONE}", pytrace=False)
        pytest.skip(WHERE_TO_GET_ONE)
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield chromium
        chromium.close()
