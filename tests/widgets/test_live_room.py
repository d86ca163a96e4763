"""Eight learners train live on two cores: pictures are left out, steps never."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slowness import slowness

# One process imports everything and trains by itself, with nobody beside; then it forks into eight that train live.
ROOM = """
import json, os, sys, threading
from pathlib import Path
from labkit.amp import RECIPES
from labkit.train import TASKS, train
from labkit.widgets import LiveTraining
recipes, steps = ["FP16", "FP16 static", "FP16 dynamic", "O2"], 40
alone = {r: [s.loss for s in train(TASKS["digits"], RECIPES[r], seed=3, steps=steps).steps] for r in recipes}
def live(place, recipe):
    frames, over = [], threading.Event()
    def take(content, buffers):
        frames.append(content["number"])
        widget.outbox.drawn(content["number"])
        if widget.phase.value in ("finished", "failed"): over.set()
    widget = LiveTraining("digits", recipe, seed=3, steps=steps, device="cpu")
    widget.outbox.send = take
    widget.press("start")
    over.wait()
    losses = [step.loss for step in widget.history]
    place.write_text(json.dumps([recipe, widget.phase.value, losses, alone[recipe], frames]))
children = []
for number in range(8):
    child = os.fork()
    if not child:
        live(Path(sys.argv[1], f"{number}.json"), recipes[number % 4])
        os._exit(0)
    children.append(child)
for child in children: os.waitpid(child, 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it forks a process that has torch")
@pytest.mark.timeout(900 * slowness())
def test_eight_live_trainings_at_once_take_every_step_that_one_takes_which_has_the_machine_for_itself(
    tmp_path: Path,
) -> None:
    subprocess.run([sys.executable, "-c", ROOM, str(tmp_path)], check=True)
    told = [json.loads(path.read_text()) for path in sorted(tmp_path.iterdir())]
    assert len(told) == 8
    for recipe, phase, live, alone, frames in told:
        assert phase == "finished"
        assert len(live) == 40
        assert live == alone, recipe
        assert frames == sorted(set(frames)), "frames come in order, the last one too, however many were left out"
