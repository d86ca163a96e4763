"""The playground as one file: its size, its start without a network, its address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import main
from labkit.site import SiteError, write_playground
from labkit.widgets.playground.widget import SCENES

# Bytes of the file, at most.
LARGEST = 400_000
SCREEN = {"width": 1280, "height": 720}
# The step at which a run may enter the list of best settings: EXERCISE_STEPS of best.js.
LISTED_FROM = 200


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The playground's file."""
    return write_playground(tmp_path_factory.mktemp("playground") / "playground.html")


@pytest.fixture
def opened(file: Path, browser: Any) -> Iterator[Callable[..., Any]]:
    """A function that opens the file at an address.

    Afterwards, check that no page logged an error or used the network.
    """
    errors: list[str] = []
    requests: list[str] = []

    def log(message: Any) -> None:
        if message.type == "error":
            errors.append(message.text)

    def open_it(address: str = "", **options: Any) -> Any:
        page = browser.new_page(viewport=SCREEN, **options)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", log)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"file://{file}{address}")
        return page

    yield open_it
    assert errors == []
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_it_is_one_small_file(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert len(text.encode()) < LARGEST
    # Nothing is loaded from another file.
    assert "src=" not in text


def test_it_trains_without_a_network(opened: Callable[..., Any]) -> None:
    page = opened()
    page.get_by_role("button", name="One step").click()
    assert page.locator(".pg-count").inner_text() == "step 1"
    assert "zero in FP16" in page.locator(".lk-sentence").get_attribute("data-text")


@pytest.mark.parametrize("scene", SCENES)
def test_it_fits_one_screen(opened: Callable[..., Any], scene: str) -> None:
    page = opened(f"#scene={scene}")
    width, height = page.evaluate(
        "() => [document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    )
    assert width <= SCREEN["width"]
    assert height <= SCREEN["height"]


def wait_for_address(page: Any, address: str) -> None:
    """Wait for the address of a page, which follows its knobs a moment later."""
    page.wait_for_function("(wanted) => location.hash === wanted", arg=address)


def test_a_knob_writes_itself_into_the_address(opened: Callable[..., Any]) -> None:
    page = opened("#scene=spirals&seed=4")
    page.get_by_label("recipe").select_option("O1")
    page.get_by_role("radio", name="static").click()
    wait_for_address(page, "#scene=spirals&recipe=O1&seed=4&scaling=static")


def test_a_link_trains_to_its_step(opened: Callable[..., Any]) -> None:
    page = opened("#scene=spirals&recipe=O1&seed=5&step=7")
    page.get_by_text("step 7", exact=True).wait_for()
    page.get_by_role("button", name="Start").wait_for()
    wait_for_address(page, "#scene=spirals&recipe=O1&seed=5&step=7")
    linked = page.locator(".lk-sentence").get_attribute("data-text")
    again = opened("#scene=spirals&recipe=O1&seed=5")
    for _ in range(7):
        again.get_by_role("button", name="One step").click()
    assert again.locator(".lk-sentence").get_attribute("data-text") == linked
    wait_for_address(again, "#scene=spirals&recipe=O1&seed=5&step=7")


def test_a_copied_link_says_what_it_does_not_hold(opened: Callable[..., Any]) -> None:
    page = opened("#scene=spirals", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="One step").click()
    page.get_by_role("radio", name="static").click()
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert "not what earlier steps were taken with" in page.locator(".pg-notice").inner_text()


def test_the_best_settings_stay_in_the_browser(opened: Callable[..., Any]) -> None:
    page = opened(f"#scene=targets&recipe=FP16+no+master&log2_scale=16&step={LISTED_FROM}")
    page.get_by_text(f"step {LISTED_FROM}", exact=True).wait_for()
    page.get_by_text("Exercise: few bytes").click()
    row = "6 bytes, loss "
    assert page.locator(".pg-best li").inner_text().startswith(row)
    page.goto("about:blank")
    page.go_back()
    page.get_by_text("Exercise: few bytes").click()
    assert page.locator(".pg-best li").inner_text().startswith(row)
    page.get_by_role("button", name="Take FP16 no master").click()
    assert page.locator(".pg-count").inner_text() == "step 0"


def test_a_turned_knob_is_not_an_entry_of_the_best_list(opened: Callable[..., Any]) -> None:
    page = opened("#scene=targets&recipe=FP16+no+master&log2_scale=16&step=100")
    page.get_by_text("step 100", exact=True).wait_for()
    page.get_by_label("optimizer state").select_option("FP16")
    page.get_by_role("button", name="Start").click()
    # The text of the count is such as "step 201".
    page.wait_for_function(
        "(first) => parseInt(document.querySelector('.pg-count').textContent.slice(5)) > first",
        arg=LISTED_FROM,
    )
    assert page.locator(".pg-best li").count() == 0


def test_a_link_opens_its_setting(opened: Callable[..., Any]) -> None:
    page = opened("#scene=spirals&recipe=O1&scaling=static&log2_scale=3&seed=5")
    assert page.get_by_label("problem").input_value() == "spirals"
    assert page.get_by_role("radio", name="static").is_checked()
    assert page.get_by_label("seed").last.input_value() == "5"
    assert page.locator(".pg-notice").is_hidden()


def test_a_bad_link_says_what_was_ignored(opened: Callable[..., Any]) -> None:
    page = opened("#scene=moon&log2_scale=99&weights=%3Cimg%20src%3Dx%3E")
    notice = page.locator(".pg-notice").inner_text()
    assert "scene: expected one of picture" in notice
    assert "log2_scale: expected a whole number from -10 to 30, got 99" in notice
    assert 'got "<img src=x>"' in notice
    assert page.locator(".pg-notice img").count() == 0


def test_a_link_in_the_open_page_takes_its_setting(opened: Callable[..., Any]) -> None:
    page = opened("#scene=moon")
    page.evaluate("() => { location.hash = '#scene=spirals&recipe=O1&seed=8'; }")
    page.locator(".pg-notice").wait_for(state="hidden")
    assert page.get_by_label("problem").input_value() == "spirals"
    assert page.get_by_label("recipe").input_value() == "O1"
    assert page.get_by_label("seed").last.input_value() == "8"


def test_a_button_copies_the_link(opened: Callable[..., Any]) -> None:
    page = opened("#scene=spirals&seed=4", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("() => navigator.clipboard.readText()") == page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_colours_of_the_system(opened: Callable[..., Any], scheme: str) -> None:
    page = opened(color_scheme=scheme)
    ink = page.evaluate("() => getComputedStyle(document.querySelector('.lk-title')).color")
    assert ink == {"light": "rgb(31, 31, 31)", "dark": "rgb(238, 238, 238)"}[scheme]


def test_a_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="expected a file, got the folder"):
        write_playground(tmp_path)


def test_a_file_in_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="does not exist"):
        write_playground(tmp_path / "absent" / "file.html")


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.html"
    assert main(["site", "--playground", str(file)]) == 0
    assert file.is_file()
    assert "kB. Open" in capsys.readouterr().out
