"""Do recurrent layers run under our autocast on a GPU as they do under torch's?

torch's RNN, GRU and LSTM ask torch's own autocast, and no list names them: so each is run behind a linear layer, as
networks have it, forward and backward, with padded and with packed input.

Invariant: both sides have the same weights and input; what is compared are the bytes of outputs and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.frameworks import autocast
from labkit.gpu.checks.outputs import EQUAL
from labkit.gpu.checks.progress import Answers, each, left_out_lines

LAYERS: dict[str, Callable[..., nn.Module]] = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
LENGTHS = (7, 5, 2)


class Remembering(nn.Module):
    """A linear layer and a recurrent one over [n, t, width]; packed where asked for."""

    def __init__(self, layer: Callable[..., nn.Module], width: int, packed: bool) -> None:
        super().__init__()
        self.first, self.layer, self.packed = nn.Linear(width, width), layer(width, width, batch_first=True), packed

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(x)
        if self.packed:
            out = nn.utils.rnn.pack_padded_sequence(out, list(LENGTHS), batch_first=True)
        outputs = self.layer(out)[0]
        rows: Tensor = outputs.data if self.packed else outputs
        return rows


def main(device: str = "cuda", *, width: int = 256, seconds: float = float("inf")) -> Iterator[Answers]:
    """Find layer -> "equal", or how ours differs from torch's; off a GPU ours is on both sides, a rehearsal."""
    answers: Answers = {"recurrent": {}}

    def run(layer: str) -> None:
        answers["recurrent"] |= compared(layer, device, width=width)

    yield from each([(name, partial(run, name)) for name in LAYERS], answers, seconds)


def compared(layer: str, device: str, *, width: int) -> dict[str, str]:
    """Return what `main` finds of one layer, with padded and with packed input."""
    ours = partial(autocast, device, torch.float16)
    theirs = partial(torch.autocast, device, torch.float16) if device == "cuda" else ours
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        return {
            f"{layer}{', packed' * packed}": _compared(LAYERS[layer], width, packed, device, theirs, ours)
            for packed in (False, True)
        }


def _compared(layer: Callable[..., nn.Module], width: int, packed: bool, device: str, theirs: Any, ours: Any) -> str:
    try:
        expected, given = (_results(layer, width, packed, device, region) for region in (theirs, ours))
    except (RuntimeError, ValueError) as refused:
        return f"refused: {str(refused).splitlines()[0][:80]}"
    for name, its in expected.items():
        mine = given[name]
        if mine.dtype != its.dtype:
            return f"{name}: {mine.dtype} instead of {its.dtype}"
        if not torch.equal(mine, its):
            return f"{name}: {int((mine != its).sum())} of {its.numel()} values differ"
    return EQUAL


def _results(
    layer: Callable[..., nn.Module], width: int, packed: bool, device: str, region: Callable[[], Any]
) -> dict[str, Tensor]:
    """Return the outputs and each weight's gradient, always of the same weights and input."""
    torch.manual_seed(0)
    model = Remembering(layer, width, packed).to(device)
    x = torch.randn(len(LENGTHS), max(LENGTHS), width, device=device)
    with region():
        outputs = model(x)
    outputs.float().square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"outputs": outputs.detach(), **gradients}


def told(answers: Answers) -> str:
    """Return what `main` found, for people."""
    lines = [f"{layer} under autocast: {how}" for layer, how in answers["recurrent"].items()]
    return "\n".join([*lines, *left_out_lines(answers)])
