"""The playground in a page: it trains, its knobs hold from the next step on, and its address is its setting."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.widgets import Playground
from labkit.widgets.playground.widget import PRESETS, SCENES
from labkit.widgets.underflow.widget import windows
from tests.widgets.pages import Page, Scripts

FOLDERS = ("playground",)


def test_scenes_of_page_and_kernel_are_the_same(js: Scripts) -> None:
    page = js.run("() => Object.entries(SCENES).map(([k, v]) => [k, v.preset, v.method ?? {}])")
    assert [tuple(row) for row in page] == [(k, *row) for k, row in SCENES.items()]


def test_presets_of_page_and_kernel_are_the_same(js: Scripts) -> None:
    assert js.run("() => Object.keys(RECIPE_PRESETS)") == list(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_lab_recipe_of_its_name(js: Scripts, name: str) -> None:
    page, lab = js.run("(name) => RECIPE_PRESETS[name]", name), RECIPES[name]
    config = js.run("(name) => scalerConfig(RECIPE_PRESETS[name])", name)
    operands = (lab.autocast or lab.model).name
    assert (page["weights"], page["activations"]) == (lab.model.name, operands)
    assert page["gradients"] == (lab.gradient_format.name if lab.gradient_format else operands)
    assert (page["master"], page["optimizer"]) == (lab.master_weights, lab.optimizer.name)
    assert page["rounding"].upper() == lab.rounding.name
    assert config["init_scale"] == lab.scaler.init_scale
    assert config["dynamic"] == lab.scaler.dynamic
    if lab.scaler.dynamic:
        assert config["growth_interval"] == lab.scaler.growth_interval


def test_zones_are_those_of_the_underflow_histogram(js: Scripts) -> None:
    assert js.run("zonesOf", "FP16") == windows(FP16)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("scene=moon", "scene: expected one of picture"),
        ("seed=-1", "seed: expected a whole number from 0 to 9999, got -1"),
        ("weights=FP12", "weights: expected FP32"),
        ("optimizer.rate=fast", "optimizer.rate: expected a number above 0"),
        ("optimizer.colour=red", "optimizer.colour: there is no such setting"),
        ("colour=red", "colour: there is no such part of a recipe"),
        ("constructor=1", "constructor: there is no such part of a recipe"),
        ("recipe=__proto__", "recipe: expected one of FP32"),
        ("%%%=%", "%%%: there is no such part of a recipe"),
    ],
)
def test_a_bad_address_says_what_was_ignored(js: Scripts, address: str, told: str) -> None:
    found = js.run("readAddress", address)
    assert found["setting"] == js.run("settingOf", "picture")
    assert len(found["ignored"]) == 1
    assert told in found["ignored"][0]


def test_an_address_brings_its_setting_back(js: Scripts) -> None:
    setting = {
        "scene": "spirals",
        "preset": "O1",
        "changes": {"scaling": "static", "log2_scale": -3, "master": False, "weights": "e5m7"},
        "method": {"kind": "SGD", "rate": 2.0**-12},
        "seed": 7,
    }
    found = js.run("(setting) => readAddress(addressOf(setting))", setting)
    assert found == {"setting": setting, "ignored": []}


def steps_of(root: Any) -> int:
    """Return how many steps are done, as the page says."""
    return int(root.locator(".pg-count").inner_text().removeprefix("step ").replace(",", ""))


def said(root: Any) -> str:
    return str(root.locator(".lk-sentence").get_attribute("data-text"))


def test_one_step_tells_which_gradients_are_lost(page: Page) -> None:
    root = page.show(Playground())
    assert "Press Start" in said(root)
    root.get_by_role("button", name="One step").click()
    assert steps_of(root) == 1
    assert said(root).startswith("100% of the gradients of layer 1 are zero in FP16, and 0%")


def test_a_loss_scale_holds_from_the_next_step_on(page: Page) -> None:
    root = page.show(Playground())
    step = root.get_by_role("button", name="One step")
    step.click()
    root.get_by_role("radio", name="dynamic").click()
    step.click()
    assert steps_of(root) == 2
    assert "zero" not in said(root)
    assert page.trait("changes") == {"scaling": "dynamic"}


def test_start_trains_and_pause_rests(page: Page) -> None:
    root = page.show(Playground("spirals"))
    root.get_by_role("button", name="Start").click()
    page.page.wait_for_function(
        "() => parseInt(document.querySelector('.pg-count').textContent.slice(5)) >= 5"
    )
    root.get_by_role("button", name="Pause").click()
    steps = steps_of(root)
    page.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    assert steps_of(root) == steps


def test_reset_begins_again_with_the_same_numbers(page: Page) -> None:
    root = page.show(Playground("targets"))
    step = root.get_by_role("button", name="One step")
    step.click()
    first = said(root)
    root.get_by_role("button", name="Reset").click()
    assert steps_of(root) == 0
    step.click()
    assert said(root) == first


@pytest.mark.parametrize(
    ("scene", "steps", "words"),
    [
        ("too_high", 2, "2 steps in a row were skipped: the gradients of layer 3 bias hold inf"),
        ("epsilon", 2, "Step 1 put inf or NaN into layer "),
        ("spirals", 1, "is as good as that of the twin in FP32"),
    ],
)
def test_the_sentence_names_what_happens(page: Page, scene: str, steps: int, words: str) -> None:
    root = page.show(Playground(scene))
    for _ in range(steps):
        root.get_by_role("button", name="One step").click()
    assert words in said(root)


def test_it_works_from_the_keyboard_alone(page: Page) -> None:
    root = page.show(Playground("too_high"))
    page.page.keyboard.press("Tab")
    focused = "() => document.activeElement.textContent"
    while page.page.evaluate(focused) != "One step":
        page.page.keyboard.press("Tab")
    page.page.keyboard.press("Enter")
    assert steps_of(root) == 1


def test_an_own_format_has_knobs_for_its_bits(page: Page) -> None:
    root = page.show(Playground("spirals"))
    assert root.get_by_label("exponent bits").is_hidden()
    root.get_by_label("activations").select_option("e5m10")
    root.get_by_label("significand").press("ArrowLeft")
    assert page.trait("changes") == {"activations": "e5m9"}


def test_it_fits_a_narrow_page(browser: Any) -> None:
    page = Page(browser, width=390)
    page.show(Playground())
    assert page.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert page.errors == []
