"""The widgets of lesson 06 in a real JupyterLab, by keyboard and in the accessibility tree."""

import re
from collections import Counter
from functools import partial

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

GAME = "from labkit.widgets import BeatTheScaler\ngame = BeatTheScaler(steps=30, pace=1000)\ngame"


def test_a_game_by_keyboard_hides_the_window_until_it_is_over(lab):
    with lab.shown([GAME], ".labkit-beat-scaler[data-phase=idle]", height=1400) as notebook:
        game = notebook.widget("beat-scaler")
        # The pixels of the window, whose parts are transparent.
        marks = partial(notebook.pixels, "beat-scaler", tolerance=60)
        game.get_by_role("button", name="Start").focus()
        notebook.press("Enter")
        notebook.until_data("beat-scaler", "d.step >= 2")
        notebook.press("ArrowUp", "ArrowUp", "ArrowDown")
        notebook.until_data("beat-scaler", "d.scale === '17'")
        notebook.page.evaluate("document.activeElement.blur()")
        game.focus()
        notebook.press("Space")
        notebook.until_data("beat-scaler", "d.phase === 'paused'")
        assert game.get_attribute("data-told") == "false"
        assert marks("overflowed") == 0
        assert marks("underflowed") == 0
        assert notebook.sentence("beat-scaler").startswith("Paused at step")
        notebook.press("PageDown", "Space")
        notebook.until_data("beat-scaler", "d.phase === 'finished'")
        assert game.get_attribute("data-scale") == "13"
        scales = notebook.python("{step.scale for step in game.duel.yours.steps}")
        assert scales <= {2.0**13, 2.0**16, 2.0**17, 2.0**18}
        assert marks("overflowed") > 20
        assert marks("underflowed") > 20
        assert notebook.sentence("beat-scaler") == notebook.python("game.sentence")


IMPORTS = """
from labkit.amp import RECIPES
from labkit.train import TASKS, TrainingRun, gradient_snapshot
from labkit.widgets import *
"""
CELLS = {
    "predict": "predict('scaling.lost')",
    "underflow": "UnderflowHistogram(gradient_snapshot(TrainingRun(TASKS['segmentation_small'], "
    "RECIPES['FP16'])))",
    "scaler-timeline": "ScalerTimeline(growth_interval=20)",
    "scaler-presets": "ScalerPresets()",
    "live": "LiveTraining(TASKS['digits'], RECIPES['FP16'], steps=200, device='cpu')",
    "beat-scaler": "BeatTheScaler(steps=30)",
    "training-bar": "TrainingBar(TASKS['digits'], RECIPES['FP16'], steps=200, device='cpu')",
}
# Roles of controls.
CONTROLS = {
    "button",
    "slider",
    "radio",
    "checkbox",
    "switch",
    "combobox",
    "textbox",
    "link",
    "DisclosureTriangle",
}
REGIONS = {"group", "radiogroup", "region", "form", "table"}
# Kind of widget -> roles with the beginnings of names, in the order in which a screen reader reads
# them.
ORDER = {
    "predict": ["radiogroup Choices", "button Commit"],
    "underflow": [
        "status",
        "slider Loss scale",
        "image How many activation gradients",
        "radiogroup Layer",
    ],
    "scaler-timeline": ["slider growth_interval", "status", "image The loss scale of each step"],
    "scaler-presets": [
        "radiogroup Scalers",
        "table",
        "status",
        "slider Lens from step",
        "image A few steps",
    ],
    "live": [
        "button Start",
        "radiogroup Loss scaling",
        "switch",
        "status",
        "image Loss and loss scale",
        "image How many gradients",
    ],
    "beat-scaler": ["button Start", "slider Your scale", "status", "image Your loss scale"],
    "training-bar": ["button Start", "progressbar Steps done", "status"],
}
# Notes each announcement of a widget in window.news.
COUNT_NEWS = """(kind) => {
  window.news = [];
  const live = ":is([role=status], [role=alert], [aria-live])";
  for (const region of document.querySelectorAll(`.labkit-${kind} ${live}`)) {
    const heard = new MutationObserver(() => window.news.push(region.textContent));
    heard.observe(region, { childList: true, characterData: true, subtree: true });
  }
}"""


@pytest.fixture(scope="module")
def page(lab):
    """The page of a notebook with all widgets of CELLS."""
    selectors = [f".labkit-{kind}" for kind in CELLS]
    with lab.shown([IMPORTS, *CELLS.values()], *selectors, height=1600) as notebook:
        notebook.page.wait_for_function(
            "[...document.querySelectorAll('.labkit[data-phase]')].every((e) => e.dataset.phase)"
        )
        yield notebook.page


def accessible_nodes(page, kind):
    """Return the nodes of a widget in the accessibility tree, in order, as (role, name)."""
    session = page.context.new_cdp_session(page)
    session.send("Accessibility.enable")
    document = session.send("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
    query = {"nodeId": document, "selector": f".labkit-{kind}"}
    root = session.send("DOM.querySelector", query)["nodeId"]
    backend = session.send("DOM.describeNode", {"nodeId": root})["node"]["backendNodeId"]
    nodes = {node["nodeId"]: node for node in session.send("Accessibility.getFullAXTree")["nodes"]}
    session.detach()
    start = next(node for node in nodes.values() if node.get("backendDOMNodeId") == backend)

    def in_order(node):
        if not node["ignored"]:
            role = node["role"]["value"].replace("img", "image")
            yield role, node.get("name", {}).get("value", "").strip()
        for child in node.get("childIds", []):
            if child in nodes:
                yield from in_order(nodes[child])

    return list(in_order(start))


@pytest.mark.parametrize("kind", CELLS)
def test_every_control_and_picture_has_a_name(page, kind):
    named = CONTROLS | {"image", "progressbar"}
    nodes = accessible_nodes(page, kind)
    assert [role for role, name in nodes if role in named and not name] == []


@pytest.mark.parametrize("kind", CELLS)
def test_every_region_has_a_name_of_its_own(page, kind):
    regions = [(role, name) for role, name in accessible_nodes(page, kind) if role in REGIONS]
    assert [region for region, count in Counter(regions).items() if count > 1] == []
    # The caption of a table is its name, if it has one.
    assert [role for role, name in regions if role != "table" and not name] == []


@pytest.mark.parametrize("kind", CELLS)
def test_a_screen_reader_reads_a_widget_in_order(page, kind):
    # An iterator, so that each search continues where the one before has ended.
    nodes = iter([f"{role} {name}" for role, name in accessible_nodes(page, kind)])
    missing = [start for start in ORDER[kind] if not any(re.match(start, node) for node in nodes)]
    assert missing == []


@pytest.mark.parametrize("kind", ["live", "beat-scaler", "training-bar"])
def test_training_is_announced_at_its_start_and_end_only(page, kind):
    page.evaluate(COUNT_NEWS, kind)
    page.locator(f".labkit-{kind} button:has-text('Start')").click()
    page.wait_for_selector(f".labkit-{kind}[data-phase=finished]")
    page.wait_for_function("news.some((text) => /[Ff]inished|useful|kept/.test(text))")
    news = page.evaluate("news.filter(Boolean)")
    assert len(news) <= 3, news
