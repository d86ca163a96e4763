"""Loss scales of single layers, against gradients of the plain network."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labkit.amp import autocast, layer_scales, unscale
from labkit.instrument import probe


class Residual(nn.Module):
    """A residual block, whose input is read inside and outside of the scaled layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.LayerNorm(6))

    def forward(self, inputs: Tensor, *, gate: Tensor) -> Tensor:
        return inputs + self.inner(inputs) * gate


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.block = Residual()
        self.last = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return self.last(self.block(hidden, gate=torch.sigmoid(hidden)).tanh_())


def gradients(model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    model(inputs).square().mean().backward()
    return [p.grad for p in (*model.parameters(), inputs)]


def test_layer_scales_change_no_bit_of_fp32_gradients() -> None:
    nested = {"block": 5, "block.inner": 6, "block.inner.0": -3}
    for scales in ({"block": 12}, {"first": -7, "last": 9}, nested, {"": 8}):
        torch.manual_seed(0)
        model = Net()
        plain = gradients(model)
        with layer_scales(model, scales) as remaining:
            scaled = gradients(model)
        # FP32 gradients leave no scale to be divided out by the caller.
        assert remaining == {}
        assert all(map(torch.equal, plain, scaled)), scales


def test_layer_scale_enlarges_only_gradients_inside() -> None:
    # Four layers of weight 1/2; the two in the middle have a scale of 2^4.
    layers = [nn.Linear(1, 1, bias=False) for _ in range(4)]
    for layer in layers:
        nn.init.constant_(layer.weight, 0.5)
    model = nn.Sequential(layers[0], nn.Sequential(layers[1], layers[2]), layers[3])
    with layer_scales(model, {"1": 4}), probe(model) as probed:
        model(torch.ones(1, 1)).backward()
    output_gradients = {name: gradient.item() for name, gradient in probed.gradients.items()}
    assert output_gradients == {"0": 0.125, "1.0": 0.25 * 16, "1.1": 0.5, "2": 1}
    assert [layer.weight.grad.item() for layer in layers] == [0.125] * 4
    with probe(model) as probed:
        model(torch.ones(1, 1)).backward()
    assert probed.gradients["1.0"].item() == 0.25, "a hook stayed"


class QuietBlock(nn.Linear):
    """A layer between factors of 2^15 and 2^-15.

    Its gradients underflow in FP16, and those outside of the block do not.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * 2.0**15) * 2.0**-15


def test_layer_scale_prevents_underflow_of_gradients() -> None:
    def weight_gradient(
        dtype: torch.dtype, scales: dict[str, int], *, half_weights: bool = False
    ) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(QuietBlock(4, 4, bias=False))
        # As under O2, gradients of FP16 weights stay scaled until they are cast to FP32.
        if half_weights:
            model.half()
        with (
            layer_scales(model, scales) as remaining,
            autocast(enabled=dtype is torch.float16 and not half_weights),
        ):
            (model(torch.full((2, 4), 2.0**-6, dtype=dtype)).float() * 2.0**-12).sum().backward()
        (gradient,), found_inf = unscale([p.grad for p in model.parameters()], 1.0)
        assert not found_inf
        return gradient * 2.0 ** -remaining.get("0.weight", 0)

    expected = weight_gradient(torch.float32, {})
    assert expected.abs().min() > 0
    for half_weights in (False, True):
        unscaled = weight_gradient(torch.float16, {}, half_weights=half_weights)
        assert not unscaled.any(), "no gradient underflows, so the test shows nothing"
        scaled = weight_gradient(torch.float16, {"0": 14}, half_weights=half_weights)
        # FP16 rounds to within half of 2^-10.
        assert torch.allclose(scaled, expected, rtol=2.0**-10, atol=0)


def test_nested_scales_of_fp16_weights_are_added() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2, bias=False).half()), nn.Linear(2, 2))
    with layer_scales(model, {"0": 3, "0.0": 4, "1": 5}) as remaining:
        assert remaining == {"0.0.weight": 7}


def test_scaled_layers_without_gradients_run() -> None:
    frozen = Net().requires_grad_(False)
    with layer_scales(frozen, {"block": 3}), torch.no_grad():
        assert not frozen(torch.ones(1, 5)).requires_grad


def test_scales_that_cannot_be_applied_are_refused() -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    for model, scales, message in (
        (Net(), {"blok": 3}, "no layer 'blok'; it has .*'block'"),
        (Net(), {"block": 0.5}, "whole number"),
        (Net(), {"block": True}, "whole number"),
        (Net(), {"block": 127}, "from -126 to 126"),
        (tied, {"0": 3}, "weight of layer '0' is used outside"),
    ):
        with pytest.raises(ValueError, match=message), layer_scales(model, scales):
            pass


def test_a_shared_layer_has_a_scale_by_either_name() -> None:
    shared = nn.Linear(2, 2).half()
    model = nn.ModuleDict({"first": shared, "second": shared})
    for name in model:
        with layer_scales(model, {name: 3}) as remaining:
            assert remaining == {"first.weight": 3, "first.bias": 3}, name


def test_a_layer_scale_may_be_a_number_of_numpy() -> None:
    layer = nn.Linear(2, 1).half()
    with layer_scales(nn.Sequential(layer), {"0": np.int64(3)}) as remaining:
        layer(torch.ones(1, 2).half()).sum().backward()
    assert remaining == {"0.weight": 3, "0.bias": 3}
    assert {type(log2) for log2 in remaining.values()} == {int}
    assert layer.weight.grad.tolist() == [[8.0, 8.0]]


def test_a_layer_that_changes_its_input_in_place_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    x = torch.randn(2, 4)
    with layer_scales(model, {"0": 5, "2": -3}):
        # A layer before the one in place may have a scale.
        model(x).sum().backward()
    with (
        layer_scales(model, {"1": 5}),
        pytest.raises(RuntimeError, match=r"changes its input in place"),
    ):
        model(x)
