"""Consultation: an autograd function of one's own leaves its dtypes to autocast, which is off in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .consultation import consultation


class Project(torch.autograd.Function):
    """x @ weight.T, as it came."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply."""
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Multiply the other way, in the dtypes that come."""
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


class Decided(Project):
    """The same in FP32, in both directions."""

    forward = staticmethod(torch.amp.custom_fwd(Project.forward, device_type="cpu", cast_inputs=torch.float32))
    backward = staticmethod(torch.amp.custom_bwd(Project.backward, device_type="cpu"))


class Silent(Project):
    """The same with casts, and without a gradient for the weight."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Multiply the other way."""
        _, weight = ctx.saved_tensors
        return grad @ weight.to(grad.dtype), None


def train(model: Any, batches: Any, does: str = "") -> list[float]:
    """Train the model; without a word for a fault, repaired."""
    project: Any = {"as it came": Project, "no gradient": Silent}.get(does, Decided)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=does != "FP32"):
            loss = F.cross_entropy(project.apply(model["body"](inputs), model["last"].weight), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


EXERCISE = consultation(
    "function",
    "The backward pass ends with two dtypes",
    "my_function_training",
    train,
    diagnosis=("backward", "weight"),
    places=("forward", "backward", "loss", "optimizer.step"),
    mistakes=(
        (
            "names the forward pass",
            "",
            ("forward", "weight"),
            "this names the forward pass. There autocast is on, and casts what meets in a product.",
        ),
        (
            "names the gradient",
            "",
            ("backward", "grad"),
            "this names the gradient. It has the dtype of the output, FP16; the error says that another one is float.",
        ),
        (
            "gives the weight no gradient",
            "no gradient",
            None,
            "this returns None where the weight's gradient belongs: no error, and a weight that stands still.",
        ),
    ),
)
