"""A headless Chromium for the tests that look at a page.

It is the one that LABKIT_BROWSER names, or the first found in PATH. Without one, or without
Playwright, the tests are skipped and say how to get it; with LABKIT_REQUIRE_BROWSER=1 that is an
error.
"""

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    """Return LABKIT_BROWSER if it is set, else the first Chromium in PATH, or None."""
    if os.environ.get("LABKIT_BROWSER"):
        return os.environ["LABKIT_BROWSER"]
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    return None


@contextmanager
def running() -> Iterator[Any]:
    """Run a Chromium for the length of the block.

    Playwright's event loop runs in this thread meanwhile, so the block cannot be nested.
    """
    is_required = os.environ.get("LABKIT_REQUIRE_BROWSER") == "1"
    executable = find()
    if executable is None:
        if is_required:
            pytest.fail(f"LABKIT_REQUIRE_BROWSER=1, but {WHERE_TO_GET_ONE}", pytrace=False)
        pytest.skip(WHERE_TO_GET_ONE)
    if is_required:
        api = importlib.import_module("playwright.sync_api")
    else:
        api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        try:
            yield chromium
        finally:
            chromium.close()
