"""Recorder of a watched training: sketches of each sampled step, and the file that they end in.

Idea: a watch counts all tensors of a sampled step anyway; the recorder gets the same tensors and
keeps a sketch of each. What the steps hold in memory is bounded: the least important ones lose
their drawn elements first, and then are dropped.

Invariants: the training is bit for bit what it is without the recorder. A failure of the recorder
is reported, and the training goes on.
"""

from __future__ import annotations

import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from labkit.instrument.histogram import ExponentHistogram
from labkit.instrument.recording import (
    Digests,
    Key,
    RecordedStep,
    Recording,
    importance,
)
from labkit.instrument.sample import floats
from labkit.instrument.sketch import NO_ELEMENTS, Measured, Sketch, measured, places
from labkit.instrument.user_code import INSTRUMENT, line_of_user
from labkit.records import arithmetic_settings, device_name, versions

MOST_OF_LAYER = 4  # tensors of one kind and layer in a step, as of calls and outputs
MOST_CALLS = 16  # calls of the model in one step whose batch is noted
MOST_ELEMENTS = 1 << 23  # drawn elements in memory
MOST_TENSORS = 1 << 18
MOST_GROUPS = 4  # parameter groups of an optimizer whose settings are noted
SMALL_BATCH = 1 << 18  # bytes of a batch on a CPU that are all in its digest


class SketchedStep:
    """The sketches of the sampled step that is running.

    lines  layer -> file and line of the user's code that called it first; shared by all steps
    """

    def __init__(self, step: int, lines: dict[str, str]) -> None:
        self.step = step
        self.lines = lines
        self.tensors: dict[Key, Measured | Sketch] = {}
        self.losses: list[float] = []
        self.batch: list[Digests] = []
        self.random = 0
        self.running = False  # the model is called
        self._numbers: dict[Key, int] = defaultdict(int)

    def add(self, kind: str, layer: str, tensor: Tensor, scale: float = 1.0) -> float:
        """Keep the sketch of tensor / scale, and return the norm of the tensor.

        A later one of the same parameter takes its place.
        """
        found = measured(tensor, scale)
        self.tensors[kind, layer] = found
        return found.norm

    def add_output(self, layer: str, tensor: Tensor) -> None:
        """Keep the sketch of a tensor that a layer returned, numbered from the second on.

        A call without gradients is not part of the training, unless it is inside one of the model
        that is.
        """
        if not (self.running or torch.is_grad_enabled()):
            return
        number = self._numbers["activations", layer]
        self._numbers["activations", layer] += 1
        if layer not in self.lines:
            self.lines[layer] = _line_of_caller()
        self._add_numbered("activations", layer, number, tensor, 1.0)

    def add_arrived(self, layer: str, number: int, gradient: Tensor, scale: float) -> None:
        """Keep the sketch of the gradient that arrived at a layer's output of that number."""
        self._add_numbered("activation gradients", layer, number, gradient, scale)

    def _add_numbered(
        self, kind: str, layer: str, number: int, tensor: Tensor, scale: float
    ) -> None:
        if number < MOST_OF_LAYER:
            name = f"{layer} #{number + 1}" if number else layer
            self.tensors[kind, name] = measured(tensor, scale)

    def drop_elements(self) -> None:
        """Discard the drawn elements; what the short form needs is computed before."""
        self.tensors = {
            key: replace(_as_sketch(each), elements=NO_ELEMENTS)
            for key, each in self.tensors.items()
        }

    def forget(self, kind: str) -> None:
        """Discard the sketches of a kind."""
        self.tensors = {key: each for key, each in self.tensors.items() if key[0] != kind}

    def called(self, args: Any, kwargs: Any) -> None:
        """Note the batch of a call of the model, and the state of the random numbers."""
        if not self.batch:
            self.random = zlib.crc32(torch.get_rng_state().numpy().tobytes())
        if len(self.batch) < MOST_CALLS:
            leaves = tree_leaves((args, kwargs))
            self.batch.append(digests(leaves))
            for leaf in floats(leaves):
                number = self._numbers["inputs", ""]
                self._numbers["inputs", ""] += 1
                self._add_numbered("inputs", "input", number, leaf, 1.0)


@dataclass(frozen=True)
class _Kept:
    """A sampled step that is over; its sketches are computed when the recording is written."""

    running: SketchedStep
    scale: float
    counts: Mapping[str, Mapping[str, ExponentHistogram]]

    def step(self) -> RecordedStep:
        histograms = {
            (kind, layer): histogram
            for kind, of_kind in self.counts.items()
            for layer, histogram in of_kind.items()
        }
        running = self.running
        return RecordedStep(
            running.step,
            self.scale,
            sum(running.losses) if running.losses else None,
            tuple(running.batch),
            running.random,
            len(running.losses),
            {key: _as_sketch(each) for key, each in running.tensors.items()},
            histograms,
        )


class Recorder:
    """The steps of a recording, and where it is written to."""

    def __init__(self, path: Path, every: int) -> None:
        self.path, self.every = path, every
        self.layers: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.written: Path | None = None
        self._lines: dict[str, str] = {}
        self._steps: dict[int, _Kept] = {}
        self._sampled = 0
        self._tensors = 0
        self._elements = 0

    def begin(self, step: int) -> SketchedStep:
        """Return the sketches of a sampled step that begins."""
        return SketchedStep(step, self._lines)

    def observe_model(self, layers: Mapping[str, str], parameter: Tensor) -> None:
        """Note the layers of the model, and what can change the numbers of a run on its device."""
        self.layers = dict(layers)
        device = parameter.device
        found = {"device": device_name(device), **versions(device)}
        found |= arithmetic_settings(device)
        found["threads"] = str(torch.get_num_threads())
        found["default dtype"] = str(torch.get_default_dtype()).removeprefix("torch.")
        self.settings |= found

    def observe_optimizer(self, optimizer: Any) -> None:
        """Note the settings of an optimizer when it first steps, and the seed."""
        self.settings.setdefault("seed", str(torch.initial_seed()))
        name = type(optimizer).__name__
        for number, group in enumerate(optimizer.param_groups[:MOST_GROUPS]):
            title = f"{name} group {number}" if number else name
            for key, value in group.items():
                if key != "params" and isinstance(value, int | float | tuple | str):
                    self.settings.setdefault(f"{title} {key}", str(value))

    def end(
        self,
        running: SketchedStep,
        scale: float,
        counts: Mapping[str, Mapping[str, ExponentHistogram]],
    ) -> None:
        """Keep a sampled step that is over, within the limits of memory."""
        self._steps[self._sampled] = _Kept(running, scale, counts)
        self._sampled += 1
        self._tensors += len(running.tensors)
        self._elements += _elements_in(running)
        self._stay_bounded()

    def _stay_bounded(self) -> None:
        """Drop the elements of the least important steps, and then whole steps."""
        for index in self._least_important_first():
            if self._elements <= MOST_ELEMENTS:
                break
            kept = self._steps[index]
            self._elements -= _elements_in(kept.running)
            kept.running.drop_elements()
        while self._tensors > MOST_TENSORS and len(self._steps) > 1:
            dropped = self._steps.pop(max(self._steps, key=importance)).running
            self._tensors -= len(dropped.tensors)
            self._elements -= _elements_in(dropped)

    def _least_important_first(self) -> list[int]:
        """Return the indices of steps with elements; none while there is room for more."""
        if self._elements <= MOST_ELEMENTS:
            return []
        whole = [index for index, kept in self._steps.items() if _elements_in(kept.running)]
        return sorted(whole, key=importance, reverse=True)

    def recording(
        self, model: str, steps: int, skipped: int, lines: Mapping[str, str], unseen: Iterable[str]
    ) -> Recording:
        """Return what was recorded so far."""
        return Recording(
            model,
            steps,
            self.every,
            tuple(self._steps[index].step() for index in sorted(self._steps)),
            self.layers,
            {**{layer: line for layer, line in self._lines.items() if line}, **lines},
            skipped,
            self.settings,
            tuple(unseen),
        )


def _as_sketch(tensor: Measured | Sketch) -> Sketch:
    return tensor if isinstance(tensor, Sketch) else tensor.sketch()


def _elements_in(running: SketchedStep) -> int:
    return sum(len(each.elements) for each in running.tensors.values())


def _line_of_caller() -> str:
    """Return the line of the user's code that called a layer, whose hook runs."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(INSTRUMENT):
        frame = frame.f_back
    return (line_of_user(frame) or "") if frame is not None else ""


def digests(leaves: Iterable[Any]) -> Digests:
    """Return digests of a batch: of its bits in order, and of the same bits in any order.

    >>> one, other = torch.tensor([1, 2]), torch.tensor([2, 1])
    >>> digests([one])[0] == digests([other])[0], digests([one])[1] == digests([other])[1]
    (False, True)
    """
    ordered, any_order = 0, 0
    for leaf in leaves:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided or not leaf.numel():
            continue
        tensor = leaf.detach()
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
        raw = tensor.view(torch.uint8).reshape(-1)
        # words of an element's size, so that whole elements may change places
        word = raw.view({1: torch.uint8, 2: torch.int16}.get(tensor.itemsize, torch.int32))
        any_order += int(word.sum(dtype=torch.int64)) + tensor.numel()
        if raw.numel() > SMALL_BATCH or not raw.is_cpu:
            at = torch.from_numpy(places(word.numel())).to(word.device)
            raw = word[at].cpu().view(torch.uint8)
        ordered = zlib.crc32(raw.numpy().tobytes(), ordered)
        ordered = zlib.crc32(str(tuple(tensor.shape)).encode(), ordered)
    return ordered, any_order & 0xFFFFFFFF
