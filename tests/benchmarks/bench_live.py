"""Speed of a live training in JupyterLab: its frames, and the time from a key to new pixels.

    .venv/bin/python -m tests.benchmarks.bench_live [--seconds 5] [--keys 25]

The frames that the widget draws are a share of those that the page shows meanwhile. A key moves the
handle of the loss scale; the same key moves an ipywidgets slider whose callback draws the same bars
with matplotlib, in the same page and kernel. Both times end with the frame of the page in which the
pixels are others. Without a browser nothing is measured.
"""

import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.measuring import options
from tests.browser import chromium
from tests.browser.conftest import Lab, Notebook, serving

LIVE = """
from labkit.amp import RECIPES
from labkit.train import TASKS
from labkit.widgets import LiveTraining

live = LiveTraining(TASKS["painted_picture"], RECIPES["FP16 static"], seed=0)
live
"""
PLAIN = """
import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
from labkit.instrument import merge

taken = live.forked_run.run.run.exponents
together = merge(taken.layers.values())
exponents = together.lo + np.arange(len(together.counts))

def draw(scale):
    plt.figure(figsize=(6, 3))
    plt.bar(exponents + scale, together.counts)
    plt.axvspan(-40, -25, alpha=0.2)
    plt.xlim(-40, 20)
    plt.show()

ipywidgets.interact(draw, scale=ipywidgets.IntSlider(10, 0, 30))
"""
# Counts the frames that the page shows, and those in which the widget drew another step.
FRAMES = """(seconds) => new Promise((done) => {
  const root = document.querySelector(".labkit-live");
  const end = performance.now() + 1000 * seconds;
  const begin = Number(root.dataset.step);
  let shown = 0;
  let drawn = 0;
  let before = root.dataset.frame;
  const look = () => {
    shown += 1;
    if (root.dataset.frame !== before) drawn += 1;
    before = root.dataset.frame;
    if (performance.now() < end) requestAnimationFrame(look);
    else done({ shown, drawn, steps: Number(root.dataset.step) - begin });
  };
  requestAnimationFrame(look);
})"""
# Milliseconds from the next key to the first frame in which the picture is another one.
UNTIL_PIXELS = """(kind) => {
  const canvas = document.querySelector(".lt-histogram canvas");
  const strip = () => {
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, Math.round(0.6 * height), width, 1);
    return String.fromCharCode(...data);
  };
  const image = () => document.querySelector(".widget-interact .jp-OutputArea img");
  const state = kind === "live" ? strip : () => image()?.complete && image().src;
  const before = state();
  window.passed = new Promise((done) => {
    document.addEventListener("keydown", () => {
      const pressed = performance.now();
      const look = () => {
        const now = state();
        if (now && now !== before) done(performance.now() - pressed);
        else requestAnimationFrame(look);
      };
      requestAnimationFrame(look);
    }, { capture: true, once: true });
  });
}"""
SLIDERS = {
    "live": ".lt-handle input",
    "plain": ".widget-interact .noUi-handle",
}


def run_cell(notebook: Notebook, index: int, shown: str) -> None:
    """Run a cell and wait until the page shows what it has made."""
    page: Any = notebook.page
    page.evaluate("i => (jupyterapp.shell.currentWidget.content.activeCellIndex = i)", index)
    page.evaluate("jupyterapp.commands.execute('notebook:run-cell')")
    page.wait_for_selector(shown)


def key_to_pixels(notebook: Notebook, kind: str, key: str) -> float:
    """Return the milliseconds from a key on a slider to the next picture."""
    page: Any = notebook.page
    page.locator(SLIDERS[kind]).focus()
    page.evaluate(UNTIL_PIXELS, kind)
    page.keyboard.press(key)
    passed = float(page.evaluate("window.passed"))
    notebook.settle()
    return passed


def measure(notebook: Notebook, seconds: float, keys: int) -> None:
    """Print both measurements of an open notebook whose cells have run."""
    page: Any = notebook.page
    root = page.locator(".labkit-live")
    root.get_by_role("button", name="Start", exact=True).click()
    notebook.until_data("live", "Number(d.step) > 20")
    frames = page.evaluate(FRAMES, seconds)
    root.get_by_role("button", name="Pause", exact=True).click()
    notebook.until_data("live", "d.phase === 'paused'")
    share = frames["drawn"] / frames["shown"]
    print(
        f"while it trains                {frames['steps'] / seconds:.0f} steps a second, "
        f"{frames['drawn'] / seconds:.1f} frames a second: {share:.2f} of the page's"
    )
    run_cell(notebook, 1, ".widget-interact .jp-OutputArea img")
    taken: dict[str, list[float]] = {"live": [], "plain": []}
    for turn in range(keys + 1):
        for kind in random.sample(sorted(taken), 2):
            passed = key_to_pixels(notebook, kind, ("ArrowRight", "ArrowLeft")[turn % 2])
            # The first turn fills caches, and is not counted.
            if turn:
                taken[kind].append(passed)
    ours, theirs = (statistics.median(taken[kind]) for kind in ("live", "plain"))
    print(
        f"from a key to pixels           live {ours:.1f} ms, times that:   "
        f"ipywidgets and matplotlib {theirs / ours:.2f}"
    )


def main() -> None:
    chosen = options(__doc__ or "", seconds=5.0, keys=25)
    if chromium.find() is None:
        print(f"not measured: {chromium.WHERE_TO_GET_ONE}")
        return
    with (
        tempfile.TemporaryDirectory() as home,
        serving(Path(home)) as server,
        chromium.running() as browser,
    ):
        lab = Lab(server, browser)
        notebook = lab.notebook([LIVE, PLAIN], width=1280, height=900)
        run_cell(notebook, 0, ".labkit-live[data-phase=idle]")
        measure(notebook, chosen.seconds, chosen.keys)
        lab.close(notebook)


if __name__ == "__main__":
    main()
