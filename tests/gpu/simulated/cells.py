"""The fused LSTM and GRU cells that CUDA has and the CPU lacks, in FP32 and rounded once.

Source: aten/src/ATen/native/cuda/RNN.cu, lstm_cell_forward, lstm_cell_backward, gru_cell_forward, gru_cell_backward.
"""

import torch
from torch import Tensor

_library: list[torch.library.Library] = []  # a registration lasts as long as its object


def _gates(tensor: Tensor, bias: Tensor | None, count: int) -> tuple[Tensor, ...]:
    wide = tensor.float() if bias is None else tensor.float() + bias.float()
    return wide.chunk(count, 1)


def lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hy, cy and the four gates after their activations, which the backward pass reads."""
    pairs = zip(_gates(input_gates, input_bias, 4), _gates(hidden_gates, hidden_bias, 4), strict=True)
    i, f, c, o = (x + h for x, h in pairs)
    i, f, c, o = i.sigmoid(), f.sigmoid(), c.tanh(), o.sigmoid()
    cy = f * cx.float() + i * c
    hy = o * cy.tanh()
    return tuple(x.to(cx.dtype) for x in (hy, cy, torch.cat([i, f, c, o], 1)))  # type: ignore[return-value]


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gates, of cx and of the bias."""
    i, f, c, o = workspace.float().chunk(4, 1)
    t = cy.float().tanh()
    gh = torch.zeros_like(t) if grad_hy is None else grad_hy.float()
    gc = torch.zeros_like(t) if grad_cy is None else grad_cy.float()
    gc = gc + gh * o * (1 - t * t)
    parts = gc * c * i * (1 - i), gc * cx.float() * f * (1 - f), gc * i * (1 - c * c), gh * t * o * (1 - o)
    gates = torch.cat(parts, 1).to(cx.dtype)
    return gates, (gc * f).to(cx.dtype), gates.sum(0) if has_bias else gates.new_empty(0)


def gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return hy and what the backward pass reads: the gates, hx, and the hidden part of the new gate."""
    (ir, iz, inew), (hr, hz, hnew) = _gates(input_gates, input_bias, 3), _gates(hidden_gates, hidden_bias, 3)
    reset, update = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    new = (inew + reset * hnew).tanh()
    hy = new + update * (hx.float() - new)
    return hy.to(hx.dtype), torch.cat([reset, update, new, hx.float(), hnew], 1).to(hx.dtype)


def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the input's gates, the hidden gates, hx and both biases."""
    reset, update, new, hx, hnew = workspace.float().chunk(5, 1)
    grad = grad_hy.float()
    g_update = grad * (hx - new) * (1 - update) * update
    g_new = grad * (1 - update) * (1 - new * new)
    g_reset = g_new * hnew * (1 - reset) * reset
    dtype = workspace.dtype
    of_input = torch.cat([g_reset, g_update, g_new], 1).to(dtype)
    of_hidden = torch.cat([g_reset, g_update, g_new * reset], 1).to(dtype)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (grad.new_empty(0), grad.new_empty(0))
    return of_input, of_hidden, (grad * update).to(dtype), *biases


def register() -> None:
    """Give torch's CUDA key the cells, once in a process."""
    if _library:
        return
    library = torch.library.Library("aten", "IMPL")
    library.impl("_thnn_fused_lstm_cell", lstm_cell, "CUDA")
    library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward, "CUDA")
    library.impl("_thnn_fused_gru_cell", gru_cell, "CUDA")
    library.impl("_thnn_fused_gru_cell_backward", gru_cell_backward, "CUDA")
    _library.append(library)
