"""How does a learner's own GPU come into the figures? A button, a bar, and the pictures that it fills.

Idea: `labkit gpu --quick` runs in a process of its own (`BackgroundProcess`), so the kernel stays free; its lines move
the bar, and what it keeps in the data folder is drawn, part by part.

Invariant: one measurement at a time for each button; where there is no GPU the button is disabled and says why.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import traitlets

from labkit.train import Place, place
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.gpu_run import figure, words
from labkit.widgets.gpu_run.process import BackgroundProcess

COMMAND = (sys.executable, "-m", "labkit", "gpu", "--quick")
LINES_KEPT = 200


class GpuRun(LabWidget):
    """Measures this machine's GPU in three minutes, and shows what it turned out to do.

    Args:
        where: what is measured; None takes the GPU, and where there is none the button is disabled.
        command: what measures it; None is `labkit gpu --quick`.
    """

    _esm = script("gpu_run")
    _css = style("gpu_run")
    phase = traitlets.Unicode("ready").tag(sync=True)  # no gpu, ready, running, done, stopped, failed
    part = traitlets.Int(0).tag(sync=True)  # which part runs, from 1
    parts = traitlets.Int(1).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    printed = traitlets.Unicode().tag(sync=True)  # what the command said, its last lines
    pictures = traitlets.List(traitlets.Dict()).tag(sync=True)  # src and alt of each
    paces = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(self, where: Place | None = None, *, command: Sequence[str] | None = None) -> None:
        self.where = where or place()
        self._command = tuple(command or COMMAND)
        self._process: BackgroundProcess | None = None
        self._stopped = False
        self._lines: list[str] = []
        super().__init__()
        if self.where.emulated:
            self.phase, self.sentence = "no gpu", words.no_gpu()
        else:
            self.sentence = words.ready(self.where)
            self._draw()
        self.on_msg(self._on_message)

    def start(self) -> None:
        """Begin to measure; while it runs, and where there is no GPU, this does nothing."""
        with self._turn:
            if self.phase in ("running", "no gpu"):
                return
            self._lines, self._stopped = [], False
            self.part, self.printed = 0, ""
            self.phase, self.sentence = "running", "It begins: torch is loaded."
            try:
                self._process = BackgroundProcess(self._command, self._on_line, self._on_end)
            except OSError as error:
                self.phase, self.sentence = "failed", f"It could not be started: {error}"

    def stop(self) -> None:
        """End the measurement; what it has kept by then is drawn."""
        if self._process is not None and self._process.running:
            self._stopped = True
            self._process.stop()

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait for the end of a measurement and return the sentence that says how it ended."""
        if self._process is not None:
            self._process.wait(timeout_s)
        return str(self.sentence)

    def close(self) -> None:
        """End the measurement with the widget."""
        self.stop()
        super().close()

    def _on_message(self, _: object, content: dict[str, Any], __: object) -> None:
        if content.get("do") == "start":
            self.start()
        elif content.get("do") == "stop":
            self.stop()

    def _on_line(self, line: str) -> None:
        self._lines = [*self._lines, line][-LINES_KEPT:]
        self.printed = "\n".join(self._lines)
        begun = words.beginning(line)
        if begun is not None:
            self.part, self.parts, self.sentence = begun.number, begun.of, str(begun)
            self._draw()  # what the part before it has kept

    def _on_end(self, status: int) -> None:
        self.sentence = words.ended(self.where, status, self._lines, stopped=self._stopped)
        self._draw()
        self.phase = "stopped" if self._stopped else "failed" if status else "done"

    def _draw(self) -> None:
        try:
            self.pictures, self.paces = figure.pictures(self.where), figure.paces(self.where)
        except (OSError, ValueError, KeyError) as error:  # a record that was damaged: the others' cells say so, too
            self.sentence = f"{self.sentence} What was measured could not be drawn: {error}"

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        return still(self.sentence, "(Widgets do not run here: `labkit gpu --quick` in a terminal does the same.)")
