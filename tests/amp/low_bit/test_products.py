"""Matrix products with 8- and 4-bit operands, against a scalar reference.

The reference below rounds one number at a time by gfloat, and shares no code with labkit.
"""

import copy
import itertools
import math
from dataclasses import replace

import gfloat
import gfloat.formats as rows
import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from labkit.amp import RECIPES, Engine, ProductFormat, TensorScale
from labkit.formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    FP32,
    MXFP4,
    MXFP8,
    NVFP4,
    BlockFormat,
)
from tests.amp.low_bit.engines import DELAYED, SGD, engine_with, step

ELEMENTS = {
    E4M3: (rows.format_info_ocp_e4m3, ml_dtypes.float8_e4m3fn),
    E5M2: (rows.format_info_ocp_e5m2, ml_dtypes.float8_e5m2),
    E2M1: (rows.format_info_ocp_e2m1, ml_dtypes.float4_e2m1fn),
    E2M3: (rows.format_info_ocp_e2m3, ml_dtypes.float6_e2m3fn),
    E3M2: (rows.format_info_ocp_e3m2, ml_dtypes.float6_e3m2fn),
}
SCALED = ("FP8 current", "FP8 delayed", "MXFP8", "NVFP4", "unit scaled")
PLAIN_NVFP4 = replace(RECIPES["NVFP4"].products, stochastic_gradients=False, last_in_fp32=False)
# DeepSeek-V3's blocks of 128 with FP32 scales: arXiv:2412.19437, section 3.3.2.
DEEPSEEK = BlockFormat("128", E4M3, FP32, 128)
REFERENCED = {
    "FP8 current": RECIPES["FP8 current"].products,
    "MXFP8": RECIPES["MXFP8"].products,
    "MXFP4 down": ProductFormat(MXFP4, MXFP4, TensorScale.NONE, scale_up=False),
    "NVFP4": PLAIN_NVFP4,
    "unit scaled": RECIPES["unit scaled"].products,
    "blocks of 128": ProductFormat(DEEPSEEK, DEEPSEEK, TensorScale.NONE, square_weights=True),
}


def products_of(
    format: ProductFormat, x: torch.Tensor, w: torch.Tensor, d: torch.Tensor
) -> list[np.ndarray]:
    """Return y, dx and dw of y = x w^T under a format, for the gradient d of y."""
    layer = nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data.copy_(w)
    engine = engine_with(format, layer)
    x = x.clone().requires_grad_()
    with engine.forward():
        y = layer(x)
    y.backward(d)
    return [t.detach().double().numpy() for t in (y, x.grad, layer.weight.grad)]


GFLOAT = {format.name: row for format, (row, _) in ELEMENTS.items()}
f32 = np.float32


def nearest(value: float, name: str) -> float:
    return gfloat.round_float(GFLOAT[name], float(value), gfloat.RoundMode.TiesToEven, sat=True)


def reference_block(block: list[float], name: str, scale_up: bool) -> list[float]:
    """Return the values of a block after rounding.

    Args:
        block: Its numbers.
        name: The name of its block format.
        scale_up: Whether a power-of-two scale is doubled where the largest number would saturate.
    """
    largest = max(map(abs, block))
    if largest == 0:
        return [0.0] * len(block)
    if name in ("MXFP8", "MXFP4"):
        element, top, emax = ("E4M3", 448.0, 8) if name == "MXFP8" else ("E2M1", 6.0, 2)
        exponent = math.floor(math.log2(largest)) - emax
        scale = 2.0 ** (exponent + (scale_up and largest > top * 2.0**exponent))
    elif name == "NVFP4":
        element = "E2M1"
        # 6 is the largest number of E2M1, and 2^-9 the smallest positive one of E4M3.
        scale = max(nearest(f32(largest) / f32(6), "E4M3"), 2.0**-9)
    else:
        element = "E4M3"
        scale = float(f32(largest) / f32(448))
    return [nearest(f32(value) / f32(scale), element) * scale for value in block]


def reference_operand(
    t: np.ndarray, format: ProductFormat, role: str, unit: float
) -> tuple[np.ndarray, float]:
    """Return the rounded values of an operand, still scaled, and the scale of the whole tensor.

    Args:
        t: The operand; products are summed along its rows, so blocks lie in rows.
        format: The formats of both passes.
        role: "input", "weight" or "gradient".
        unit: The scale for formats that have no tensor scale of their own.
    """
    row = format.gradient if role == "gradient" else format.forward
    largest = f32(np.abs(t).max())
    # 2688 = 6 * 448, the largest element of NVFP4 times the largest scale of a block.
    scale = {"MXFP8": 1.0, "MXFP4": 1.0, "128": 1.0, "NVFP4": f32(2688) / largest}.get(
        row.name, unit
    )
    if format.scale is TensorScale.CURRENT and not format.blocks:
        scale = f32({"E4M3": 448, "E5M2": 57344}[row.name]) / largest
    t = (t.astype(f32) * f32(scale)).astype(np.float64)
    if not format.blocks:
        return np.array([[nearest(v, row.name) for v in line] for line in t]), float(scale)
    width = row.size
    height = width if role == "weight" and format.square_weights else 1
    out = np.zeros_like(t)
    for i in range(0, len(t), height):
        for j in range(0, t.shape[1], width):
            tile = t[i : i + height, j : j + width]
            rounded = reference_block(tile.ravel().tolist(), row.name, format.scale_up)
            out[i : i + height, j : j + width] = np.reshape(rounded, tile.shape)
    return out, float(scale)


def reference_rotation(t: np.ndarray) -> np.ndarray:
    """Return rows after the random Hadamard transform, 16 numbers at a time.

    Signs are applied first. Entry (i, j) of the Hadamard matrix is -1 to the number of ones that
    the bits of i and j share, and 4 = sqrt(16) makes it orthogonal.
    """
    # The signs are drawn once; labkit has the same ones.
    signs = [-1, 1, 1, -1, 1, 1, 1, 1, 1, -1, -1, 1, 1, 1, -1, 1]
    lines = np.pad(t, ((0, 0), (0, -t.shape[1] % 16)))
    out = np.zeros_like(lines)
    for start in range(0, lines.shape[1], 16):
        for i in range(16):
            for j in range(16):
                out[:, start + i] += (
                    lines[:, start + j] * signs[j] * (-1) ** (i & j).bit_count() / 4
                )
    return out.astype(f32).astype(np.float64)


def reference_products(
    format: ProductFormat, x: np.ndarray, w: np.ndarray, d: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (product, sum of the magnitudes of its terms) for y, dx and dw."""
    size = math.sqrt((d**2).mean())
    units = {
        "input": 1.0,
        "weight": 2.0 ** round(math.log2(w.shape[1]) / 2),
        "gradient": 2.0 ** round(-math.log2(size)),
    }
    units = units if format.scale is TensorScale.UNIT else dict.fromkeys(units, 1.0)
    results = []
    for (left, left_role), (right, right_role), rotated in (
        ((x, "input"), (w, "weight"), False),
        ((d, "gradient"), (w.T, "weight"), False),
        ((d.T, "gradient"), (x.T, "input"), format.hadamard),
    ):
        if rotated:
            left = reference_rotation(left)
            right = reference_rotation(right)
        a, a_scale = reference_operand(left, format, left_role, units[left_role])
        b, b_scale = reference_operand(right, format, right_role, units[right_role])
        scale = a_scale * b_scale
        results.append((a @ b.T / scale, np.abs(a) @ np.abs(b).T / scale))
    return results


@pytest.mark.parametrize(
    "shape", [(5, 7, 40), pytest.param((40, 60, 800), marks=pytest.mark.slow)], ids=str
)
def test_output_and_gradients_equal_the_reference(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    torch.manual_seed(0)
    x = torch.randn(m, k) * torch.rand(m, k) ** 4
    w = torch.randn(n, k) / 8
    d = torch.randn(m, n) * 2.0**-9
    x[0] = 0
    inputs = [t.double().numpy() for t in (x, w, d)]
    for name, format in REFERENCED.items():
        products = products_of(format, x, w, d)
        expected = reference_products(format, *inputs)
        for product, (exact, magnitudes), length in zip(products, expected, (k, n, m), strict=True):
            # FP32 adds `length` products in any order; Higham, Accuracy and Stability of Numerical
            # Algorithms, 2nd ed., section 3.1, bounds the error.
            is_wrong = np.abs(product - exact) > (length + 3) * 2.0**-24 * magnitudes
            # Rotated operands may differ in their last bit, and where that decides a tie of E2M1,
            # the rounded ones differ by a step: up to 2 % of the elements of dw may be affected.
            allowed = 0.02 if format.hadamard and length == m else 0
            assert is_wrong.mean() <= allowed, f"{name}: {is_wrong.sum()} elements"


def test_a_convolution_is_the_product_of_its_patches() -> None:
    torch.manual_seed(0)
    format = RECIPES["MXFP8"].products
    conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    x = torch.randn(2, 3, 6, 6)
    d = torch.randn(2, 8, 6, 6)
    with engine_with(format, conv).forward():
        y = conv(x)
    y.backward(d)
    patches = F.unfold(x, 3, padding=1).transpose(1, 2).reshape(-1, 27)

    def one_row_per_pixel(t: torch.Tensor) -> torch.Tensor:
        return t.detach().permute(0, 2, 3, 1).reshape(-1, 8)

    weight = conv.weight.detach().flatten(1)
    outputs, _, weight_gradient = products_of(format, patches, weight, one_row_per_pixel(d))
    # The order of the FP32 sums may differ: over 27 products in y, and over 72 in the gradient.
    assert np.allclose(one_row_per_pixel(y).numpy(), outputs, rtol=0, atol=1e-6)
    assert np.allclose(conv.weight.grad.flatten(1).numpy(), weight_gradient, rtol=0, atol=1e-5)


def test_activation_checkpointing_changes_no_bit() -> None:
    class Net(nn.Module):
        def __init__(self, *, checkpointed: bool) -> None:
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.last = nn.Linear(16, 4)
            self.checkpointed = checkpointed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.checkpointed:
                hidden = checkpoint(self.first, x, use_reentrant=False)
            else:
                hidden = self.first(x)
            return self.last(hidden.relu())

    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    for name in SCALED:
        outputs = []
        for checkpointed in (False, True):
            torch.manual_seed(0)
            engine = engine_with(RECIPES[name].products, Net(checkpointed=checkpointed))
            outputs.append([step(engine, factor * x) for factor in (1.0, 4.0, 1.0)])
        assert all(map(torch.equal, *outputs)), name


def test_attention_norms_and_the_last_layer_stay_fp32() -> None:
    """Embeddings do not count as the last layer, since they multiply nothing.

    The last layer may share its weight with an embedding, and a table of positions may be declared
    after it.
    """
    q = torch.randn(1, 4, 8)
    x = torch.randn(3, 24)
    for tied in (True, False):
        model = nn.ModuleDict(
            {"tokens": nn.Embedding(20, 24), "body": nn.Linear(24, 24), "norm": nn.LayerNorm(24)}
        )
        model["head"] = nn.Linear(24, 20)
        if tied:
            model["head"].weight = model["tokens"].weight
        else:
            model["positions"] = nn.Embedding(6, 24)

        def run(m=model):
            attention = F.scaled_dot_product_attention(q, q, q)
            return attention, m["norm"](x), m["head"](x), m["body"](x)

        with engine_with(RECIPES["NVFP4"].products, model).forward():
            low_bit = run()
        equals_fp32 = [torch.equal(a, b) for a, b in zip(low_bit, run(), strict=True)]
        assert equals_fp32 == [True, True, True, False], tied


def test_a_step_with_inf_is_skipped_under_a_loss_scale() -> None:
    for name in SCALED:
        recipe = replace(RECIPES[name], scaler=RECIPES["O1"].scaler)
        engine = Engine(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), SGD, recipe)
        with engine.forward():
            loss = engine(torch.full((2, 4), math.inf)).sum()
        engine.backward(loss)
        assert not engine.step().stepped, name


def test_a_recurrent_layer_computes_on_rounded_operands() -> None:
    def rounded(t: torch.Tensor) -> torch.Tensor:
        """Return a tensor after rounding to E4M3 with a scale that maps its maximum to 448."""
        scale = (torch.tensor(448.0) / t.abs().max()).item()
        return (t * scale).to(torch.float8_e4m3fn).float() / scale

    torch.manual_seed(0)
    lstm = nn.LSTM(8, 16, 2, batch_first=True)
    x = torch.randn(3, 5, 8)
    with engine_with(RECIPES["FP8 current"].products, lstm).forward():
        y, _ = lstm(x)
    y.sum().backward()
    other = copy.deepcopy(lstm).requires_grad_(False)
    for p in other.parameters():
        # Biases are added in FP32, and are not rounded.
        p.copy_(rounded(p) if p.dim() > 1 else p)
    assert torch.equal(y, other(rounded(x))[0])
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in lstm.parameters())


def test_a_recurrent_layer_that_is_the_last_stays_fp32() -> None:
    for recurrent in (nn.LSTM(16, 16, 2), nn.GRU(16, 16), nn.RNN(16, 16)):
        x = torch.randn(5, 3, 16)
        with engine_with(RECIPES["NVFP4"].products, recurrent).forward():
            y, _ = recurrent(x)
        assert torch.equal(y, recurrent(x)[0]), recurrent


def test_recurrent_layer_accepts_functional_weights() -> None:
    lstm = nn.LSTM(8, 16)
    x = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(0))
    weights = {name: p.detach().clone() for name, p in lstm.named_parameters()}
    with engine_with(RECIPES["FP8 current"].products, lstm).forward():
        expected, _ = lstm(x)
        y, _ = functional_call(lstm, weights, (x,))
    assert torch.equal(y, expected)


def test_a_product_format_takes_names_and_numbers_of_numpy() -> None:
    assert ProductFormat("E4M3", torch.float8_e5m2) == RECIPES["FP8 current"].products
    assert ProductFormat("mxfp8", "MXFP8", "none") == RECIPES["MXFP8"].products
    history = ProductFormat(E4M3, E5M2, "delayed", history=np.int64(3)).history
    assert type(history) is int
    for options in ({"scale": "per tensor"}, {"scale": None}, {"last_in_fp32": "no"}):
        with pytest.raises(TypeError, match=f"{next(iter(options))}: expected"):
            ProductFormat(E4M3, E5M2, **options)
    with pytest.raises(TypeError, match="gradient: expected a Format"):
        ProductFormat(E4M3, None)


def test_a_contradiction_is_refused_with_its_reason() -> None:
    for make, message in (
        (lambda: ProductFormat(BF16, BF16), "about 8 bits; BF16 does not. Take E4M3"),
        (lambda: ProductFormat(MXFP8, E5M2), "one is of blocks, the other is not"),
        (lambda: ProductFormat(E4M3, E5M2, square_weights=True), "for formats of blocks"),
        (lambda: ProductFormat(E4M3, E5M2, history=0), "a whole number of 1 or more, got 0"),
        (lambda: ProductFormat(E4M3, E5M2, history=1.5), "a whole number of 1 or more, got 1.5"),
        (
            lambda: ProductFormat(E4M3, E5M2, margin=1),
            "margin=1: expected scale=TensorScale.DELAYED",
        ),
        (lambda: replace(DELAYED, margin=-1), "expected a whole number of 0 or more, got -1"),
        (lambda: replace(DELAYED, margin=0.5), "expected a whole number of 0 or more, got 0.5"),
        (lambda: replace(DELAYED, margin=10_000), "every number is written as 0"),
        # The positive numbers of E4M3 span less than 2^18, from 2^-9 to below 2^9.
        (lambda: replace(DELAYED, margin=18), "every number is written as 0"),
        (
            lambda: replace(RECIPES["MXFP8"], autocast=BF16),
            "Take model=FP32, autocast=None, or products=None",
        ),
        (lambda: replace(RECIPES["BF16"], products=ProductFormat(NVFP4, NVFP4)), "Take model=FP32"),
    ):
        with pytest.raises(ValueError, match=message):
            make()


def test_a_layer_of_zeros_has_finite_gradients() -> None:
    """The weights of a last layer are often initialised with zero.

    Their largest magnitude, zero, gives no scale, and their gradients must be finite all the same.
    """
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
    for name, zero in itertools.product(SCALED, (0.0, -0.0)):
        model = nn.Sequential(nn.Linear(32, 16, bias=False), nn.Linear(16, 16, bias=False))
        nn.init.ones_(model[0].weight)
        nn.init.constant_(model[1].weight, zero)
        engine = engine_with(RECIPES[name].products, model)
        for _ in range(2):
            engine.zero_grad()
            with engine.forward():
                loss = (engine(x) - 1).square().mean()
            engine.backward(loss)
            gradient = engine.gradients()["1.weight"]
            assert gradient.isfinite().all(), (name, zero)
            assert gradient.abs().max() > 0, (name, zero)
            engine.step()


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_outputs_multiplies_as_in_fp32() -> None:
    for name in SCALED:
        model = nn.Sequential(nn.Linear(16, 0), nn.Linear(0, 4))
        with engine_with(RECIPES[name].products, model).forward():
            y = model(torch.ones(2, 16))
        assert torch.equal(y, model(torch.ones(2, 16))), name


def test_products_of_tiny_operands_do_not_overflow() -> None:
    """The scales of tiny operands are so large that their product nearly overflows FP32."""
    engine = engine_with(RECIPES["FP8 current"].products, nn.Linear(32, 4, bias=False))
    for size in (1e-20, 1e-30):
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0)) * size
        with engine.forward():
            y = engine(x)
        exact = x.double() @ engine.model.weight.double().T
        # E4M3 rounds each operand by up to 2^-4 of its value.
        assert (y - exact).abs().max() <= 0.1 * exact.abs().max(), size


def test_unsupported_derivatives_name_the_recipe() -> None:
    """Second derivatives and transforms of torch.func are refused.

    Recipe "FP8", which only casts, allows them, see tests/amp/test_emulated_autocast.py.
    """
    x = torch.randn(3, 4, requires_grad=True)
    for name in SCALED:
        net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        engine = Engine(net, SGD, RECIPES[name])
        weights = {key: p.detach() for key, p in net.named_parameters()}

        def output(
            weights: dict[str, torch.Tensor], row: torch.Tensor, net: nn.Module = net
        ) -> torch.Tensor:
            return functional_call(net, weights, row[None]).sum()

        for differentiate in (
            lambda net=net: torch.autograd.grad(net(x).square().sum(), x, create_graph=True),
            lambda of=output, w=weights: torch.func.grad(of)(w, x[0]),
            lambda of=output, w=weights: torch.func.vmap(torch.func.grad(of), (None, 0))(w, x),
            lambda of=output, w=weights: torch.func.jacrev(of)(w, x[0]),
        ):
            with (
                engine.forward(),
                pytest.raises(RuntimeError, match=rf"recipe '{name}': expected .*, got .* 'O1'"),
            ):
                differentiate()
