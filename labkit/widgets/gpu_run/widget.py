"""A button that measures the learner's own GPU, a bar, and the figures that it fills.

`labkit gpu --quick` runs in a process of its own, whose output is read by a thread, so that the
kernel stays free. The command writes its progress to a file before it prints a line. So the file is
read after each line, which itself is only shown. The records that the command writes to the data
folder become figures, part by part.

Invariant: a button measures once at a time, and shows only records of its device. The process ends
with its kernel, and at `stop`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import traitlets

from labkit.gpu.passport import read_file
from labkit.gpu.progress import DONE, PartProgress, read_progress
from labkit.processes import LineProcess
from labkit.records import recorded_files
from labkit.train import Place, place, throughput_sentence
from labkit.widgets.base.figures import data_url, png, still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.results.gemm import recorded_gemm, roofline_figure, sweep_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES: dict[str, Callable[[], Figure]] = {
    "ceilings": roofline_figure,
    "size": lambda: sweep_figure("size"),
    "bandwidth": lambda: sweep_figure("bandwidth"),
    "alignment": lambda: sweep_figure("alignment"),
}
COMMAND = (sys.executable, "-m", "labkit", "gpu", "--quick")
# The number of printed lines that are shown.
LINES_KEPT = 200


def in_words(part: PartProgress) -> str:
    """Return a sentence on the part of `labkit gpu` that runs.

    >>> in_words(PartProgress("size", 2, 5, "time products of every size and format", 35))
    'Part 2 of 5, 35 s at most: time products of every size and format.'
    """
    return f"Part {part.number} of {part.of}, {part.seconds:.0f} s at most: {part.about}."


def no_gpu() -> str:
    """Return why there is nothing to measure, and what to do; "" if there is a GPU."""
    try:
        place("gpu")
    except ValueError as missing:
        return (
            f"There is nothing to measure: {missing} The figures show a GPU when the lab runs "
            "on a machine with one (a borrowed workstation, a T4 of a free notebook service) "
            "and this button is pressed there, or `labkit gpu --quick` is run in its terminal."
        )
    return ""


def ended(where: Place, status: int, parts: list[PartProgress], *, stopped: bool) -> str:
    """Return a sentence on how a measurement ended.

    Args:
        where: The device.
        status: The exit status of the command.
        parts: The parts that began.
        stopped: Whether it was stopped by `GpuRun.stop`.
    """
    if stopped:
        return f"Stopped. What was measured of {where.name} until then is kept and drawn."
    if status == 0:
        return (
            f"Done: {where.name} is measured. Run the cells below (again) to see it in their "
            "figures."
        )
    failed = [f"{part.name} {part.outcome}" for part in parts if part.outcome not in ("", DONE)]
    missing = "; ".join(failed) or f"it ended with status {status}"
    return (
        f"Not all of it was done: {missing}. What it printed says why; the rest is kept and drawn."
    )


def measured(where: Place) -> dict[str, str]:
    """Return the date of the newest record of each sweep in `FIGURES`, by the sweep's name.

    A sweep whose newest record is of another device is left out.
    """
    dates = {}
    for sweep in FIGURES:
        records = recorded_gemm(sweep, where.device.type)
        if records and records[0].device == where.name:
            dates[sweep] = records[0].date
    return dates


def pictures(where: Place) -> list[dict[str, str]]:
    """Return the figures of this device, in the order of `FIGURES`.

    Each has "src", a PNG as a data URL, and "alt", its description. If too little was measured to
    draw a figure, "src" is "" and "alt" is the reason.
    """
    drawn = []
    for sweep in measured(where):
        try:
            figure = FIGURES[sweep]()
            alt = f"{figure.get_suptitle()} {figure.get_supxlabel()}".replace("\n", " ").strip()
            drawn.append({"src": data_url(png(figure)), "alt": alt})
        except ValueError as too_little:
            drawn.append({"src": "", "alt": f"{sweep} is not drawn: {too_little}"})
    return drawn


def paces(where: Place) -> list[str]:
    """Return a sentence for each task timed on this device: steps a second in FP32 and FP16."""
    sentences = []
    for path in recorded_files(f"checks/{where.slug}/tasks.jsonl").values():
        for line in read_file(path).lines:
            task = line["item"].removeprefix("pace ")
            rates = line.get("steps_per_second")
            if rates:
                sentences.append(f"{task}: {throughput_sentence(rates, where.name)}")
    return sentences


class GpuRun(LabWidget, folder="gpu_run"):
    """Button that measures this machine's GPU in three minutes, with the figures of the result.

    Args:
        where: The device; None for the GPU. Without a GPU the button is disabled.
        command: The command that measures, which is called with `--progress FILE`; None for
            `labkit gpu --quick`.
    """

    # "no gpu", "ready", "running", "done", "stopped" or "failed".
    phase = traitlets.Unicode("ready").tag(sync=True)
    # The number of the part that runs, from 1; 0 before the first one.
    part = traitlets.Int(0).tag(sync=True)
    # The number of all parts.
    parts = traitlets.Int(1).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    # The last lines that the command printed.
    printed = traitlets.Unicode().tag(sync=True)
    # See `pictures`.
    pictures = traitlets.List(traitlets.Dict()).tag(sync=True)
    paces = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(self, where: Place | None = None, *, command: Sequence[str] | None = None) -> None:
        self.where = where or place()
        self._command = tuple(command or COMMAND)
        self._process: LineProcess | None = None
        self._stopped = False
        self._lines: list[str] = []
        # The folder of the file of progress.
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        super().__init__()
        if self.where.emulated:
            self.phase = "no gpu"
            self.sentence = no_gpu()
        else:
            meanwhile = (
                "The kernel stays free meanwhile, but what you train on the same GPU "
                "disturbs the measurement."
            )
            self.sentence = (
                f"Ready to measure {self.where.name}: five parts, 3 minutes at most. {meanwhile}"
            )
            self._draw()
        self.on_msg(self._on_message)

    def start(self) -> None:
        """Begin a measurement. While one runs, and without a GPU, this does nothing."""
        with self._lock:
            if self.phase in ("running", "no gpu"):
                return
            self._lines = []
            self._stopped = False
            self.part = 0
            self.printed = ""
            self.phase = "running"
            self.sentence = "It begins: torch is loaded."
            self._folder = tempfile.TemporaryDirectory(
                prefix="labkit-gpu-", ignore_cleanup_errors=True
            )
            command = (*self._command, "--progress", f"{self._progress}")
            try:
                self._process = LineProcess(command, on_line=self._on_line, on_end=self._on_end)
            except OSError as error:
                self._folder.cleanup()
                self.phase = "failed"
                self.sentence = f"It could not be started: {error}"

    def stop(self) -> None:
        """End the measurement. The records that it has written by then are drawn."""
        if self._process is not None and self._process.running:
            self._stopped = True
            self._process.kill()

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait for the end of a measurement, at most this long, and return the sentence."""
        if self._process is not None:
            self._process.wait(timeout_s)
        return str(self.sentence)

    def close(self) -> None:
        self.stop()
        super().close()

    def _on_message(self, _: object, content: dict[str, Any], __: object) -> None:
        match content.get("do"):
            case "start":
                self.start()
            case "stop":
                self.stop()

    def _on_line(self, printed: bytes) -> None:
        line = printed.decode(errors="replace").rstrip("\r\n")
        self._lines = [*self._lines, line][-LINES_KEPT:]
        self.printed = "\n".join(self._lines)
        self._follow(self._parts())

    def _follow(self, parts: list[PartProgress]) -> None:
        """Show the part that began last, which may have ended before its line was read."""
        if parts and parts[-1].number != self.part:
            self.part = parts[-1].number
            self.parts = parts[-1].of
            self.sentence = in_words(parts[-1])
            # The parts before this one have written their records.
            self._draw()

    def _on_end(self, status: int) -> None:
        parts = self._parts()
        self._follow(parts)
        self.sentence = ended(self.where, status, parts, stopped=self._stopped)
        self._draw()
        if self._folder is not None:
            self._folder.cleanup()
        if self._stopped:
            self.phase = "stopped"
        else:
            self.phase = "failed" if status else "done"

    @property
    def _progress(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "progress.jsonl"

    def _parts(self) -> list[PartProgress]:
        """Return the parts that have begun; none if the file of progress does not exist yet."""
        try:
            return read_progress(self._progress)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as unreadable:
            self.sentence = f"It runs, and how far it is cannot be read: {unreadable}"
            return []

    def _draw(self) -> None:
        try:
            self.pictures = pictures(self.where)
            self.paces = paces(self.where)
        # A record that was damaged.
        except (OSError, ValueError, KeyError) as error:
            self.sentence = f"{self.sentence} What was measured could not be drawn: {error}"

    def still(self) -> dict[str, Any]:
        return still(
            self.sentence,
            "(Widgets do not run here: `labkit gpu --quick` in a terminal does the same.)",
        )
