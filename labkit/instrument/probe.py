"""Probe of a backward pass, layer by layer, and the shares of its numbers that a format loses.

Idea: a probe keeps the gradient at the output of each layer. Only the FP32 gradients of the same
weights and batch show what FP16 lost: a zero in the FP16 pass may be a zero in FP32 too (ReLU), and
a gradient that never arrived leaves nothing to count. An update is swallowed if a weight with a
gradient is the same number after the step: the update was below half an ulp of the weight's format.

Invariant: a probe changes no value. After its `with` block, no hook remains on the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from labkit.formats.arguments import require_kind
from labkit.instrument.histogram import ExponentHistogram, exponent_histogram


@dataclass(frozen=True)
class GradSnapshot:
    """Histograms of one step's gradients.

    Attributes:
        step: number of the training step.
        kind: "weight gradients" or "activation gradients".
        layers: layer name -> histogram, in the order of the forward pass.
    """

    step: int
    kind: str
    layers: Mapping[str, ExponentHistogram]


@dataclass
class Probe:
    """Result of a probe: layer name -> gradient of its output, in the dtype in which it arrived."""

    gradients: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def layer_outputs(model: nn.Module, listen: Callable[[str, Tensor], object]) -> Iterator[None]:
    """Call `listen(layer name, output)` for each leaf layer that returns a tensor in the block.

    A layer that returns several tensors, such as nn.LSTM, is left out.

    >>> model = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> with layer_outputs(model, lambda name, output: print(name, tuple(output.shape))):
    ...     _ = model(torch.ones(5, 3))
    0 (5, 2)
    1 (5, 2)
    """
    require_kind(model, nn.Module, "model")
    with ExitStack() as hooks:
        for name in leaf_layers(model):

            def after_forward(
                _layer: nn.Module, _inputs: object, output: object, name: str = name
            ) -> None:
                if isinstance(output, Tensor):
                    listen(name, output)

            hooks.callback(model.get_submodule(name).register_forward_hook(after_forward).remove)
        yield


def leaf_layers(model: nn.Module) -> list[str]:
    """Return the names of the layers that hold no other layer, in the model's order."""
    return [name for name, module in model.named_modules() if not list(module.children())]


@contextmanager
def probe(model: nn.Module) -> Iterator[Probe]:
    """Keep the gradient of every leaf layer's output during one forward and backward pass.

    A layer that is called twice leaves the gradient that arrived last in the backward pass. A layer
    that returns several tensors, such as nn.LSTM, leaves none.

    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> with probe(model) as probed:
    ...     model(torch.ones(1, 2)).sum().backward()
    >>> probed.gradients
    {'0': tensor([[1.]])}
    """
    require_kind(model, nn.Module, "model")
    arrived: dict[str, Tensor] = {}

    def listen(name: str, output: Tensor) -> None:
        def on_gradient(gradient: Tensor) -> None:
            # a copy: a weight may take this tensor as its own gradient, which unscaling overwrites
            arrived[name] = gradient.detach().clone()

        if output.requires_grad:
            output.register_hook(on_gradient)

    probed = Probe()
    try:
        with layer_outputs(model, listen):
            yield probed
    finally:
        # gradients arrive in the reverse order; the result is in the order of the model
        for name in leaf_layers(model):
            if name in arrived:
                probed.gradients[name] = arrived[name]


def snapshot(gradients: Mapping[str, Tensor], *, step: int, kind: str) -> GradSnapshot:
    """Return the histograms of a step's gradients.

    Args:
        gradients: layer name -> gradient.
        step: number of the training step.
        kind: "weight gradients" or "activation gradients".

    >>> gradients = {"fc": torch.tensor([0.5, 0.0])}
    >>> snapshot(gradients, step=3, kind="weight gradients").layers["fc"].zeros
    1
    """
    require_kind(gradients, Mapping, "gradients", "Pass gradients by layer")
    require_kind(step, int, "step")
    require_kind(kind, str, "kind")
    layers = {name: exponent_histogram(gradient) for name, gradient in gradients.items()}
    return GradSnapshot(step, kind, layers)


def underflow(reference: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> float:
    """Return the share (0 to 1) of non-zero elements of the FP32 `reference` that `observed` lost.

    Both must come from the same weights and batch. The gradients in `observed` may be scaled: a
    scale changes no zero.

    Raises:
        ValueError: the two do not hold the same layers, or a layer's shapes differ.

    >>> underflow({"a": torch.tensor([1.0, 1e-9, 0.0])}, {"a": torch.tensor([1.0, 0.0, 0.0])})
    0.5
    """
    remedy = "Pass gradients by layer: probed.gradients."
    require_kind(reference, Mapping, "reference", remedy)
    require_kind(observed, Mapping, "observed", remedy)
    if reference.keys() != observed.keys():
        raise ValueError(
            f"underflow: expected the same layers in both, got reference {list(reference)} and "
            f"observed {list(observed)}"
        )
    lost = 0
    non_zero = 0
    for name, exact in reference.items():
        here = observed[name]
        if exact.shape != here.shape:
            raise ValueError(
                f"layer {name!r}: expected one shape in both, got reference {tuple(exact.shape)} "
                f"and observed {tuple(here.shape)}"
            )
        is_non_zero = exact != 0
        non_zero += int(is_non_zero.sum())
        lost += int((is_non_zero & (here == 0)).sum())
    return lost / non_zero if non_zero else 0.0


def zeros_inside(observed: Mapping[str, Tensor]) -> float:
    """Return the share of zeros among all elements, 0 to 1.

    This share says little about underflow. It includes the zeros that ReLU makes in any precision,
    and it misses gradients that never arrived because they underflowed in a later layer.
    """
    require_kind(observed, Mapping, "observed", "Pass gradients by layer: probed.gradients.")
    elements = sum(gradient.numel() for gradient in observed.values())
    zeros = sum(int((gradient == 0).sum()) for gradient in observed.values())
    return zeros / elements if elements else 0.0


def swallowed(
    before: Iterable[Tensor], after: Iterable[Tensor], gradients: Iterable[Tensor | None]
) -> float:
    """Return the share of the weights with a non-zero gradient that did not change, 0 to 1.

    It is 0 if no weight has a non-zero gradient.

    >>> weight, update = torch.ones(3).half(), torch.tensor([0.0, 2.0**-12, 2.0**-9]).half()
    >>> # 2^-12 is below half the spacing of FP16 under 1
    >>> swallowed([weight], [weight - update], [update])
    0.5

    Raises:
        ValueError: the three differ in length or in a shape.
    """
    require_kind(before, Iterable, "before", "Pass lists of tensors")
    require_kind(after, Iterable, "after", "Pass lists of tensors")
    require_kind(gradients, Iterable, "gradients", "Pass lists of tensors")
    old_weights = list(before)
    new_weights = list(after)
    listed_gradients = list(gradients)
    if not len(old_weights) == len(new_weights) == len(listed_gradients):
        raise ValueError(
            "swallowed: expected as many weights before and after the step as gradients, got "
            f"{len(old_weights)}, {len(new_weights)} and {len(listed_gradients)}"
        )
    with_gradient = 0
    unchanged = 0
    for old, new, gradient in zip(old_weights, new_weights, listed_gradients, strict=True):
        if gradient is None:
            continue
        counts = swallowed_counts(old, new, gradient)
        with_gradient += counts[0]
        unchanged += counts[1]
    return unchanged / with_gradient if with_gradient else 0.0


@torch.no_grad()
def swallowed_counts(before: Tensor, after: Tensor, gradient: Tensor) -> tuple[int, int]:
    """Count a weight's elements with a non-zero gradient, and those of them that are unchanged.

    Raises:
        ValueError: the three differ in shape.
    """
    if not before.shape == after.shape == gradient.shape:
        raise ValueError(
            "expected one shape of the weight before, the weight after and the gradient; got "
            f"{tuple(before.shape)}, {tuple(after.shape)} and {tuple(gradient.shape)}"
        )
    has_gradient = gradient != 0
    unchanged = has_gradient & (before == after)
    return int(has_gradient.sum()), int(unchanged.sum())
