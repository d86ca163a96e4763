"""Recorder of a watched training: it keeps sketches of each sampled step for a recording.

Idea: a watch counts all tensors of a sampled step anyway; the recorder gets the same tensors and
keeps a sketch of each. The memory of all sketches is bounded: the least important steps lose their
drawn elements first, and are dropped later.

Invariants: the training is bit for bit the same as without the recorder. A failure of the recorder
is reported, and the training continues.
"""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from labkit.instrument.events import OptimizerLike
from labkit.instrument.histogram import ExponentHistogram
from labkit.instrument.recording import (
    MOST_SKETCHES,
    Digests,
    Key,
    RecordedStep,
    Recording,
    importance,
)
from labkit.instrument.sample import floats, local_part
from labkit.instrument.sketch import NO_ELEMENTS, Measured, Sketch, measured, places
from labkit.instrument.user_code import INSTRUMENT, line_of_user
from labkit.records import arithmetic_settings, device_name, versions

# tensors of one kind and layer in a step: a layer may be called several times, or return several
MOST_OF_LAYER = 4
# calls of the model in one step whose batch is recorded
MOST_CALLS = 16
# drawn elements in memory, in all steps together
MOST_ELEMENTS = 1 << 23
# sketches in memory, in all steps together; a file holds no more, either
MOST_TENSORS = MOST_SKETCHES
# parameter groups of an optimizer whose settings are recorded
MOST_GROUPS = 4
# bytes: the digest of a larger batch, or of one on a GPU, covers drawn elements only
SMALL_BATCH = 1 << 18


class SketchedStep:
    """The sketches of the sampled step that is running.

    Attributes:
        lines: layer -> file and line of the user's code that called it first; shared by all steps.
        tensors: (kind, name) -> sketch, or the numbers that a sketch is made of.
        losses: unscaled losses, one for each backward pass.
        batch: digests of the inputs, one for each call of the model.
        random: checksum of the state of torch's generator at the first call.
        running: the model is being called.
    """

    def __init__(self, step: int, lines: dict[str, str]) -> None:
        self.step = step
        self.lines = lines
        self.tensors: dict[Key, Measured | Sketch] = {}
        self.losses: list[float] = []
        self.batch: list[Digests] = []
        self.random = 0
        self.running = False
        # (kind, layer) -> number of tensors so far
        self._numbers: dict[Key, int] = defaultdict(int)

    def add(self, kind: str, layer: str, tensor: Tensor, scale: float = 1.0) -> float:
        """Keep the sketch of tensor / scale, and return the norm of the tensor.

        It replaces an earlier sketch of the same kind and layer.
        """
        numbers = measured(tensor, scale)
        self.tensors[kind, layer] = numbers
        return numbers.norm

    def add_output(self, layer: str, tensor: Tensor) -> None:
        """Keep the sketch of a tensor that a layer returned.

        From the second tensor of a layer on, the name of the sketch has a number.
        """
        # A layer that is called without gradients, and not by the model, is not part of the
        # training.
        if not (self.running or torch.is_grad_enabled()):
            return
        number = self._numbers["activations", layer]
        self._numbers["activations", layer] += 1
        if layer not in self.lines:
            self.lines[layer] = _line_of_caller()
        self._add_numbered("activations", layer, number, tensor)

    def add_arrived(self, layer: str, number: int, gradient: Tensor, scale: float) -> None:
        """Keep the sketch of the gradient that arrived at a layer's output of that number."""
        self._add_numbered("activation gradients", layer, number, gradient, scale)

    def _add_numbered(
        self, kind: str, layer: str, number: int, tensor: Tensor, scale: float = 1.0
    ) -> None:
        if number < MOST_OF_LAYER:
            name = f"{layer} #{number + 1}" if number else layer
            self.tensors[kind, name] = measured(tensor, scale)

    def drop_elements(self) -> None:
        """Discard the drawn elements, to save memory."""
        # the sketch is made first: its projection and digest depend on the elements
        self.tensors = {
            key: replace(_as_sketch(each), elements=NO_ELEMENTS)
            for key, each in self.tensors.items()
        }

    def forget(self, kind: str) -> None:
        """Discard the sketches of a kind."""
        self.tensors = {key: each for key, each in self.tensors.items() if key[0] != kind}

    def called(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record the batch of a call of the model, and the state of the random generator."""
        if not self.batch:
            self.random = zlib.crc32(torch.get_rng_state().numpy().tobytes())
        if len(self.batch) >= MOST_CALLS:
            return
        leaves = tree_leaves((args, kwargs))
        self.batch.append(digests(leaves))
        for leaf in floats(leaves):
            number = self._numbers["inputs", ""]
            self._numbers["inputs", ""] += 1
            self._add_numbered("inputs", "input", number, leaf)


@dataclass(frozen=True)
class _FinishedStep:
    """A sampled step that is over; its sketches are computed when the recording is written."""

    sketched: SketchedStep
    scale: float
    counts: Mapping[str, Mapping[str, ExponentHistogram]]

    def recorded(self) -> RecordedStep:
        histograms = {}
        for kind, of_kind in self.counts.items():
            for layer, histogram in of_kind.items():
                histograms[kind, layer] = histogram
        step = self.sketched
        return RecordedStep(
            step=step.step,
            scale=self.scale,
            loss=sum(step.losses) if step.losses else None,
            batch=tuple(step.batch),
            random=step.random,
            backward=len(step.losses),
            sketches={key: _as_sketch(each) for key, each in step.tensors.items()},
            histograms=histograms,
        )


class Recorder:
    """The steps of a recording, and the path of its file.

    Attributes:
        layers: layer -> its class.
        settings: name -> value of what can change the numbers of a run.
        written: path of the file once it is written, else None.
    """

    def __init__(self, path: Path, every: int) -> None:
        self.path = path
        self.every = every
        self.layers: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.written: Path | None = None
        self._lines: dict[str, str] = {}
        # number of the sampled step -> the step
        self._steps: dict[int, _FinishedStep] = {}
        self._sampled = 0
        # in memory, in all steps together
        self._tensors = 0
        self._elements = 0

    def begin(self, step: int) -> SketchedStep:
        """Return the sketches of a sampled step that begins."""
        return SketchedStep(step, self._lines)

    def observe_model(self, layers: Mapping[str, str], parameter: Tensor) -> None:
        """Record the layers of the model, and the settings of its device that change numbers.

        Args:
            layers: layer -> its class.
            parameter: any parameter of the model, which names the device.
        """
        self.layers = dict(layers)
        device = parameter.device
        self.settings["device"] = device_name(device)
        self.settings |= versions(device)
        self.settings |= arithmetic_settings(device)
        self.settings["threads"] = str(torch.get_num_threads())
        self.settings["default dtype"] = str(torch.get_default_dtype()).removeprefix("torch.")

    def observe_optimizer(self, optimizer: OptimizerLike) -> None:
        """Record the settings of an optimizer and the seed, when the optimizer first steps."""
        self.settings.setdefault("seed", str(torch.initial_seed()))
        name = type(optimizer).__name__
        for number, group in enumerate(optimizer.param_groups[:MOST_GROUPS]):
            title = f"{name} group {number}" if number else name
            for key, value in group.items():
                if key != "params" and isinstance(value, int | float | tuple | str):
                    self.settings.setdefault(f"{title} {key}", str(value))

    def end(
        self,
        sketched: SketchedStep,
        scale: float,
        counts: Mapping[str, Mapping[str, ExponentHistogram]],
    ) -> None:
        """Keep a sampled step that is over, and stay within the limits of memory.

        Args:
            sketched: its sketches.
            scale: the scale of its loss.
            counts: kind -> layer -> histogram.
        """
        self._steps[self._sampled] = _FinishedStep(sketched, scale, counts)
        self._sampled += 1
        self._tensors += len(sketched.tensors)
        self._elements += _elements_in(sketched)
        self._limit_elements()
        while self._tensors > MOST_TENSORS and len(self._steps) > 1:
            # the sort key of the least important step is the largest
            dropped = self._steps.pop(max(self._steps, key=importance)).sketched
            self._tensors -= len(dropped.tensors)
            self._elements -= _elements_in(dropped)

    def _limit_elements(self) -> None:
        """Discard drawn elements of the least important steps until the rest fits into memory."""
        if self._elements <= MOST_ELEMENTS:
            return
        for index in sorted(self._steps, key=importance, reverse=True):
            sketched = self._steps[index].sketched
            elements = _elements_in(sketched)
            if elements == 0:
                continue
            sketched.drop_elements()
            self._elements -= elements
            if self._elements <= MOST_ELEMENTS:
                return

    def recording(
        self, model: str, steps: int, skipped: int, lines: Mapping[str, str], unseen: Iterable[str]
    ) -> Recording:
        """Return what was recorded so far.

        Args:
            model: class of the model.
            steps: number of steps, skipped ones included.
            skipped: number of steps that a scaler did not take.
            lines: "backward" or "step" -> file and line of the user's code that called it.
            unseen: what could not be recorded, and why.
        """
        all_lines = {layer: line for layer, line in self._lines.items() if line}
        all_lines.update(lines)
        return Recording(
            model=model,
            steps=steps,
            every=self.every,
            sampled=tuple(self._steps[index].recorded() for index in sorted(self._steps)),
            layers=self.layers,
            lines=all_lines,
            skipped=skipped,
            settings=self.settings,
            unseen=tuple(unseen),
        )


def _as_sketch(tensor: Measured | Sketch) -> Sketch:
    if isinstance(tensor, Sketch):
        return tensor
    return tensor.sketch()


def _elements_in(step: SketchedStep) -> int:
    return sum(len(each.elements) for each in step.tensors.values())


def _line_of_caller() -> str:
    """Return the line of the user's code that called the layer whose hook is running; or ""."""
    frame: FrameType | None = sys._getframe(1)
    # the frames of the hook itself
    while frame is not None and frame.f_code.co_filename.startswith(INSTRUMENT):
        frame = frame.f_back
    if frame is None:
        return ""
    return line_of_user(frame) or ""


def digests(leaves: Iterable[object]) -> Digests:
    """Return two digests of a batch: one depends on the order of its elements, the other does not.

    Args:
        leaves: the arguments of the model; only dense tensors count.

    >>> one, other = torch.tensor([1, 2]), torch.tensor([2, 1])
    >>> digests([one])[0] == digests([other])[0], digests([one])[1] == digests([other])[1]
    (False, True)
    """
    ordered = 0
    any_order = 0
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or not leaf.numel():
            continue
        tensor = local_part(leaf).resolve_conj().resolve_neg().contiguous()
        # a scalar has no dimension that could hold its bytes
        content = tensor.reshape(-1).view(torch.uint8)
        # words of an element's size (of 4 bytes in larger elements), so that a sum over them stays
        # the same if whole elements change places
        if tensor.itemsize == 1:
            words = content
        elif tensor.itemsize == 2:
            words = content.view(torch.int16)
        else:
            words = content.view(torch.int32)
        any_order += int(words.sum(dtype=torch.int64)) + tensor.numel()
        if content.numel() > SMALL_BATCH or not content.is_cpu:
            at = torch.from_numpy(places(words.numel())).to(words.device)
            content = words[at].cpu().view(torch.uint8)
        ordered = zlib.crc32(content.numpy().tobytes(), ordered)
        ordered = zlib.crc32(str(tuple(tensor.shape)).encode(), ordered)
    # 32 bits, as a CRC has
    return ordered, any_order & 0xFFFFFFFF
