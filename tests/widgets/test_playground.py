"""The playground in a page: training, knobs and address."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.train import single_digits
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
def test_a_preset_is_labkit_s_recipe_of_its_name(js: Scripts, name: str) -> None:
    page = js.run("(name) => RECIPE_PRESETS[name]", name)
    lab = RECIPES[name]
    config = js.run("(name) => scalerConfig(RECIPE_PRESETS[name])", name)
    operands = (lab.autocast or lab.model).name
    assert page["weights"] == lab.model.name
    assert page["activations"] == operands
    assert page["gradients"] == (lab.gradient_format.name if lab.gradient_format else operands)
    assert page["master"] == lab.master_weights
    assert page["optimizer"] == lab.optimizer.name
    assert page["rounding"].upper() == lab.rounding.name
    assert config["init_scale"] == lab.scaler.init_scale
    assert config["dynamic"] == lab.scaler.dynamic
    if lab.scaler.dynamic:
        assert config["growth_interval"] == lab.scaler.growth_interval


def test_zones_are_those_of_the_underflow_histogram(js: Scripts) -> None:
    assert js.run("zonesOf", "FP16") == windows(FP16)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("scene=moon", "scene: expected one of picture"),
        ("seed=-1", "seed: expected a whole number from 0 to 9999, got -1"),
        ("step=5001", "step: expected a whole number from 0 to 5000, got 5001"),
        ("step=soon", 'step: expected a whole number from 0 to 5000, got "soon"'),
        ("weights=FP12", "weights: expected FP32"),
        ("optimizer.rate=fast", "optimizer.rate: expected a number above 0"),
        ("optimizer.colour=red", "optimizer.colour: there is no such setting"),
        ("colour=red", "colour: there is no such part of a recipe"),
        ("constructor=1", "constructor: there is no such part of a recipe"),
        ("recipe=__proto__", "recipe: expected one of FP32"),
        ("%%%=%", "%%%: there is no such part of a recipe"),
    ],
)
def test_a_bad_address_says_what_was_ignored(js: Scripts, address: str, message: str) -> None:
    found = js.run("readAddress", address)
    assert found["setting"] == js.run("settingOf", "picture")
    assert found["step"] == 0
    assert len(found["ignored"]) == 1
    assert message in found["ignored"][0]


def test_an_address_restores_its_setting(js: Scripts) -> None:
    setting = {
        "scene": "spirals",
        "preset": "O1",
        "changes": {"scaling": "static", "log2_scale": -3, "master": False, "weights": "e5m7"},
        "method": {"kind": "SGD", "rate": 2.0**-12},
        "seed": 7,
    }
    found = js.run("(setting) => readAddress(addressOf(setting, 120))", setting)
    assert found == {"setting": setting, "step": 120, "ignored": []}


def test_digits_of_the_page_are_those_of_the_lab(js: Scripts) -> None:
    data = single_digits()
    page, tests = js.run(
        "() => [digits(), testDigits()].map((p) => [[...p.inputs], [...p.targets]])"
    )
    for got, inputs, targets in (
        (page, data.train_inputs, data.train_targets),
        (tests, data.test_inputs, data.test_targets),
    ):
        count = len(got[1])
        assert got[1] == targets[:count].tolist()
        assert got[0] == inputs[:count].flatten().tolist()


@pytest.mark.parametrize(
    ("recipe", "method", "total"),
    [
        ({"weights": "FP16", "master": True, "optimizer": "FP32"}, {"kind": "Adam"}, 14),
        ({"weights": "FP32", "master": True, "optimizer": "FP32"}, {"kind": "Adam"}, 12),
        ({"weights": "BF16", "master": False, "optimizer": "E5M2"}, {"kind": "SGD"}, 3),
        ({"weights": "e4m3", "master": False}, {"kind": "SGD", "momentum": 0}, 1),
    ],
)
def test_bytes_for_each_weight(
    js: Scripts, recipe: dict[str, Any], method: dict[str, Any], total: int
) -> None:
    method = {"momentum": 0.9, **method}
    recipe = {"optimizer": "FP32", **recipe}
    assert js.run("bytesPerWeight", recipe, method)["total"] == total


def test_the_best_list_begins_with_the_fewest_bytes(js: Scripts) -> None:
    add = """(rows) => {
      let entries = [];
      for (const [preset, loss] of rows) {
        const setting = { ...settingOf("targets", 1), preset };
        entries = withEntry(entries, entryOf(setting, loss));
      }
      const read = readEntries(writtenEntries(entries));
      return read.map((one) => [one.setting.preset, one.bytes, one.loss]);
    }"""
    rows = [["FP32", 1], ["FP16 no master", 3], ["O2", 2], ["FP16 no master", 1], ["O3", 4]]
    wanted = [["O3", 4, 4], ["FP16 no master", 6, 1], ["FP32", 8, 1], ["O2", 10, 2]]
    assert js.run(add, rows) == wanted


@pytest.mark.parametrize(
    "stored",
    ["nonsense", "{}", "[1, null]", '[{"address": "scene=moon", "loss": 1}]', '[{"loss": 1}]'],
)
def test_a_damaged_best_list_is_empty(js: Scripts, stored: str) -> None:
    assert js.run("readEntries", stored) == []


def test_a_session_ends_with_its_last_step(js: Scripts) -> None:
    steps = js.run(
        """() => {
          const training = newTraining(problemNamed("spirals"), RECIPE_PRESETS.FP32, 0);
          const session = newSession(training, portraitInputs(training.problem));
          session.losses = Array(MOST_STEPS).fill(1);
          session.twinLosses = Array(MOST_STEPS).fill(1);
          stepBoth(session);
          return [session.losses.length, session.twinLosses.length];
        }"""
    )
    assert steps == [5000, 5000]


SENTENCE = """(name, preset, steps) => {
  const training = newTraining(problemNamed(name), RECIPE_PRESETS[preset], 0);
  const session = newSession(training, portraitInputs(training.problem));
  for (let i = 0; i < steps; i++) stepBoth(session);
  const { last, lastTwin: twin } = session;
  return happening({ training, last, twin, skips: 0, broken: null }, "");
}"""


def test_the_sentence_names_swallowed_updates(js: Scripts) -> None:
    sentence = js.run(SENTENCE, "fine_tuning", "FP16 no master", 150)
    assert "of the updates leave their weight as it was" in sentence
    assert "updates" not in js.run(SENTENCE, "fine_tuning", "FP16 stochastic", 150)


def test_the_sentence_says_where_lost_gradients_do_no_harm(js: Scripts) -> None:
    sentence = js.run(SENTENCE, "targets", "O2", 100)
    assert sentence.startswith("100% of the gradients of layer 1 are zero in FP16")
    assert sentence.endswith("Yet the loss is as good as the twin's.")


def steps_of(root: Any) -> int:
    """Return how many steps are done, as the page says."""
    return int(root.locator(".pg-count").inner_text().removeprefix("step ").replace(",", ""))


def sentence_of(root: Any) -> str:
    return str(root.locator(".lk-sentence").get_attribute("data-text"))


def test_one_step_tells_which_gradients_are_lost(page: Page) -> None:
    root = page.show(Playground())
    assert sentence_of(root).endswith("press Start.")
    root.get_by_role("button", name="One step").click()
    assert steps_of(root) == 1
    assert sentence_of(root).startswith("100% of the gradients of layer 1 are zero in FP16, and 0%")


def test_a_loss_scale_holds_from_the_next_step_on(page: Page) -> None:
    root = page.show(Playground())
    step = root.get_by_role("button", name="One step")
    step.click()
    root.get_by_role("radio", name="dynamic").click()
    step.click()
    assert steps_of(root) == 2
    assert "zero" not in sentence_of(root)
    assert page.trait("changes") == {"scaling": "dynamic"}


def do_steps(root: Any, count: int) -> None:
    """Press One step so many times, from the beginning of a run on."""
    for _ in range(count):
        root.get_by_role("button", name="One step").click()
    assert steps_of(root) == count


def test_the_handle_scales_from_the_next_step_on(page: Page) -> None:
    root = page.show(Playground())
    do_steps(root, 1)
    handle = root.get_by_role("slider", name="Loss scale")
    assert handle.get_attribute("aria-valuetext") == "2^0"
    for _ in range(4):
        handle.press("PageUp")
    assert page.trait("changes") == {"scaling": "static", "log2_scale": 20}
    assert root.get_by_role("radio", name="static").is_checked()
    root.get_by_role("button", name="One step").click()
    assert "zero" not in sentence_of(root)


def test_the_handle_is_dragged_along_the_axis(page: Page) -> None:
    root = page.show(Playground("too_high"))
    handle = root.get_by_role("slider", name="Loss scale")
    box = handle.bounding_box()
    step = (box["width"] - 20) / 40
    middle = box["y"] + box["height"] / 2
    mouse = page.page.mouse
    mouse.move(box["x"] + 10 + 36 * step, middle)
    mouse.down()
    mouse.move(box["x"] + 10 + 22 * step, middle, steps=5)
    mouse.up()
    assert page.trait("changes") == {"scaling": "static", "log2_scale": 12}
    do_steps(root, 1)
    assert "skipped" not in sentence_of(root)


def test_the_handle_sets_a_dynamic_scale_back(page: Page) -> None:
    root = page.show(Playground("spirals", "FP16 dynamic"))
    handle = root.get_by_role("slider", name="Loss scale")
    handle.press("End")
    assert handle.get_attribute("aria-valuetext") == "2^30"
    do_steps(root, 2)
    assert handle.get_attribute("aria-valuetext") == "2^28"
    handle.press("ArrowLeft")
    assert handle.get_attribute("aria-valuetext") == "2^27"
    assert page.trait("changes") == {"scaling": "dynamic", "log2_scale": 27}


def test_the_handle_is_on_the_axis_of_exponents(page: Page) -> None:
    root = page.show(Playground())
    picture = root.locator(".pg-layers canvas").bounding_box()
    handle = root.get_by_role("slider", name="Loss scale").bounding_box()
    grown = picture["height"] / 332
    binade = (picture["width"] - 8 * grown) / 62
    assert handle["x"] + 10 == pytest.approx(picture["x"] + 4 * grown + 6 * binade, abs=1)
    assert handle["width"] - 20 == pytest.approx(40 * binade, abs=1)
    middle = handle["y"] + handle["height"] / 2
    assert middle == pytest.approx(picture["y"] + picture["height"] - 47.5 * grown, abs=1)


def test_a_guess_is_settled_by_the_first_step(page: Page) -> None:
    root = page.show(Playground("epsilon"))
    root.get_by_role("radio", name="It learns less").press("Space")
    do_steps(root, 1)
    assert root.get_by_role("radio", name="It learns less").count() == 0
    reply = root.locator(".pg-reply")
    assert reply.inner_text().startswith("Your guess: It learns less. The answer comes at step 5")
    for _ in range(4):
        root.get_by_role("button", name="One step").click()
    text = "You guessed: It learns less. This run shows: The weights become NaN. 1e-8 is zero"
    assert reply.inner_text().startswith(text)


def test_a_right_guess_is_confirmed(page: Page) -> None:
    root = page.show(Playground("epsilon"))
    root.get_by_role("radio", name="The weights become NaN").press("Space")
    do_steps(root, 5)
    text = "You guessed right: The weights become NaN. "
    assert root.locator(".pg-reply").inner_text().startswith(text)


def test_a_turned_knob_ends_the_question(page: Page) -> None:
    root = page.show(Playground())
    do_steps(root, 1)
    root.get_by_role("radio", name="dynamic").click()
    text = "With the first settings: No, nothing appears. "
    assert root.locator(".pg-reply").inner_text().startswith(text)


def test_reset_asks_again(page: Page) -> None:
    root = page.show(Playground("epsilon"))
    do_steps(root, 1)
    root.get_by_role("button", name="Reset").click()
    assert root.get_by_role("radio", name="It learns less").is_visible()


def test_optimizer_state_has_a_format(page: Page) -> None:
    root = page.show(Playground("targets", "FP16 dynamic"))
    root.get_by_label("optimizer state").select_option("E5M2")
    assert page.trait("changes") == {"optimizer": "E5M2"}
    assert "state 1)" in root.locator(".pg-bytes").inner_text()


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
    first = sentence_of(root)
    root.get_by_role("button", name="Reset").click()
    assert steps_of(root) == 0
    step.click()
    assert sentence_of(root) == first


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
    assert words in sentence_of(root)


def test_a_running_scene_does_not_count_for_the_exercise(page: Page) -> None:
    root = page.show(Playground("spirals"))
    root.get_by_role("button", name="Start").click()
    # At the exercise's number of steps, the loss of the spirals has reached its goal.
    page.page.wait_for_function(
        """() => {
          const count = document.querySelector(".pg-count").textContent;
          return Number(count.replace(/\\D/g, "")) >= 300;
        }"""
    )
    root.get_by_label("problem").select_option("targets")
    assert steps_of(root) == 0
    assert root.locator(".pg-best li").count() == 0


def test_it_works_from_the_keyboard_alone(page: Page) -> None:
    root = page.show(Playground("too_high"))
    page.page.keyboard.press("Tab")
    focused = "() => document.activeElement.textContent"
    for _ in range(root.locator("button, input, select, [tabindex]").count()):
        if page.page.evaluate(focused) == "One step":
            break
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


def test_a_best_setting_of_another_page_is_kept(page: Page) -> None:
    # A blank page has no storage.
    page.page.route("**/*", lambda route: route.fulfill(body="", content_type="text/html"))
    page.page.goto("http://lab.test/")
    root = page.show(Playground(scene="targets", preset="FP32"))
    stored = [{"address": "scene=targets&recipe=O3&seed=0", "loss": 1}]
    page.page.evaluate(
        "text => localStorage.setItem('fp16-lab/playground-best', text)", json.dumps(stored)
    )
    root.get_by_role("button", name="Start").click()
    root.locator(".pg-best li").nth(1).wait_for(state="attached")
    texts = root.locator(".pg-best li").all_text_contents()
    assert ["O3" in texts[0], "FP32" in texts[1]] == [True, True]


def test_a_knob_that_is_turned_back_changes_nothing(page: Page) -> None:
    root = page.show(Playground())
    master = root.get_by_label("FP32 master weights")
    for _ in range(2):
        master.press("Space")
    assert page.trait("changes") == {}
    assert "changed" not in root.get_by_label("recipe").inner_text()
