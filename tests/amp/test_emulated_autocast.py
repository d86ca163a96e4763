"""Autocast to a format without torch arithmetic, against rounding written out."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import CastEvent, Recipe, autocast
from labkit.formats import BF16, E4M3, E5M2, E8M0, FP16, FP64, TF32, Format
from labkit.interop import round_tensor


def test_formats_that_fp32_cannot_emulate_are_refused() -> None:
    for format, message in (
        (FP64, "FP64 has numbers that FP32 cannot hold"),
        (E8M0, "E8M0 has no zero or no sign"),
    ):
        with pytest.raises(ValueError, match=message):
            autocast(format)
        with pytest.raises(ValueError, match=f"recipe 'mine': {message}"):
            Recipe("mine", autocast=format)
        with pytest.raises(ValueError, match=f"recipe 'mine': {message}"):
            Recipe("mine", autocast=E4M3, gradient_format=format)


class Stored(torch.autograd.Function):
    """Storage in a format, written out: values rounded forward, gradients rounded backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, values: Format, gradients: Format) -> torch.Tensor:
        ctx.gradients = gradients
        return round_tensor(x.detach(), values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return round_tensor(gradient, ctx.gradients), None, None


def stored_in(values: Format, gradients: Format, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its values and its gradients as these formats store them."""
    result: torch.Tensor = Stored.apply(tensor, values, gradients)
    return result


def test_an_emulated_format_equals_rounding_written_out() -> None:
    for format, gradients in ((E4M3, None), (E4M3, E5M2), (E5M2, None), (TF32, None), (FP16, BF16)):
        torch.manual_seed(0)
        first = nn.Linear(6, 8)
        second = nn.Linear(8, 3)
        x = torch.randn(4, 6)
        target = torch.randn(4, 3)
        parameters = [*first.parameters(), *second.parameters()]

        events: list[CastEvent] = []
        with autocast(format, gradient_format=gradients, listen=events.append):
            y = second(F.relu(first(x)))
            loss = F.mse_loss(y.softmax(-1), target)
        ours = torch.autograd.grad(loss, parameters)

        stored = partial(stored_in, format, gradients or format)
        hidden = F.relu(stored(F.linear(stored(x), stored(first.weight), stored(first.bias))))
        z = stored(F.linear(stored(hidden), stored(second.weight), stored(second.bias)))
        want = torch.autograd.grad(F.mse_loss(z.softmax(-1), target), parameters)

        assert y.dtype == torch.float32
        assert torch.equal(y, z), (format, gradients)
        assert all(map(torch.equal, ours, want)), (format, gradients)
        assert [(e.op, e.to, e.elements) for e in events] == [
            ("linear", format, 24 + 48 + 8),
            ("linear", format, 32 + 24 + 3),
            ("softmax", torch.float32, 0),
            ("mse_loss", torch.float32, 0),
        ]


def test_a_mask_of_infinities_masks_in_a_format_that_has_none() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(1, 4, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    with autocast(E4M3):
        y = layer(x, src_mask=mask)
        late = layer(torch.cat([x[:, :3], x[:, 3:] + 1], 1), src_mask=mask)
    assert y.isfinite().all()
    assert torch.equal(y[:, :3], late[:, :3]), "a masked position changed an earlier one"


def test_emulated_overflow_is_nan_in_a_format_without_infinity() -> None:
    with autocast(E4M3):
        # E4M3 ends at 448.
        overflowed = torch.full((1, 1), 449.0 * 2) @ torch.ones(1, 1)
    assert overflowed.isnan().all()


def test_fp16_operands_are_rounded_to_an_emulated_format() -> None:
    with autocast(E4M3):
        # The neighbours of 1.06 in E4M3 are 1 and 1.125.
        rounded = torch.full((1, 1), 1.06).half() @ torch.ones(1, 1).half()
    assert rounded.dtype == torch.float32
    assert rounded.item() == 1.0


def test_a_second_derivative_goes_through_an_emulated_format() -> None:
    x = torch.tensor([[1.5]], requires_grad=True)
    with autocast(E5M2):
        (slope,) = torch.autograd.grad(x @ x, x, create_graph=True)
        slope.sum().backward()
        assert (
            torch.func.vmap(torch.func.grad(lambda x: (x @ x).sum()))(x.detach()[None]).item()
            == 3.0
        )
    assert slope.item() == 3.0
    assert x.grad == torch.tensor([[2.0]])
