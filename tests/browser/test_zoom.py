"""From a network to the sixteen bits of one gradient, by keyboard and by mouse."""

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

CELL = """
from labkit.amp import RECIPES
from labkit.train import TASKS, TrainingRun
from labkit.widgets import GradientZoom

run, film = TrainingRun(TASKS["unet"], RECIPES["FP32"], measure_every=0), {}
for step in range(3):
    film[step] = run.next_gradients()
    run.take_step()
zoom = GradientZoom(film)
zoom
"""
FIELDS = """[...document.querySelectorAll('.labkit-zoom [data-field] .be-cells')].map(
  (row) => [...row.querySelectorAll('b')].map((bit) => bit.textContent).join(''))"""


def test_one_slider_leads_from_the_network_to_the_bits_and_times_two_moves_the_exponent(lab):
    nb = lab.notebook([CELL], name="zoom", height=800)
    nb.run_all()
    nb.page.wait_for_selector(".labkit-zoom[data-zoom=network]")
    distance = nb.page.get_by_role("slider", name="Zoom")
    distance.focus()
    for theme in ("Light", "Dark"):
        nb.theme(f"JupyterLab {theme}")
        for at in ("network", "layer", "tensor", "gradient"):
            nb.page.wait_for_selector(f".labkit-zoom[data-zoom={at}]")
            nb.screenshot(f"zoom-{at}-{theme}".lower())
            distance.press("ArrowRight")
        distance.press("Home")
    nb.settle()

    distance.press("End")
    nb.page.wait_for_selector(".labkit-zoom .be-bit")
    nb.page.get_by_role("slider", name="Scale").press("End")  # 2^30: no gradient is subnormal there
    nb.until("zoom.log2_scale == 30 and 'Times two, only the exponent' in zoom.sentence or 'inf' in zoom.sentence")
    nb.page.get_by_role("slider", name="Scale").press("Home")
    for _ in range(20):
        nb.page.get_by_role("button", name="× 2").press("Enter")
    nb.until("zoom.log2_scale == 20 and 'only the exponent' in zoom.sentence")
    nb.settle()
    before = nb.page.evaluate(FIELDS)
    nb.page.get_by_role("button", name="× 2").press("Enter")
    nb.until("zoom.log2_scale == 21")
    nb.settle()
    after = nb.page.evaluate(FIELDS)
    assert (after[0], after[2]) == (before[0], before[2])
    assert int(after[1], 2) == int(before[1], 2) + 1

    nb.page.keyboard.press("Escape")
    nb.page.wait_for_selector(".labkit-zoom[data-zoom=tensor]")
    picture = nb.page.locator(".labkit-zoom .gz-stage canvas:visible")
    picture.focus()
    picture.press("ArrowDown")
    picture.press("ArrowRight")
    nb.until("(zoom.row, zoom.column, zoom.zoom) == (1, 1, 2)")
    picture.click(position={"x": 3, "y": 3})
    nb.until("(zoom.row, zoom.column, zoom.zoom) == (0, 0, 3)")
    assert nb.errors == []
    lab.close(nb)
