"""Per-layer scales: exact outside the layer, a rescue inside it."""

import pytest
import torch
from torch import Tensor, nn

from labkit.amp import autocast, layer_scales, unscale
from labkit.instrument import probe


class Residual(nn.Module):
    """Its input is read twice, inside the scaled layer and beside it; one tensor goes in by name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.LayerNorm(6))

    def forward(self, inputs: Tensor, *, gate: Tensor) -> Tensor:
        return inputs + self.inner(inputs) * gate


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(5, 6), Residual(), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return self.last(self.block(hidden, gate=torch.sigmoid(hidden)).tanh_())


def gradients(model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    model(inputs).square().mean().backward()
    return [p.grad for p in (*model.parameters(), inputs)]  # type: ignore[misc]


def test_fp32_gradients_are_the_same_bit_for_bit() -> None:
    nested = {"block": 5, "block.inner": 6, "block.inner.0": -3}
    for scales in ({"block": 12}, {"first": -7, "last": 9}, nested, {"": 8}):
        torch.manual_seed(0)
        model = Net()
        plain = gradients(model)
        with layer_scales(model, scales) as left:
            scaled = gradients(model)
        assert left == {}
        assert all(map(torch.equal, plain, scaled)), scales


def test_worked_example_the_gradient_inside_is_larger_and_outside_is_not() -> None:
    # Four layers of weight 1/2; the two in the middle have 2^4 of their own.
    half = [nn.Linear(1, 1, bias=False) for _ in range(4)]
    for layer in half:
        nn.init.constant_(layer.weight, 0.5)
    model = nn.Sequential(half[0], nn.Sequential(half[1], half[2]), half[3])
    with layer_scales(model, {"1": 4}), probe(model) as probed:
        model(torch.ones(1, 1)).backward()
    arrived = {name: gradient.item() for name, gradient in probed.gradients.items()}
    assert arrived == {"0": 0.125, "1.0": 0.25 * 16, "1.1": 0.5, "2": 1}
    assert [layer.weight.grad.item() for layer in half] == [0.125] * 4  # type: ignore[union-attr]
    with probe(model) as probed:
        model(torch.ones(1, 1)).backward()
    assert probed.gradients["1.0"].item() == 0.25, "no hook is left"


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor


def quiet_block() -> nn.Sequential:
    """A block whose inner gradients are 2^-15 of what flows in and out: below FP16, while outside all is well."""
    torch.manual_seed(0)
    return nn.Sequential(Times(2.0**15), nn.Linear(4, 4, bias=False), Times(2.0**-15))


def backward(model: nn.Module, dtype: torch.dtype) -> None:
    inputs = torch.full((2, 4), 2.0**-6, dtype=dtype)
    (model(inputs).float() * 2.0**-12).sum().backward()


def test_a_layer_whose_activation_gradients_underflow_is_saved() -> None:
    exact = quiet_block()
    backward(exact, torch.float32)
    expected = exact[1].weight.grad
    assert expected.abs().min() > 0

    def learned(scales: dict[str, int], halved: bool) -> Tensor:
        model = nn.Sequential(quiet_block())
        if halved:  # O2: FP16 weights, whose gradients stay scaled until they are FP32
            model.half()
        with layer_scales(model, scales) as left, autocast(enabled=not halved):
            backward(model, torch.float16)
        (gradient,), found_inf = unscale([p.grad for p in model.parameters()], 1.0)
        assert not found_inf
        return gradient * 2.0 ** -left.get("0.1.weight", 0)

    for halved in (False, True):
        assert torch.equal(learned({}, halved), torch.zeros(4, 4)), "without, the layer learns nothing"
        assert torch.allclose(learned({"0": 14}, halved), expected, rtol=2.0**-10), "FP16's rounding, and nothing else"


def test_what_is_left_names_low_precision_weights_and_adds_up_nested_scales() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2, bias=False).half()), nn.Linear(2, 2))
    with layer_scales(model, {"0": 3, "0.0": 4, "1": 5}) as left:
        assert left == {"0.0.weight": 7}


def test_what_cannot_be_exact_is_refused() -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    for model, scales, complaint in (
        (Net(), {"blok": 3}, "no layer 'blok'; it has .*'block'"),
        (Net(), {"block": 0.5}, "whole number"),
        (Net(), {"block": 127}, "from -126 to 126"),
        (tied, {"0": 3}, "weight of layer '0' is used outside"),
    ):
        with pytest.raises(ValueError, match=complaint), layer_scales(model, scales):
            pass


def test_a_layer_that_changes_its_input_in_place_is_refused_and_one_before_it_is_not() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1)), torch.randn(2, 4)
    model(x).sum().backward()
    plain = [str(parameter.grad) for parameter in model.parameters()]
    model.zero_grad()
    with layer_scales(model, {"0": 5, "2": -3}):
        model(x).sum().backward()
    assert [str(parameter.grad) for parameter in model.parameters()] == plain
    with layer_scales(model, {"1": 5}), pytest.raises(RuntimeError, match=r"changes its input in place"):
        model(x)


def test_a_frozen_layer_and_one_without_gradients_are_left_alone() -> None:
    model = Net().requires_grad_(False)
    with layer_scales(model, {"block": 3}), torch.no_grad():
        assert not model(torch.ones(1, 5)).requires_grad
