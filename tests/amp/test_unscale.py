"""Unscaling and clipping of gradients, and loss scales of single layers.

Unscaling is compared with torch.amp.GradScaler and with exact values, clipping with norms in FP64,
and gradients under layer scales with those of the plain network.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from labkit.amp import autocast, layer_scales, unscale
from labkit.amp.loss_scaling.clip import clip_
from labkit.amp.loss_scaling.magnitudes import largest_magnitudes
from labkit.amp.loss_scaling.readings import read_scalars
from labkit.instrument import probe

LOW = (torch.float16, torch.bfloat16)
WIDE = (torch.float32, torch.float64)


@pytest.mark.parametrize("in_place", [False, True])
def test_unscaling_keeps_values_and_narrows_no_dtype(in_place: bool) -> None:
    for dtype in (*LOW, *WIDE):
        scaled = torch.tensor([3.0, -0.5, 0.0], dtype=dtype) * 2**8
        before = scaled.clone()
        (gradient,), found_inf = unscale([scaled], 2.0**8, in_place=in_place)
        assert gradient.dtype == (torch.float32 if dtype in LOW else dtype)
        assert gradient.tolist() == [3.0, -0.5, 0.0], dtype
        assert not found_inf
        assert (gradient.data_ptr() == scaled.data_ptr()) == (in_place and dtype in WIDE)
        assert torch.equal(scaled, gradient if in_place and dtype in WIDE else before), dtype


def nonfinite_after_unscaling(
    gradients: list[Tensor], scale: float = 8.0, **options: bool
) -> tuple[bool, list[int]]:
    """Return found_inf, and the indices of the unscaled gradients that hold inf or NaN."""
    unscaled, found_inf = unscale(gradients, scale, **options)
    return found_inf, [
        i
        for i, size in enumerate(read_scalars(largest_magnitudes(unscaled)))
        if not math.isfinite(size)
    ]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_bad_element_anywhere_is_found_and_named(bad: float) -> None:
    for dtype, position in itertools.product((*LOW, *WIDE), range(4)):
        gradients = [
            torch.ones(3).half(),
            torch.ones(2, 2),
            torch.ones(()),
            torch.full((37,), 60000.0, dtype=dtype),
        ]
        assert nonfinite_after_unscaling(gradients) == (False, [])
        gradients[position].view(-1)[-1] = bad
        assert nonfinite_after_unscaling(gradients) == (True, [position]), dtype


def test_overflow_by_unscaling_is_found() -> None:
    # Finite before unscaling, which a scale below 1 makes a multiplication by 2^126. torch checks
    # before it multiplies, and misses this overflow.
    for dtype in WIDE:
        huge = torch.tensor([torch.finfo(dtype).max / 2], dtype=dtype)
        assert nonfinite_after_unscaling([huge], 2.0**-126) == (True, [0]), dtype


def test_large_finite_gradients_are_finite() -> None:
    # The sums of these elements overflow, but no element does.
    gradients = [torch.full((4,), 60000.0).half(), torch.full((4,), 3e38)]
    assert nonfinite_after_unscaling(gradients) == (False, [])


@pytest.mark.parametrize("in_place", [False, True])
def test_fp32_gradients_equal_torch_amps_bit_for_bit(in_place: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for scale in (2.0**13, 2.0**127, 1000.0, 1.1, 0.3):
        gradients = [torch.randn(50, generator=generator) * 2.0**e for e in range(-20, 20)]
        parameters = [torch.nn.Parameter(torch.zeros(50)) for _ in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(()))
        scaler.unscale_(torch.optim.SGD(parameters))
        ours, _ = unscale(gradients, torch.tensor(scale).item(), in_place=in_place)
        assert all(torch.equal(mine, p.grad) for mine, p in zip(ours, parameters, strict=True)), (
            scale
        )


def test_fp64_gradients_keep_their_precision() -> None:
    # torch's kernel multiplies by a reciprocal in FP32; 1/3 would be right to 8 digits only.
    (gradient,), _ = unscale([torch.tensor([1.0], dtype=torch.float64)], 3.0)
    assert gradient.item() == 1 / 3


def test_shapes_and_strides_of_all_kinds() -> None:
    gradients = [
        torch.ones(()),
        torch.ones(0),
        torch.ones(4, 6).T,
        torch.ones(4, 6)[:, ::2],
        torch.ones(1).expand(5),
    ]
    for gradient, unscaled in zip(gradients, unscale(gradients, 4.0)[0], strict=True):
        assert torch.equal(unscaled, torch.full(gradient.shape, 0.25))
    assert unscale([], 4.0) == ([], False)


@pytest.mark.parametrize("in_place", [False, True])
def test_sparse_gradients_are_added_up_in_fp32_then_unscaled(in_place: bool) -> None:
    # Row 1 occurs twice: 40000 + 40000 is beyond FP16, but not beyond the FP32 of the result.
    for dtype in (*LOW, *WIDE):
        rows = torch.tensor([[40000.0, 8.0], [16.0, 0.0], [40000.0, 8.0]], dtype=dtype)
        sparse = torch.sparse_coo_tensor(
            torch.tensor([[1, 3, 1]]), rows, (5, 2), check_invariants=True
        )
        expected = sparse.to(torch.float64).to_dense() / 8
        (unscaled,), found_inf = unscale([sparse], 8.0, in_place=in_place)
        assert unscaled.is_sparse
        assert not found_inf
        assert torch.equal(unscaled.to_dense().double(), expected), dtype
        sparse._values()[0, 0] = math.nan
        assert nonfinite_after_unscaling([sparse], in_place=in_place) == (True, [0])


def test_duplicates_that_overflow_only_together_are_found() -> None:
    twice = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([3e38, 3e38]), (2,), check_invariants=True
    )
    (unscaled,), found_inf = unscale([twice], 8.0)
    # Duplicates are added up before they are unscaled, and 6e38 is beyond FP32.
    assert found_inf
    assert unscaled.is_coalesced()


@pytest.mark.parametrize(("in_place", "value_after"), [(False, 1.0), (True, 0.25)])
def test_sparse_gradients_change_in_place_only(in_place: bool, value_after: float) -> None:
    gradient = torch.eye(3).to_sparse()
    unscale([gradient], 4.0, in_place=in_place)
    assert torch.equal(gradient.to_dense(), torch.eye(3) * value_after)


def test_tensors_that_are_not_floating_point_are_refused() -> None:
    for dtype, in_place in itertools.product((torch.complex64, torch.int32), (False, True)):
        with pytest.raises(TypeError, match="floating-point"):
            unscale([torch.ones(2, dtype=dtype)], 4.0, in_place=in_place)


def test_scales_outside_of_the_normal_range_are_refused() -> None:
    for scale in (0.0, -2.0, 2.0**-128, 2.0**128, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"from 2\^-126 to 3.4e38"):
            unscale([torch.ones(1)], scale)


def norm_in_fp64(tensors: list[Tensor], norm_type: float) -> float:
    """Return the norm of all elements in FP64, relative to the largest: no power overflows."""
    sizes = np.abs(np.concatenate([t.double().numpy().ravel() for t in tensors]))
    largest = float(sizes.max())
    if math.isinf(norm_type):
        return largest
    return largest * float(((sizes / largest) ** norm_type).sum()) ** (1 / norm_type)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, 10.0, math.inf])
def test_clipping_equals_fp64(norm_type: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (1e-40, 1e-30, 1e-20, 1e-3, 1.0, 1e10, 1e20, 1e30, 3e38):
        shapes = ((40, 3), (1,), (0,), (500,))
        gradients = [(torch.rand(shape, generator=generator) * 2 - 1) * size for shape in shapes]
        before = [g.clone() for g in gradients]
        expected = norm_in_fp64(before, norm_type)
        max_norm = expected / 8
        norm = clip_(gradients, max_norm, norm_type).item()
        # The default of `abs` is 1e-12, above some of the norms.
        assert norm == pytest.approx(expected, rel=1e-5, abs=1e-44), size
        # torch.nn.utils.clip_grad_norm_ multiplies by this coefficient.
        coefficient = max_norm / (expected + 1e-6)
        for ours, old in zip(gradients, before, strict=True):
            theirs = (old.double() * coefficient).float()
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-44)


@pytest.mark.parametrize("large_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_several_dtypes_are_clipped_as_one(
    dtype: torch.dtype, large_first: bool
) -> None:
    # FP16 does not hold the factor 1 / 2e9, and holds 0.5.
    gradients = [torch.ones(4).to(dtype), torch.full((4,), 1e9)]
    if large_first:
        gradients.reverse()
    assert clip_(gradients, 1.0).item() == pytest.approx(2e9)
    large = next(gradient for gradient in gradients if gradient.dtype is torch.float32)
    assert large.tolist() == pytest.approx([0.5] * 4)


def test_products_of_a_small_factor_stay_in_fp16() -> None:
    gradient = torch.full((4,), 60000.0).half()
    clip_([gradient], 0.0036)
    # The factor 3e-8 is rounded to 6e-8 in FP16.
    assert gradient.tolist() == pytest.approx([0.0018] * 4, rel=1e-3)


def test_a_parameter_without_a_gradient_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a Tensor, got None"):
        unscale([torch.ones(1), None], 2.0)


def test_a_norm_type_may_be_text_as_in_torch() -> None:
    gradients = [torch.tensor([3.0, -4.0])]
    assert clip_(gradients, 1.0, "inf").item() == 4.0
    assert gradients[0].tolist() == pytest.approx([0.75, -1.0])
    theirs = nn.Parameter(torch.zeros(2))
    theirs.grad = torch.tensor([3.0, -4.0])
    torch.nn.utils.clip_grad_norm_(theirs, 1.0, "inf")
    assert torch.equal(gradients[0], theirs.grad)
    with pytest.raises(ValueError, match="norm_type: expected a number such as 2 or inf, got nan"):
        clip_(gradients, 1.0, math.nan)


def test_gradients_within_the_limit_are_not_clipped() -> None:
    for size in (1e-30, 1.0, 1e30):
        gradient = torch.tensor([3.0, 1.2345]) * size
        before = gradient.clone()
        clip_([gradient], max(10.0 * size, 1.0))
        assert torch.equal(gradient, before), size


def test_gradients_with_inf_or_nan_are_not_clipped() -> None:
    for bad in (math.inf, math.nan):
        for max_norm in (0.0, 1e-30, 1.0, math.inf):
            gradients = [torch.tensor([1.0, bad]), torch.tensor([3e38])]
            assert not math.isfinite(clip_(gradients, max_norm).item())
            assert gradients[0][0] == 1, max_norm
            assert gradients[1][0] == torch.tensor(3e38), max_norm


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


@pytest.mark.parametrize("max_norm", [-1.0, math.nan])
def test_an_invalid_largest_norm_changes_no_gradient(max_norm: float) -> None:
    gradient = torch.ones(2)
    with pytest.raises(ValueError, match="max_norm: expected 0 or more"):
        clip_([gradient], max_norm)
    assert gradient.tolist() == [1.0, 1.0]
