"""What is an LSTM, a GRU or an RNN in FP16, step by step?

Idea: a layer is its cell, applied over time. Inside a step everything is FP32, as in the registers of a kernel: both
matrix products, the gates, tanh. What has to be stored until the next step, h and c, is rounded to FP16; and so is, on
the way back, the gradient of each. Products that need no step before them are done for all steps at once: W_ih x, and
the gradients of the weights, which are so added up over time in FP32 and rounded once.

Invariant: what is stored equals the cell called in a loop on FP16 tensors; dropout, directions and packed sequences are
torch's.

What it does not do: tell what cuDNN does inside a step, which nobody outside has seen (torch's own CUDA cells store the
two products in FP16 as well, before the gates); second derivatives, which cuDNN has not either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

State = tuple[Tensor, ...]  # (h,) or (h, c), each [rows, features]


@dataclass(frozen=True)
class _Cell:
    """A cell's arithmetic in FP32, given its two products x W_ih + b_ih and h W_hh + b_hh, both [rows, gates].

    forward   (product of x, product of h, state) -> (new state, what backward needs)
    backward  (gradient of the new state, what forward kept, state) ->
              (gradient of product of x, of product of h, and of the state but for what comes through that product)
    """

    forward: Callable[[Tensor, Tensor, State], tuple[State, State]]
    backward: Callable[[State, State, State], tuple[Tensor, Tensor, State]]


def _lstm(of_x: Tensor, of_h: Tensor, state: State) -> tuple[State, State]:
    i, f, g, o = (of_x + of_h).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * state[1] + i * g
    squashed = c.tanh()
    return (o * squashed, c), (i, f, g, o, squashed)


def _lstm_back(gradient: State, kept: State, state: State) -> tuple[Tensor, Tensor, State]:
    (dh, dc), (i, f, g, o, squashed) = gradient, kept
    dc = dc + dh * o * (1 - squashed * squashed)
    gates = [dc * g * i * (1 - i), dc * state[1] * f * (1 - f), dc * i * (1 - g * g), dh * squashed * o * (1 - o)]
    both = torch.cat(gates, 1)
    return both, both, (torch.zeros_like(dh), dc * f)


def _gru(of_x: Tensor, of_h: Tensor, state: State) -> tuple[State, State]:
    (xr, xz, xn), (hr, hz, hn) = of_x.chunk(3, 1), of_h.chunk(3, 1)
    r, z = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    n = (xn + r * hn).tanh()
    return (n + z * (state[0] - n),), (r, z, n, hn)


def _gru_back(gradient: State, kept: State, state: State) -> tuple[Tensor, Tensor, State]:
    (dh,), (r, z, n, hn) = gradient, kept
    dn = dh * (1 - z) * (1 - n * n)
    dz = dh * (state[0] - n) * z * (1 - z)
    dr = dn * hn * r * (1 - r)
    return torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1), (dh * z,)


def _simple(squash: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> _Cell:
    """A cell that is one squashed sum; `slope` is the derivative of squash, from its result."""

    def forward(of_x: Tensor, of_h: Tensor, state: State) -> tuple[State, State]:
        h = squash(of_x + of_h)
        return (h,), (h,)

    def backward(gradient: State, kept: State, state: State) -> tuple[Tensor, Tensor, State]:
        both = gradient[0] * slope(kept[0])
        return both, both, (torch.zeros_like(both),)

    return _Cell(forward, backward)


_CELLS = {
    "lstm": _Cell(_lstm, _lstm_back),
    "gru": _Cell(_gru, _gru_back),
    "rnn_tanh": _simple(torch.tanh, lambda h: 1 - h * h),
    "rnn_relu": _simple(torch.relu, lambda h: (h > 0).float()),
}
RECURRENT = frozenset(_CELLS)


class _OverTime(torch.autograd.Function):
    """One layer in one direction: data [rows of all steps, features], step t has sizes[t] rows -> output, end state.

    Sequences are sorted by length, so those that go on are the first rows. The others wait, with the state they ended
    in; or, read backwards, with the one they will begin in.
    """

    @staticmethod
    def forward(
        ctx: Any, cell: _Cell, sizes: list[int], backwards: bool, data: Tensor, w_ih: Tensor, w_hh: Tensor,
        b_ih: Tensor | None, b_hh: Tensor | None, *state: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        (wide_ih, wide_hh), (wide_b, wide_bh) = _wide(w_ih, w_hh), _wide(b_ih, b_hh)
        products = F.linear(data.float(), wide_ih, wide_b).split(sizes)
        outputs, kept = [data] * len(sizes), list[Tensor]()
        ctx.order = range(len(sizes))[::-1] if backwards else range(len(sizes))
        for t in ctx.order:
            before = tuple(part[: sizes[t]].float() for part in state)
            after, needed = cell.forward(products[t], F.linear(before[0], wide_hh, wide_bh), before)
            state = _stored(after, state)
            outputs[t] = state[0][: sizes[t]]
            kept += [*before, *needed]
        ctx.cell, ctx.sizes, ctx.states, ctx.biased = cell, sizes, len(state), b_ih is not None
        ctx.save_for_backward(data, w_ih, w_hh, *kept)
        return (torch.cat(outputs), *(part.clone() for part in state))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        with torch._C.DisableTorchFunction():
            of_output, state = gradients[0].split(ctx.sizes), gradients[1:]
            data, w_ih, w_hh, *kept = ctx.saved_tensors
            (wide_hh,), each = _wide(w_hh), len(kept) // len(ctx.sizes)
            of_x, of_h, hidden = ([data] * len(ctx.sizes) for _ in range(3))
            for step, t in reversed(list(enumerate(ctx.order))):
                rows, saved = ctx.sizes[t], kept[step * each : (step + 1) * each]
                before, needed = saved[: ctx.states], saved[ctx.states :]
                after = (state[0][:rows] + of_output[t], *(part[:rows] for part in state[1:]))  # added up as stored
                of_x[t], of_h[t], past = ctx.cell.backward(_wide(*after), needed, before)
                state = _stored((torch.addmm(past[0], of_h[t], wide_hh), *past[1:]), state)
                hidden[t] = before[0]
            dx, dh, dtype = torch.cat(of_x), torch.cat(of_h), data.dtype
            results = [dx @ w_ih.float(), dx.T @ data.float(), dh.T @ torch.cat(hidden), dx.sum(0), dh.sum(0)]
            inputs = [result.to(dtype) for result in results]
            return (None, None, None, *inputs[:3], *(inputs[3:] if ctx.biased else (None, None)), *state)


def _wide(*tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(None if tensor is None else tensor.float() for tensor in tensors)


def _stored(after: State, state: State) -> State:
    """Return a state rounded as it is stored, with the rows of the one before it that took no part in this step."""
    rounded = tuple(part.to(old.dtype) for part, old in zip(after, state, strict=True))
    if len(rounded[0]) == len(state[0]):
        return rounded
    return tuple(torch.cat([now, old[len(now) :]]) for now, old in zip(rounded, state, strict=True))


def recurrent(name: str, *args: Any) -> tuple[Tensor, ...]:
    """Run `torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu` with its own arguments on FP16 or BF16 tensors.

    Returns what torch's does: output [steps, batch, features] (or packed: [rows, features]), h_n, and c_n of an LSTM.
    An LSTM with projections (proj_size) is rounded at its end only.

    >>> layer = torch.nn.GRU(3, 4).half()
    >>> x, h = torch.ones(5, 2, 3).half(), torch.zeros(1, 2, 4).half()
    >>> output, h_n = recurrent("gru", x, h, layer._flat_weights, True, 1, 0.0, False, False, False)
    >>> output.shape, output.dtype, torch.equal(output[-1], h_n[0])
    (torch.Size([5, 2, 4]), torch.float16, True)
    """
    packed = isinstance(args[1], Tensor) and not args[1].is_floating_point()
    data, hx, weights, biased, layers, dropout, train, both_ways, *batch_first = (
        (args[0], *args[2:]) if packed else args
    )
    state = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
    with torch._C.DisableTorchFunction():  # how a step is computed is no business of other modes
        if len(state) > 1 and state[0].shape != state[1].shape:
            wide: list[Any] = [_wide(*arg) if isinstance(arg, tuple | list) else arg for arg in args[1:]]
            return tuple(part.to(data.dtype) for part in torch.lstm(data.float(), *wide))
        if packed:
            return _layers(name, data, args[1].tolist(), state, weights, biased, layers, dropout * train, both_ways)
        data = data.transpose(0, 1) if batch_first[0] else data
        steps, batch = data.shape[:2]
        flat, sizes = data.flatten(0, 1), [batch] * steps
        output, *last = _layers(name, flat, sizes, state, weights, biased, layers, dropout * train, both_ways)
        output = output.unflatten(0, (steps, batch))
        return (output.transpose(0, 1) if batch_first[0] else output, *last)


def _layers(
    name: str, data: Tensor, sizes: list[int], first: State, weights: Sequence[Tensor], biased: bool, layers: int,
    dropout: float, both_ways: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run all layers on packed data; torch hands over the weights of all layers and directions in one row."""
    each, last = 4 if biased else 2, list[State]()
    for layer in range(layers):
        data = F.dropout(data, dropout) if layer and dropout else data
        outputs = []
        for backwards in (False, True) if both_ways else (False,):
            mine = [*weights[len(last) * each : (len(last) + 1) * each], None, None][:4]
            begin = (part[len(last)] for part in first)
            output, *end = _OverTime.apply(_CELLS[name], sizes, backwards, data, *mine, *begin)  # type: ignore[no-untyped-call]
            outputs.append(output)
            last.append(tuple(end))
        data = torch.cat(outputs, 1) if both_ways else outputs[0]
    return (data, *(torch.stack(parts) for parts in zip(*last, strict=True)))
