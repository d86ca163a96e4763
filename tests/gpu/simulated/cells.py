"""The fused LSTM cell that CUDA has and the CPU lacks, in FP32 and rounded once; a GRU is refused.

Source: aten/src/ATen/native/cuda/RNN.cu, lstm_cell_forward, lstm_cell_backward.
"""

import torch
from torch import Tensor

# A registration lasts as long as its object.
_library: list[torch.library.Library] = []


def _gates(tensor: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    return (tensor.float() if bias is None else tensor.float() + bias.float()).chunk(4, 1)


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None,
    hidden_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hy, cy and the four gates after their activations, which the backward pass reads."""
    pairs = zip(_gates(input_gates, input_bias), _gates(hidden_gates, hidden_bias), strict=True)
    i, f, c, o = (x + h for x, h in pairs)
    i = i.sigmoid()
    f = f.sigmoid()
    c = c.tanh()
    o = o.sigmoid()
    cy = f * cx.float() + i * c
    hy = o * cy.tanh()
    return tuple(x.to(cx.dtype) for x in (hy, cy, torch.cat([i, f, c, o], 1)))


def lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gates, of cx and of the bias."""
    i, f, c, o = workspace.float().chunk(4, 1)
    t = cy.float().tanh()
    gh = torch.zeros_like(t) if grad_hy is None else grad_hy.float()
    gc = torch.zeros_like(t) if grad_cy is None else grad_cy.float()
    gc = gc + gh * o * (1 - t * t)
    parts = (
        gc * c * i * (1 - i),
        gc * cx.float() * f * (1 - f),
        gc * i * (1 - c * c),
        gh * t * o * (1 - o),
    )
    gates = torch.cat(parts, 1).to(cx.dtype)
    return gates, (gc * f).to(cx.dtype), gates.sum(0) if has_bias else gates.new_empty(0)


def register() -> None:
    if _library:
        return
    library = torch.library.Library("aten", "IMPL")
    library.impl("_thnn_fused_lstm_cell", lstm_cell, "CUDA")
    library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward, "CUDA")
    _library.append(library)
