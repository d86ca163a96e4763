"""What widgets' tests in a browser share: the functions of their scripts, and a blank page without a kernel."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.widgets.pages import Page, Scripts


@pytest.fixture(scope="module")
def js(request: pytest.FixtureRequest, browser: Any) -> Scripts:
    """The scripts of the folders that a test module names in FOLDERS, as its class SCRIPTS where it has one."""
    return getattr(request.module, "SCRIPTS", Scripts)(browser, *request.module.FOLDERS)


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    """A page to show widgets in; at the end of the test no error was thrown in it."""
    page = Page(browser)
    yield page
    assert page.errors == []
