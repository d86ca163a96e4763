"""What is an LSTM, a GRU or an RNN in FP16, step by step?

Idea: a layer is its cell, applied over time. Inside a step everything is FP32, as in the registers of a kernel: both
matrix products, the gates, tanh. What has to be stored until the next step, h and c, is rounded to FP16; and so is, on
the way back, the gradient of each. The gradients of weights are added up over all steps in FP32 and rounded once.

Invariant: bit-equal to calling the cell in a loop on FP16 tensors; dropout, directions and packed sequences as torch's.

What it does not do: tell what cuDNN does inside a step, which nobody outside has seen. torch's own CUDA cells store the
two products in FP16 as well, before the gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_CELLS: dict[str, Callable[..., Any]] = {
    "lstm": torch.lstm_cell,
    "gru": torch.gru_cell,
    "rnn_tanh": torch.rnn_tanh_cell,
    "rnn_relu": torch.rnn_relu_cell,
}
RECURRENT = frozenset(_CELLS)

State = tuple[Tensor, ...]  # (h,) or (h, c), each [rows, features]


@dataclass(frozen=True)
class _Cell:
    """One layer in one direction: the cell, its FP32 weights, and what it stores in."""

    step: Callable[..., Any]
    weights: tuple[Tensor, ...]
    dtype: torch.dtype

    def __call__(self, x: Tensor, state: State) -> State:
        """Return the state after a step, stored."""
        wide = tuple(part.float() for part in state)
        out = self.step(x.float(), wide if len(wide) > 1 else wide[0], *self.weights)
        return tuple(part.to(self.dtype) for part in (out if isinstance(out, tuple) else (out,)))


def recurrent(name: str, *args: Any) -> tuple[Tensor, ...]:
    """Run `torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu` with its own arguments on FP16 or BF16 tensors.

    Returns what torch's does: output [steps, batch, features] (or packed: [rows, features]), h_n, and c_n of an LSTM.

    >>> layer = torch.nn.GRU(3, 4).half()
    >>> x, h = torch.ones(5, 2, 3).half(), torch.zeros(1, 2, 4).half()
    >>> output, h_n = recurrent("gru", x, h, layer._flat_weights, True, 1, 0.0, False, False, False)
    >>> output.shape, output.dtype, torch.equal(output[-1], h_n[0])
    (torch.Size([5, 2, 4]), torch.float16, True)
    """
    packed = not args[1].is_floating_point() if isinstance(args[1], Tensor) else False
    data, hx, weights, biases, layers, dropout, train, both_ways, *batch_first = (
        (args[0], *args[2:]) if packed else args
    )
    if packed:
        sizes, shape = args[1].tolist(), None
    else:
        data = data.transpose(0, 1) if batch_first[0] else data
        sizes, shape = [data.shape[1]] * data.shape[0], data.shape[:2]
        data = data.flatten(0, 1)
    state = hx if isinstance(hx, tuple | list) else (hx,)
    cells = list(_cells(name, weights, biases, len(state) > 1 and state[0].shape != state[1].shape, data.dtype))
    directions = 2 if both_ways else 1
    last: list[State] = []
    for layer in range(layers):
        if layer and dropout and train:
            data = F.dropout(data, dropout)
        outputs: list[Tensor] = []
        for cell in cells[layer * directions : (layer + 1) * directions]:
            first = tuple(part[len(last)] for part in state)
            output, end = _over_time(cell, data, sizes, first, backwards=bool(outputs))
            outputs.append(output)
            last.append(end)
        data = torch.cat(outputs, 1) if both_ways else outputs[0]
    if shape is not None:
        data = data.unflatten(0, shape)
        data = data.transpose(0, 1) if batch_first[0] else data
    return (data, *(torch.stack(parts) for parts in zip(*last, strict=True)))


def _cells(name: str, weights: Sequence[Tensor], biases: bool, projected: bool, dtype: torch.dtype) -> Iterator[_Cell]:
    """Yield the cell of each layer and direction; torch hands over their weights in one row."""
    count = (4 if biases else 2) + projected
    for first in range(0, len(weights), count):
        mine = tuple(weight.float() for weight in weights[first : first + count])
        yield _Cell(_projected_lstm_cell if projected else _CELLS[name], mine, dtype)


def _projected_lstm_cell(x: Tensor, state: State, w_ih: Tensor, w_hh: Tensor, *rest: Tensor) -> State:
    """`torch.lstm_cell` with proj_size, which it has not: h is projected before it leaves the step."""
    *biases, w_hr = rest
    b_ih, b_hh = biases or (None, None)
    i, f, g, o = (F.linear(x, w_ih, b_ih) + F.linear(state[0], w_hh, b_hh)).chunk(4, 1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return F.linear(o.sigmoid() * c.tanh(), w_hr), c


def _over_time(cell: _Cell, data: Tensor, sizes: list[int], first: State, backwards: bool) -> tuple[Tensor, State]:
    """Return the outputs of all steps, and the state in which each sequence ends; step t has sizes[t] rows.

    Sequences are sorted by length, so those that go on are always the first rows; read backwards, some join later.
    """
    steps = list(enumerate(data.split(sizes)))
    outputs: list[Tensor] = [data] * len(sizes)
    state, ended = tuple(part[: sizes[-1 if backwards else 0]] for part in first), list[State]()
    for t, x in reversed(steps) if backwards else steps:
        rows = len(state[0])
        if len(x) < rows:
            ended.append(tuple(part[len(x) :] for part in state))
            state = tuple(part[: len(x)] for part in state)
        elif len(x) > rows:
            state = tuple(torch.cat([part, late[rows : len(x)]]) for part, late in zip(state, first, strict=True))
        state = cell(x, state)
        outputs[t] = state[0]
    ends = tuple(torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True))
    return torch.cat(outputs), ends
