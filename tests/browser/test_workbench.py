"""The workbench in a real JupyterLab: a learner forks a live run, turns a knob, and sees two curves."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(180)]

CELL = "from labkit.widgets import Workbench\nbench = Workbench('segmentation_small', 'FP16 static', steps=60)\nbench"


class Bench:
    """The widget on the page, as a learner and a test see it."""

    def __init__(self, notebook):
        self.notebook, self.page = notebook, notebook.page
        self.root = self.page.locator(".labkit-workbench").first

    def press(self, name):
        self.root.get_by_role("button", name=name, exact=True).click()

    def choose(self, knob, position):
        self.root.locator(f"[data-knob={knob}] .lk-segment", has_text=position).click()

    def data(self):
        return self.root.evaluate("root => ({...root.dataset})")

    def until(self, condition):
        self.notebook.until_data("workbench", condition)

    def blue(self):
        return self.notebook.pixels("workbench", "fp16", 0.2, 0.9, 0.45)

    def sentence(self):
        return self.notebook.said("workbench")


@pytest.fixture(scope="module")
def bench(lab):
    with lab.shown([CELL], name="workbench", height=1300) as notebook:
        yield Bench(notebook)


def test_a_learner_forks_a_live_run_and_sees_two_curves_part(bench):
    bench.until("d.phase === 'idle'")
    bench.press("Start")
    bench.until("d.step >= 30")
    bench.press("Pause")
    bench.until("d.phase === 'paused'")
    one_curve = bench.blue()

    slider = bench.root.get_by_label("Fork after step")
    slider.focus()
    bench.page.keyboard.press("Home")
    for _ in range(10):
        bench.page.keyboard.press("ArrowRight")
    bench.press("Fork")
    bench.until("d.active === '1' && d.origin === '10'")
    bench.choose("scaling", "off")
    bench.until("d.answered === 'true'")
    bench.press("Continue")
    bench.until("d.phase === 'finished'")

    end = bench.data()
    assert (int(end["step"]), int(end["fork"]), int(end["origin"])) == (60, 50, 10)
    assert float(end["forkLoss"]) > 1.1 * float(end["loss"])  # without a scale it loses its gradients
    assert bench.blue() > 1.4 * one_curve
    assert "The fork (scaling off) left it after step 10" in bench.sentence()
    run, fork = bench.notebook.python("[[s.loss for s in bench.history], [s.loss for s in bench.forked]]")
    assert run[-1] == pytest.approx(float(end["loss"]), rel=1e-6)
    assert fork[-1] == pytest.approx(float(end["forkLoss"]), rel=1e-6)


def test_a_line_that_opens_the_same_bench_is_copied(bench):
    bench.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    bench.press("Copy a line that opens this")
    bench.root.locator(".wb-export [role=status]:has-text('Copied.')").wait_for()
    copied = bench.page.evaluate("navigator.clipboard.readText()")
    assert copied == bench.root.locator(".wb-open").input_value()
    again = f"__import__('labkit.widgets', fromlist=['Workbench']).{copied}.code"
    assert bench.notebook.python(again) == bench.notebook.python("bench.code")
