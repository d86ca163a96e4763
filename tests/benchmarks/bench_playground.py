"""Speed of the playground in Chromium: steps, answers to a key, and the first frame of its file.

    .venv/bin/python -m tests.benchmarks.bench_playground [--seconds 3]

For each problem, steps a second of both twins together: in the page, which trains in slices of time
between its frames and draws; in the page without drawing; and in a worker of the same page, which
is what a worker could give at most. Beside them the same pair of steps by `Engine` on the CPU, one
thread. Then the time from a key on the handle of the loss scale to the end of the next frame, while
it trains, and from the file's opening to its first frame. Aims: 60 steps a second on spirals and
digits, 20 on the picture; the next frame; one second.
"""

import itertools
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import Engine
from labkit.site import write_playground
from labkit.widgets.base.joining import in_order, joined
from tests.benchmarks.measuring import options
from tests.browser import chromium

LOOP = """(name, seconds) => {
  const recipe = RECIPE_PRESETS["FP16 static"];
  const training = newTraining(PROBLEMS[name](), recipe, 0);
  const twin = twinOf(training);
  // In its first steps the browser compiles the script.
  for (let i = 0; i < 20; i++) { trainStep(training); trainStep(twin); }
  const begun = performance.now();
  const end = begun + 1000 * seconds;
  let steps = 0;
  while (performance.now() < end) { trainStep(training); trainStep(twin); steps += 1; }
  return (1000 * steps) / (performance.now() - begun);
}"""
IN_WORKER = """([script, name, seconds]) => new Promise((done) => {
  const source = `${script}\\npostMessage((LOOP)("${name}", ${seconds}))`;
  const worker = new Worker(URL.createObjectURL(new Blob([source])));
  worker.onmessage = ({ data }) => { worker.terminate(); done(data); };
})"""
IN_PAGE = (
    "([script, name, seconds]) => (0, eval)(`(() => {${script}\\nreturn (LOOP)})()`)(name, seconds)"
)
COUNT = "() => Number(document.querySelector('.pg-count').textContent.replace(/\\D/g, ''))"
KEYS = """async (times) => {
  const handle = document.querySelector(".pg-handle input");
  handle.focus();
  const found = [];
  for (let i = 0; i < times; i++) {
    await new Promise((done) => setTimeout(done, 37 + (i % 5)));
    const begun = performance.now();
    handle.value = String(10 + (i % 2));
    handle.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((done) => requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = done;
      channel.port2.postMessage(null);
    }));
    found.push(performance.now() - begun);
  }
  return found;
}"""
FIRST = """() => new Promise((done) => {
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      if (entry.name === "first-contentful-paint") done(entry.startTime);
    }
  }).observe({ type: "paint", buffered: true });
})"""
# Problem -> widths of the network, activation, and samples in a step. The times of torch do not
# depend on the numbers, so the inputs are random.
NETWORKS: dict[str, tuple[list[int], Callable[[], nn.Module], int]] = {
    "spirals": ([2, 32, 32, 2], nn.Tanh, 256),
    "digits": ([64, 32, 32, 10], nn.ReLU, 64),
    "picture": ([16, 48, 48, 1], nn.Tanh, 128),
    "targets": ([8, 16, 16, 1], nn.Tanh, 1000),
}


def engine_steps(name: str, seconds: float) -> float:
    """Return the pairs of steps a second of `Engine`: FP16 with a static scale, and FP32."""
    sizes, activation, samples = NETWORKS[name]
    inputs = torch.randn(samples, sizes[0])
    labels = torch.randint(sizes[-1], (samples,))

    def stepper(recipe: str) -> Callable[[], None]:
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), activation()]
        engine = Engine(nn.Sequential(*layers[:-1]), lambda w: torch.optim.Adam(w, 0.001), recipe)

        def step() -> None:
            engine.zero_grad()
            with engine.forward():
                out = engine(inputs)
                if sizes[-1] == 1:
                    loss = out.float().square().mean()
                else:
                    loss = F.cross_entropy(out.float(), labels)
            engine.backward(loss)
            engine.step()

        return step

    both = [stepper("FP16 static"), stepper("FP32")]
    for step in both * 5:
        step()
    count = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for step in both:
            step()
        count += 1
    return count / (time.perf_counter() - begun)


def page_steps(page: Any, seconds: float) -> float:
    """Return how many steps a second the page takes while it draws."""
    page.get_by_role("button", name="Start").click()
    # In its first steps the browser compiles the script.
    page.locator(".pg-count", has_text=re.compile(r"step \d{2}")).wait_for()
    first = page.evaluate(COUNT)
    begun = time.perf_counter()
    page.wait_for_timeout(1000 * seconds)
    last = page.evaluate(COUNT)
    end = time.perf_counter()
    page.get_by_role("button", name="Pause").click()
    return float((last - first) / (end - begun))


def print_steps(browser: Any, file: Path, script: str, problem: str, seconds: float) -> None:
    """Print the steps a second of a problem: in the page, without drawing, in a worker, by Engine.

    Args:
        browser: Chromium.
        file: The playground as one file.
        script: The joined modules that train.
        problem: A key of NETWORKS.
        seconds: The time of each measurement.
    """
    with page_in(browser) as blank:
        arguments = [script, problem, seconds]
        undrawn = blank.evaluate(IN_PAGE.replace("LOOP", LOOP), arguments)
        worker = blank.evaluate(IN_WORKER.replace("LOOP", LOOP.replace("`", "")), arguments)
    with page_in(browser, f"file://{file}#scene={problem}&recipe=FP16+static") as page:
        drawn = page_steps(page, seconds)
    engine = engine_steps(problem, seconds)
    print(
        f"{problem:10} page {drawn:5.0f} steps/s   without drawing {undrawn:5.0f}   "
        f"worker {worker:5.0f} ({worker / drawn:.2f} times the page)   "
        f"Engine {engine:5.0f} (page: {drawn / engine:.2f} times)",
        flush=True,
    )


def print_waits(browser: Any, file: Path) -> None:
    """Print the time from a key on the handle of the scale to the end of the next frame."""
    with page_in(browser, f"file://{file}#scene=digits") as page:
        page.get_by_role("button", name="Start").click()
        waits = page.evaluate(KEYS, 40)
    print(
        f"key to the end of the next frame: median {statistics.median(waits):.0f} ms, "
        f"largest {max(waits):.0f} ms"
    )


def print_first_frames(browser: Any, file: Path) -> None:
    """Print the time from the opening of the file to its first frame."""
    firsts = []
    for _ in range(5):
        with page_in(browser, f"file://{file}") as page:
            firsts.append(page.evaluate(FIRST))
    print(
        f"file opened to first frame: median {statistics.median(firsts):.0f} ms, "
        f"largest {max(firsts):.0f} ms"
    )


@contextmanager
def page_in(browser: Any, address: str = "about:blank") -> Iterator[Any]:
    """Open a page, and close it at the end of the block."""
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    try:
        page.goto(address)
        yield page
    finally:
        page.close()


def main() -> None:
    chosen = options(__doc__ or "", seconds=3.0)
    script = joined(in_order(["playground/trainer.js", "playground/problems.js"]))
    with chromium.running() as browser, tempfile.TemporaryDirectory() as folder:
        file = write_playground(Path(folder) / "playground.html")
        print(f"{file.stat().st_size / 1000:.0f} kB, Chromium {browser.version}")
        for problem in NETWORKS:
            print_steps(browser, file, script, problem, chosen.seconds)
        print_waits(browser, file)
        print_first_frames(browser, file)


if __name__ == "__main__":
    main()
