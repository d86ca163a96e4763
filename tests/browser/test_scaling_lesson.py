"""The widgets of lesson 06 in a real JupyterLab, by keyboard and as a screen reader reads them."""

import re
from collections import Counter
from functools import partial

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(300)]

GAME = "from labkit.widgets import BeatTheScaler\ngame = BeatTheScaler(steps=30, pace=1000)\ngame"


def test_a_game_by_keyboard_hides_the_window_until_it_is_over(lab):
    with lab.shown([GAME], ".labkit-beat-scaler[data-phase=idle]", height=1400) as notebook:
        game = notebook.widget("beat-scaler")
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
        assert all(marks(colour) == 0 for colour in ("overflowed", "underflowed"))
        assert notebook.said("beat-scaler").startswith("Paused at step")
        notebook.press("PageDown", "Space")
        notebook.until_data("beat-scaler", "d.phase === 'finished'")
        assert game.get_attribute("data-scale") == "13"
        assert notebook.python("{step.scale for step in game.duel.yours.steps}") <= {
            2.0**k for k in (13, 16, 17, 18)
        }
        assert all(marks(colour) > 20 for colour in ("overflowed", "underflowed"))
        assert notebook.said("beat-scaler") == notebook.python("game.sentence")


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
ACTED_ON = {
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
ORDER = {  # what is met on the way down, first to last
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
COUNT_NEWS = """(kind) => {
  window.news = [];
  const live = ":is([role=status], [role=alert], [aria-live])";
  for (const region of document.querySelectorAll(`.labkit-${kind} ${live}`)) {
    const heard = new MutationObserver(() => window.news.push(region.textContent));
    heard.observe(region, { childList: true, characterData: true, subtree: true });
  }
}"""


@pytest.fixture(scope="module")
def aloud(lab):
    with lab.shown(
        [IMPORTS, *CELLS.values()], *(f".labkit-{kind}" for kind in CELLS), height=1600
    ) as aloud:
        began = (
            "[...document.querySelectorAll('.labkit[data-phase]')].every((e) => e.dataset.phase)"
        )
        aloud.page.wait_for_function(began)
        yield aloud


def walk(aloud, kind):
    """Return (role, name) of what a screen reader meets in a widget, in its order."""
    session = aloud.page.context.new_cdp_session(aloud.page)
    session.send("Accessibility.enable")
    document = session.send("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
    root = session.send("DOM.querySelector", {"nodeId": document, "selector": f".labkit-{kind}"})[
        "nodeId"
    ]
    backend = session.send("DOM.describeNode", {"nodeId": root})["node"]["backendNodeId"]
    nodes = {node["nodeId"]: node for node in session.send("Accessibility.getFullAXTree")["nodes"]}
    session.detach()
    start = next(node for node in nodes.values() if node.get("backendDOMNodeId") == backend)

    def down(node):
        if not node["ignored"]:
            yield node["role"]["value"], node.get("name", {}).get("value", "").strip()
        for child in node.get("childIds", []):
            if child in nodes:
                yield from down(nodes[child])

    return list(down(start))


@pytest.mark.parametrize("kind", CELLS)
def test_every_control_has_a_name_and_its_place_in_the_order(aloud, kind):
    met = walk(aloud, kind)
    assert [
        role
        for role, name in met
        if role in ACTED_ON | {"image", "img", "progressbar"} and not name
    ] == []
    regions = Counter((role, name) for role, name in met if role in REGIONS)
    assert {region: n for region, n in regions.items() if n > 1} == {}, (
        "no two regions are called alike"
    )
    assert [role for role, name in regions if role != "table" and not name] == []
    walked = iter([f"{role.replace('img', 'image')} {name}" for role, name in met])
    missing = [wanted for wanted in ORDER[kind] if not any(re.match(wanted, one) for one in walked)]
    assert missing == []


@pytest.mark.parametrize("kind", ["live", "beat-scaler", "training-bar"])
def test_training_is_announced_at_its_start_and_end_only(aloud, kind):
    aloud.page.evaluate(COUNT_NEWS, kind)
    aloud.page.locator(f".labkit-{kind} button:has-text('Start')").click()
    aloud.page.wait_for_selector(f".labkit-{kind}[data-phase=finished]")
    aloud.page.wait_for_function("news.some((said) => /[Ff]inished|useful|kept/.test(said))")
    news = aloud.page.evaluate("news.filter(Boolean)")
    assert len(news) <= 3, news
