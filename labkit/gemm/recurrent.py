"""LSTM, GRU and RNN layers in FP16, step by step.

Idea: a layer applies its cell over time. Inside a step everything is FP32, as in the registers of a
kernel: both matrix products, the gates, tanh. The state that is stored until the next step, h and
c, is rounded to FP16, and so are its gradients in the backward pass. Some computations do not
depend on other steps and are done for all steps at once: W_ih x, the derivatives of the gates, and
the gradients of the weights. The latter are summed over time in FP32 and rounded once.

Invariant: stored values equal those of the cell called in a loop on FP16 tensors, except for the
order of FP32 additions inside a step (biases, then W_ih x, then W_hh h). Dropout, directions and
packed sequences are torch's.

Not reproduced: the inside of cuDNN's steps, which is undocumented (torch's own CUDA cells also
store the two products in FP16 before the gates). Second derivatives are not supported, as in cuDNN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

# The state of a cell: (h,) or (h, c), each of shape [rows, features].
State = tuple[Tensor, ...]


@dataclass(frozen=True)
class _Cell:
    """FP32 arithmetic of a cell.

    `parts` and `forward` are the forward pass, `slopes` and `backward` the backward pass.

    Buffers of all steps are allocated at once, as tensors [rows of all steps, parts, features]. A
    step works on its rows in place, since the time of small layers depends on the number of
    operations.

    Attributes:
        gates: number of products: x W_ih + b_ih and h W_hh + b_hh are [rows, gates, features].
        adds: whether the cell needs only the sum of the two products, which then share a gradient.
        extra: number of further parts that `backward` needs.
        parts: (gates, extra parts, states before) -> the tensors that `forward` works on.
        forward: (the `parts` of a step, the new state): turns the products into gates in place, and
            writes the extra parts and the new state.
        slopes: (gates, extra parts, states before) -> the derivatives by which `backward`
            multiplies gradients.
        to_gates: (gradients of the product of x, of that of h) -> the tensors that `backward`
            writes.
        backward: (gradients of a step's new state, its `to_gates`, its `slopes`, gradients of the
            state before): writes `to_gates` and the gradients of the state before. The gradient
            that h gets through its product is added later.
    """

    gates: int
    adds: bool
    extra: int
    parts: Callable[[Tensor, Tensor, Tensor], State]
    forward: Callable[..., object]
    slopes: Callable[[Tensor, Tensor, Tensor], State]
    to_gates: Callable[[Tensor, Tensor], State]
    backward: Callable[..., object]


# (gradient, result) -> gradient * result * (1 - result), in one pass
_through_sigmoid = torch.ops.aten.sigmoid_backward
# (gradient, result) -> gradient * (1 - result^2), in one pass
_through_tanh = torch.ops.aten.tanh_backward


def _lstm(
    i_and_f: Tensor,
    i: Tensor,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    squashed: Tensor,
    before: Tensor,
    h: Tensor,
    c: Tensor,
) -> None:
    i_and_f.sigmoid_()
    g.tanh_()
    o.sigmoid_()
    torch.mul(f, before, out=c).addcmul_(i, g)
    torch.mul(o, torch.tanh(c, out=squashed), out=h)


def _lstm_slopes(gates: Tensor, squashed: Tensor, before: Tensor) -> State:
    """Return the factors from the gradient of c to those of i, f, g, then h to o, h to c, c to c.

    The gradients of i, f, g and o are those before the sigmoid or tanh. The last factor leads to
    the c of the step before.
    """
    i, f, g, o = gates.split(1, 1)
    c_to_i = _through_sigmoid(g, i)
    c_to_f = _through_sigmoid(before[:, 1:], f)
    c_to_g = _through_tanh(i, g)
    h_to_o = _through_sigmoid(squashed, o)
    h_to_c = _through_tanh(o, squashed)
    return torch.cat([c_to_i, c_to_f, c_to_g], 1), h_to_o, h_to_c, f


def _lstm_back(
    dh: Tensor,
    dc: Tensor,
    to_ifg: Tensor,
    to_o: Tensor,
    by_c: Tensor,
    o_by_h: Tensor,
    c_by_h: Tensor,
    c_by_c: Tensor,
    to_h: Tensor,
    to_c: Tensor,
) -> None:
    dc.addcmul_(dh, c_by_h)
    torch.mul(dc, by_c, out=to_ifg)
    torch.mul(dh, o_by_h, out=to_o)
    torch.mul(dc, c_by_c, out=to_c)


def _gru(
    r_and_z: Tensor,
    r: Tensor,
    z: Tensor,
    n: Tensor,
    of_h: Tensor,
    n_of_h: Tensor,
    before: Tensor,
    h: Tensor,
) -> None:
    r_and_z.add_(of_h).sigmoid_()
    n.addcmul_(r, n_of_h).tanh_()
    torch.sub(before, n, out=h).mul_(z).add_(n)


def _gru_slopes(gates: Tensor, of_h: Tensor, before: Tensor) -> State:
    """Return the factors from the gradient of h to those of both products, and of the previous h.

    The products are those of x and of h, each with the parts r, z and n.
    """
    r, z, n = gates.split(1, 1)
    to_n = _through_tanh(1 - z, n)
    to_z = _through_sigmoid(before - n, z)
    to_r = _through_sigmoid(to_n * of_h[:, 2:], r)
    return torch.cat([to_r, to_z, to_n], 1), torch.cat([to_r, to_z, to_n * r], 1), z


def _gru_back(
    dh: Tensor,
    to_x: Tensor,
    to_product: Tensor,
    in_x: Tensor,
    in_h: Tensor,
    direct: Tensor,
    to_h: Tensor,
) -> None:
    torch.mul(dh, in_x, out=to_x)
    torch.mul(dh, in_h, out=to_product)
    torch.mul(dh, direct, out=to_h)


def _simple(squash: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> _Cell:
    """Return a cell that squashes the sum of the two products.

    Args:
        squash: tanh or relu, in place.
        slope: (result of `squash`) -> its derivative there.
    """
    return _Cell(
        gates=1,
        adds=True,
        extra=0,
        parts=lambda gates, extra, before: (gates[:, 0],),
        forward=lambda total, h: h.copy_(squash(total)),
        slopes=lambda gates, extra, before: (slope(gates),),
        to_gates=lambda of_x, of_h: (of_x,),
        backward=lambda dh, to_sum, slope, to_h: torch.mul(dh, slope, out=to_sum),
    )


_CELLS = {
    "lstm": _Cell(
        gates=4,
        adds=True,
        extra=1,
        parts=lambda gates, squashed, before: (
            gates[:, :2],
            *gates.unbind(1),
            squashed[:, 0],
            before[:, 1],
        ),
        forward=_lstm,
        slopes=_lstm_slopes,
        to_gates=lambda of_x, of_h: of_x.split([3, 1], 1),
        backward=_lstm_back,
    ),
    "gru": _Cell(
        gates=3,
        adds=False,
        extra=3,
        parts=lambda gates, of_h, before: (
            gates[:, :2],
            *gates.unbind(1),
            of_h[:, :2],
            of_h[:, 2],
            before[:, 0],
        ),
        forward=_gru,
        slopes=_gru_slopes,
        to_gates=lambda of_x, of_h: (of_x, of_h),
        backward=_gru_back,
    ),
    "rnn_tanh": _simple(torch.tanh_, lambda h: 1 - h * h),
    "rnn_relu": _simple(torch.relu_, lambda h: (h > 0).float()),
}
RECURRENT = frozenset(_CELLS)


class _OverTime(torch.autograd.Function):
    """One layer in one direction.

    It maps data [rows of all steps, features], where step t has sizes[t] rows, to the output and
    the end state.

    Sequences are sorted by length, so those that continue are the first rows. The others keep the
    state in which they ended or, if time runs backwards, the state in which they will begin.
    `stored` [batch, states, features] is what memory holds between two steps, in FP16: the state in
    the forward pass, its gradient in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        cell: _Cell,
        sizes: list[int],
        backwards: bool,
        data: Tensor,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.cell = cell
        ctx.sizes = sizes
        ctx.biased = b_ih is not None
        ctx.order = range(len(sizes))[::-1] if backwards else range(len(sizes))
        # the state between steps is in the layer's dtype, so each step rounds it once
        stored = torch.stack(state, 1)
        across = w_hh.float().T.contiguous()
        none = torch.zeros(1, device=data.device)
        b_ih = none if b_ih is None else b_ih.float()
        b_hh = none if b_hh is None else b_hh.float()
        # The input of all steps is multiplied at once. A cell that adds the two products continues
        # from this one; a GRU keeps them apart.
        flat = F.linear(data.float(), w_ih.float()).add_(b_ih + b_hh if cell.adds else b_ih)
        gates = flat.unflatten(1, (cell.gates, -1))
        before = _fp32_buffer(len(data), len(state), like=stored)
        extra = _fp32_buffer(len(data), cell.extra, like=stored)
        output = data.new_empty(len(data), stored.shape[-1])
        new = _fp32_buffer(len(stored), len(state), like=stored)
        # views are made once for each number of rows, since a step is short
        rows = {n: (stored[:n], stored[:n, 0], new[:n], new[:n].unbind(1)) for n in set(sizes)}
        all_rows = (before, before[:, 0], flat if cell.adds else extra.flatten(1), output)
        all_parts = cell.parts(gates, extra, before)
        for n, (was, h, product, out, *parts) in _steps(sizes, ctx.order, *all_rows, *all_parts):
            mine, mine_h, new_rows, new_state = rows[n]
            was.copy_(mine)
            torch.addmm(product if cell.adds else b_hh, h, across, out=product)
            cell.forward(*parts, *new_state)
            # the only rounding of the step
            mine.copy_(new_rows)
            out.copy_(mine_h)
        ctx.save_for_backward(data, w_ih, w_hh, gates, extra, before)
        return (output, *stored.unbind(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        with torch._C.DisableTorchFunction():
            data, w_ih, w_hh, gates, extra, before = ctx.saved_tensors
            cell = ctx.cell
            sizes = ctx.sizes
            across = w_hh.float()
            stored = torch.stack(gradients[1:], 1)
            wide = _fp32_buffer(len(stored), stored.shape[1], like=stored)
            past = _fp32_buffer(len(stored), stored.shape[1], like=stored)
            of_x = torch.empty_like(gates)
            of_h = of_x if cell.adds else torch.empty_like(gates)
            rows = {
                n: (stored[:n], stored[:n, 0], wide[:n], past[:n], past[:n, 0]) for n in set(sizes)
            }
            states = {n: (wide[:n].split(1, 1), past[:n].split(1, 1)) for n in set(sizes)}
            slopes = cell.slopes(gates, extra, before)
            to_gates = cell.to_gates(of_x, of_h)
            all_rows = (gradients[0], of_h.flatten(1), *to_gates, *slopes)
            for n, (of_output, product, *parts) in _steps(sizes, ctx.order[::-1], *all_rows):
                mine, mine_h, gradient, to_before, to_h = rows[n]
                of_state, to_state = states[n]
                # the gradient of h has two parts, which are added up in the layer's dtype
                mine_h.add_(of_output)
                gradient.copy_(mine)
                cell.backward(*of_state, *parts, *to_state)
                to_h.addmm_(product, across, beta=0 if cell.adds else 1)
                # the only rounding of the step
                mine.copy_(to_before)
            dx = of_x.flatten(1)
            dh = of_h.flatten(1)
            dtype = data.dtype
            results = [
                dx @ w_ih.float(),
                dx.T @ data.float(),
                dh.T @ before[:, 0],
                dx.sum(0),
                dh.sum(0),
            ]
            inputs = [result.to(dtype) for result in results]
            biases = inputs[3:] if ctx.biased else (None, None)
            return (None, None, None, *inputs[:3], *biases, *stored.unbind(1))


def _fp32_buffer(rows: int, parts: int, like: Tensor) -> Tensor:
    """Return an FP32 buffer [rows, parts, features] for `like` [..., features]."""
    return torch.empty(rows, parts, like.shape[-1], device=like.device)


def _steps(sizes: list[int], order: Iterable[int], *data: Tensor) -> Iterator[tuple[int, State]]:
    """Yield each step's number of rows, and its rows of data [rows of all steps, ...].

    The views of one step are alive at a time: with thousands of them, Python's garbage collector
    would visit every object of the process.
    """
    ends = list(accumulate(sizes))
    for t in order:
        mine = slice(ends[t] - sizes[t], ends[t])
        yield sizes[t], tuple([part[mine] for part in data])


def recurrent(name: str, *args: Any) -> tuple[Tensor, ...]:
    """Run `torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu` on FP16 or BF16 tensors.

    Returns what torch's does: output [steps, batch, features] (or packed: [rows, features]), h_n,
    and c_n of an LSTM. An LSTM with projections (proj_size) is rounded at its end only.

    >>> layer = torch.nn.GRU(3, 4).half()
    >>> x, h = torch.ones(5, 2, 3).half(), torch.zeros(1, 2, 4).half()
    >>> output, h_n = recurrent("gru", x, h, layer._flat_weights, True, 1, 0.0, False, False, False)
    >>> output.shape, output.dtype, torch.equal(output[-1], h_n[0])
    (torch.Size([5, 2, 4]), torch.float16, True)
    """
    # a mode that observes calls sees the layer as one operation
    if has_torch_function((args[0],)):
        return handle_torch_function(recurrent, (args[0],), name, *args)
    state = args[2] if _is_packed(args) else args[1]
    cell = _CELLS[name]
    # other modes must not see the operations inside a step
    with torch._C.DisableTorchFunction():
        if _is_projected(state):
            wide: list[Any] = [
                tuple(t.float() for t in arg) if isinstance(arg, tuple | list) else arg
                for arg in args[1:]
            ]
            return tuple(part.to(args[0].dtype) for part in torch.lstm(args[0].float(), *wide))

        def one(
            data: Tensor, sizes: list[int], backwards: bool, weights: list[Tensor], begin: State
        ) -> Any:
            # a layer without biases has two weights
            biases: Sequence[Tensor | None] = weights[2:] or (None, None)
            return _OverTime.apply(  # type: ignore[no-untyped-call]
                cell, sizes, backwards, data, *weights[:2], *biases, *begin
            )

        return over_layers(one, *args)


def over_layers(one: Callable[..., tuple[Tensor, ...]], *args: Any) -> tuple[Tensor, ...]:
    """Run the arguments of `torch.lstm`, `gru` or `rnn_*` through all layers and directions.

    Args:
        one: runs one layer in one direction: (packed data, rows of each step, backwards, its
            weights, its first state) -> packed output, *last state.
        *args: the positional arguments of the torch function.

    Raises:
        RuntimeError: the sequence has no steps.
    """
    packed = _is_packed(args)
    # of packed data, args[1] is the sizes, and there is no batch_first
    rest = (args[0], *args[2:]) if packed else args
    data, first, weights, biased, layers, dropout, train, both_ways, *batch_first = rest
    state = tuple(first) if isinstance(first, tuple | list) else (first,)
    if packed:
        sizes = args[1].tolist()
    else:
        if batch_first[0]:
            data = data.transpose(0, 1)
        shape = data.shape[:2]
        if shape[0] == 0:
            raise RuntimeError("expected a sequence of one step or more, as torch does, got none")
        data = data.flatten(0, 1)
        sizes = [shape[1]] * shape[0]
    # the weights of all layers and directions are one list
    each = (4 if biased else 2) + _is_projected(first)
    last = list[State]()
    for layer in range(layers):
        if layer and dropout and train:
            data = F.dropout(data, dropout)
        outputs = []
        for backwards in (False, True) if both_ways else (False,):
            mine = list(weights[len(last) * each : (len(last) + 1) * each])
            output, *end = one(
                data, sizes, backwards, mine, tuple(part[len(last)] for part in state)
            )
            outputs.append(output)
            last.append(tuple(end))
        data = torch.cat(outputs, 1) if both_ways else outputs[0]
    if not packed:
        data = data.unflatten(0, shape)
        if batch_first[0]:
            data = data.transpose(0, 1)
    return (data, *(torch.stack(parts) for parts in zip(*last, strict=True)))


def _is_packed(args: Any) -> bool:
    return isinstance(args[1], Tensor) and not args[1].is_floating_point()


def _is_projected(state: Any) -> bool:
    return isinstance(state, tuple | list) and len(state) > 1 and state[0].shape != state[1].shape
