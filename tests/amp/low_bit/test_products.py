"""Products of 8- and 4-bit operands, against gfloat, ml_dtypes and a reference.

The reference is scalar, and shares no code with them.
"""

import copy
import itertools
import math
from dataclasses import replace
from functools import partial

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

from labkit.amp import RECIPES, Engine, ProductFormat, Recipe, TensorScale
from labkit.amp.low_bit.operands import round_saturating, round_to_blocks
from labkit.formats import (
    BF16,
    BLOCK_FORMATS,
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
    decode,
    decode_blocks,
    round_blocks,
)

ELEMENTS = {
    E4M3: (rows.format_info_ocp_e4m3, ml_dtypes.float8_e4m3fn),
    E5M2: (rows.format_info_ocp_e5m2, ml_dtypes.float8_e5m2),
    E2M1: (rows.format_info_ocp_e2m1, ml_dtypes.float4_e2m1fn),
    E2M3: (rows.format_info_ocp_e2m3, ml_dtypes.float6_e2m3fn),
    E3M2: (rows.format_info_ocp_e3m2, ml_dtypes.float6_e3m2fn),
}
SGD = partial(torch.optim.SGD, lr=0.1)
SCALED = ("FP8 current", "FP8 delayed", "MXFP8", "NVFP4", "unit scaled")
DELAYED = RECIPES["FP8 delayed"].products
PLAIN_NVFP4 = replace(RECIPES["NVFP4"].products, stochastic_gradients=False, last_in_fp32=False)
DEEPSEEK = BlockFormat("128", E4M3, FP32, 128)  # arXiv:2412.19437, 3.3.2
REFERENCED = {
    "FP8 current": RECIPES["FP8 current"].products,
    "MXFP8": RECIPES["MXFP8"].products,
    "MXFP4 down": ProductFormat(MXFP4, MXFP4, TensorScale.NONE, scale_up=False),
    "NVFP4": PLAIN_NVFP4,
    "unit scaled": RECIPES["unit scaled"].products,
    "blocks of 128": ProductFormat(DEEPSEEK, DEEPSEEK, TensorScale.NONE, square_weights=True),
}


def around_every_code(format) -> np.ndarray:
    """Every finite value, every tie between two, and what lies one FP32 step beside them."""
    values = np.unique(decode(np.arange(format.codes), format))
    values = values[np.isfinite(values)].astype(np.float32)
    points = np.concatenate(
        [values, (values[1:] + values[:-1]) / 2, [np.float32(3e38), np.float32(-1e9)]]
    )
    return np.concatenate(
        [points, *(np.nextafter(points, np.float32(way)) for way in (-np.inf, np.inf))]
    )


def blocks_of(count: int, size: int, seed: int) -> np.ndarray:
    """Blocks of numbers of all sizes, as in training: beside each other 2^-24 to 1, and
    some zeros.
    """
    rng = np.random.default_rng(seed)
    sizes = rng.integers(-24, 1, (count, size)) + rng.integers(-60, 60, (count, 1))
    values = np.ldexp(rng.uniform(-2, 2, (count, size)), sizes).astype(np.float32)
    return np.where(rng.random((count, size)) < 0.05, np.float32(0), values)


def test_every_code_and_every_tie_as_gfloat_and_ml_dtypes() -> None:
    for format, (row, dtype) in ELEMENTS.items():
        points = around_every_code(format)
        ours = round_saturating(torch.from_numpy(points), format).numpy()
        theirs = gfloat.round_ndarray(
            row, points.astype(np.float64), gfloat.RoundMode.TiesToEven, sat=True
        )
        assert np.array_equal(ours, theirs), format
        inside = np.abs(points) <= format.max
        assert np.array_equal(ours[inside], points[inside].astype(dtype).astype(np.float32)), format


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 4), marks=pytest.mark.slow)], ids=str
)
def test_blocks_are_those_of_round_blocks(seeds) -> None:
    for seed, format in itertools.product(seeds, BLOCK_FORMATS.values()):
        values = blocks_of(10**4, format.size, seed)
        ours = round_to_blocks(torch.from_numpy(values), format).numpy()
        assert np.array_equal(
            ours, decode_blocks(round_blocks(values, format)).astype(np.float32)
        ), (format.name, seed)


def test_stochastic_rounding_follows_the_distance() -> None:
    for format in ELEMENTS:
        values = torch.from_numpy(around_every_code(format)).clamp(-format.max, format.max)
        generator = torch.Generator().manual_seed(1)
        drawn = torch.stack(
            [round_saturating(values, format, generator) for _ in range(400)]
        ).double()
        codes = torch.from_numpy(np.unique(decode(np.arange(format.codes), format)))
        codes = codes[codes.isfinite()]
        place = torch.searchsorted(codes, values.double(), right=True).clamp(max=len(codes) - 1)
        below = codes[place - 1]
        above = codes[place]
        assert bool(((drawn == below) | (drawn == above) | (drawn == values.double())).all()), (
            format
        )
        # The mean of 400 draws is the value, within 5 standard deviations of at most half a step
        # each.
        assert bool(
            ((drawn.mean(0) - values.double()).abs() <= 5 * (above - below) / 2 / 20).all()
        ), format


def engine_with(
    format: ProductFormat | None, model: nn.Module, seed: int = 0, lr: float = 0.1
) -> Engine:
    return Engine(
        model, partial(torch.optim.SGD, lr=lr), Recipe("mine", products=format), seed=seed
    )


def products_of(
    format: ProductFormat, x: torch.Tensor, w: torch.Tensor, d: torch.Tensor
) -> list[np.ndarray]:
    """y, dx and dw of y = x w^T under a format, for the gradient d of y."""
    layer = nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight.data.copy_(w)
    engine = engine_with(format, layer)
    x = x.clone().requires_grad_()
    with engine.forward():
        y = layer(x)
    y.backward(d)
    return [t.detach().double().numpy() for t in (y, x.grad, layer.weight.grad)]


# --- the reference: numbers one at a time, rounded by gfloat --------------------------------------

GFLOAT = {format.name: row for format, (row, _) in ELEMENTS.items()}
f32 = np.float32


def nearest(value: float, name: str) -> float:
    return gfloat.round_float(GFLOAT[name], float(value), gfloat.RoundMode.TiesToEven, sat=True)


def reference_block(block: list[float], name: str, up: bool) -> list[float]:
    """The values of one block."""
    largest = max(map(abs, block))
    if largest == 0:
        return [0.0] * len(block)
    if name in ("MXFP8", "MXFP4"):
        element, top, emax = ("E4M3", 448.0, 8) if name == "MXFP8" else ("E2M1", 6.0, 2)
        exponent = math.floor(math.log2(largest)) - emax
        scale = 2.0 ** (exponent + (up and largest > top * 2.0**exponent))
    elif name == "NVFP4":
        element = "E2M1"
        scale = max(nearest(f32(largest) / f32(6), "E4M3"), 2.0**-9)
    else:
        element = "E4M3"
        scale = float(f32(largest) / f32(448))
    return [nearest(f32(value) / f32(scale), element) * scale for value in block]


def reference_operand(
    t: np.ndarray, format: ProductFormat, role: str, unit: float
) -> tuple[np.ndarray, float]:
    """Rows of numbers, whose products are summed along the row: their values, and the scale of all
    of them.
    """
    row = format.gradient if role == "gradient" else format.forward
    largest = f32(np.abs(t).max())
    scale = {"MXFP8": 1.0, "MXFP4": 1.0, "128": 1.0, "NVFP4": f32(2688) / largest}.get(
        row.name, unit
    )
    if format.scale is TensorScale.CURRENT and not format.blocks:
        scale = f32({"E4M3": 448, "E5M2": 57344}[row.name]) / largest
    t = (t.astype(f32) * f32(scale)).astype(np.float64)
    if not format.blocks:
        return np.array([[nearest(v, row.name) for v in line] for line in t]), float(scale)
    n = row.size
    out = np.zeros_like(t)
    high = n if role == "weight" and format.square_weights else 1
    for i in range(0, len(t), high):
        for j in range(0, t.shape[1], n):
            tile = t[i : i + high, j : j + n]
            written = reference_block(tile.ravel().tolist(), row.name, format.scale_up)
            out[i : i + high, j : j + n] = np.reshape(written, tile.shape)
    return out, float(scale)


def reference_rotation(t: np.ndarray) -> np.ndarray:
    """Rows, 16 numbers at a time: signs, then sums and differences of halves, then divided by 4."""
    signs = [-1, 1, 1, -1, 1, 1, 1, 1, 1, -1, -1, 1, 1, 1, -1, 1]
    lines = np.pad(t, ((0, 0), (0, -t.shape[1] % 16)))
    out = np.zeros_like(lines)
    for at in range(0, lines.shape[1], 16):
        for i in range(16):
            for j in range(16):
                out[:, at + i] += lines[:, at + j] * signs[j] * (-1) ** (i & j).bit_count() / 4
    return out.astype(f32).astype(np.float64)


def reference_products(
    format: ProductFormat, x: np.ndarray, w: np.ndarray, d: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """(product, sum of the products' magnitudes) for y, dx and dw."""
    size = math.sqrt((d**2).mean())
    units = {
        "input": 1.0,
        "weight": 2.0 ** round(math.log2(w.shape[1]) / 2),
        "gradient": 2.0 ** round(-math.log2(size)),
    }
    units = units if format.scale is TensorScale.UNIT else dict.fromkeys(units, 1.0)
    found = []
    for (one, role_1), (two, role_2), rotated in (
        ((x, "input"), (w, "weight"), False),
        ((d, "gradient"), (w.T, "weight"), False),
        ((d.T, "gradient"), (x.T, "input"), format.hadamard),
    ):
        one, two = (reference_rotation(t) if rotated else t for t in (one, two))
        (a, a_scale), (b, b_scale) = (
            reference_operand(t, format, role, units[role])
            for t, role in ((one, role_1), (two, role_2))
        )
        found.append((a @ b.T / (a_scale * b_scale), np.abs(a) @ np.abs(b).T / (a_scale * b_scale)))
    return found


@pytest.mark.parametrize(
    "shape", [(5, 7, 40), pytest.param((40, 60, 800), marks=pytest.mark.slow)], ids=str
)
def test_the_three_products_are_those_of_the_reference(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    torch.manual_seed(0)
    x = torch.randn(m, k) * torch.rand(m, k) ** 4
    w = torch.randn(n, k) / 8
    d = torch.randn(m, n) * 2.0**-9
    x[0] = 0
    inputs = [t.double().numpy() for t in (x, w, d)]
    for name, format in REFERENCED.items():
        products = products_of(format, x, w, d)
        wanted = reference_products(format, *inputs)
        for product, (exact, size), length in zip(products, wanted, (k, n, m), strict=True):
            # FP32 adds `length` products, in any order: Higham, theorem 3.1; rotated operands may
            # differ in their last bit, and then by a step of E2M1 where that is a tie, so a handful
            # of elements may.
            off = np.abs(product - exact) > (length + 3) * 2.0**-24 * size
            assert off.mean() <= (0.02 if format.hadamard and length == m else 0), (
                f"{name}: {off.sum()}"
            )


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
    by_place = lambda t: t.detach().permute(0, 2, 3, 1).reshape(-1, 8)  # noqa: E731
    wanted, _, of_w = products_of(format, patches, conv.weight.detach().flatten(1), by_place(d))
    assert np.allclose(by_place(y).numpy(), wanted, rtol=0, atol=1e-6)
    assert np.allclose(conv.weight.grad.flatten(1).numpy(), of_w, rtol=0, atol=1e-5)


def step(engine: Engine, x: torch.Tensor) -> torch.Tensor:
    engine.zero_grad()
    with engine.forward():
        y = engine(x)
        loss = y.square().mean()
    engine.backward(loss)
    engine.step()
    return y.detach()


def test_a_delayed_scale_is_that_of_the_steps_before() -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data.fill_(1.0)
    engine = engine_with(ProductFormat(E4M3, E5M2, TensorScale.DELAYED, history=2), layer, lr=0.0)
    x = torch.tensor([[1000.0, 0.0005]])
    # the first step has a scale of 1: 1000 saturates, 0.0005 is zero
    assert step(engine, x).item() == 448.0
    assert step(engine, x).item() == pytest.approx(1000.0, rel=1e-5)
    # 10,000 is cut to the range of before
    assert step(engine, 10 * x).item() == pytest.approx(1000.0, rel=1e-5)
    assert step(engine, 10 * x).item() == pytest.approx(10000.0, rel=1e-5)
    step(engine, x), step(engine, x)
    # two steps, no more
    assert engine.products.memory.state_dict()["history"]["weight:input"] == [1000.0, 1000.0]


def test_a_margin_leaves_powers_of_two_above_the_largest_magnitude() -> None:
    """Transformer Engine's rule: scale = (largest number of FP8 / amax) / 2^margin; amax was 7/16,
    which E4M3 holds.
    """
    for margin in (0, 2, 6):
        layer = nn.Linear(2, 1, bias=False)
        layer.weight.data.fill_(1.0)
        engine = engine_with(replace(DELAYED, margin=margin), layer, lr=0.0)
        x = torch.tensor([[0.4375, 0.0]])
        step(engine, x), step(engine, x)
        scale = engine.products.memory.scale("weight:input", 448.0 / 2**margin)
        assert scale.item() == 1024.0 / 2**margin
        assert step(engine, 2**5 * x).item() == 0.4375 * 2 ** min(5, margin), (
            "what is beyond it saturates"
        )
    assert "margin=6" in repr(engine.recipe)
    state = copy.deepcopy(engine.state_dict())
    with pytest.raises(ValueError, match=r"products.margin 6, now 0"):
        engine_with(DELAYED, nn.Linear(2, 1, bias=False)).load_state_dict(state)


def test_unit_scales_follow_from_one_number() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.Linear(256, 16, bias=False))
    for name in ("unit scaled", "FP8 delayed"):
        engine = engine_with(RECIPES[name].products, copy.deepcopy(model))
        step(engine, torch.randn(8, 64))
        before = copy.deepcopy(engine.state_dict())
        with torch.no_grad(), engine.forward():
            engine(1000 * torch.randn(8, 64))
        assert str(engine.state_dict()) == str(before)
        if name == "unit scaled":
            first = engine.products.memory.loss_size
            assert first > 0
            step(engine, 100 * torch.randn(8, 64))
            assert (engine.products.memory.loss_size, engine.products.memory.history) == (first, {})


def test_activation_checkpointing_changes_no_bit() -> None:
    class Net(nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            self.first = nn.Linear(8, 16)
            self.last = nn.Linear(16, 4)
            self.again = again

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(self.first, x, use_reentrant=False) if self.again else self.first(x)
            return self.last(hidden.relu())

    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    for name in SCALED:
        found = []
        for again in (False, True):
            torch.manual_seed(0)
            engine = engine_with(RECIPES[name].products, Net(again))
            found.append([step(engine, factor * x) for factor in (1.0, 4.0, 1.0)])
        assert all(map(torch.equal, *found)), name


def test_attention_norms_and_the_layer_that_multiplies_last_stay_fp32() -> None:
    """Also where its weight is the embedding's, or where a table of places is declared after it."""
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
            model["places"] = nn.Embedding(6, 24)

        def run(m=model):
            attention = F.scaled_dot_product_attention(q, q, q)
            return attention, m["norm"](x), m["head"](x), m["body"](x)

        with engine_with(RECIPES["NVFP4"].products, model).forward():
            found = run()
        assert [torch.equal(a, b) for a, b in zip(found, run(), strict=True)] == [
            True,
            True,
            True,
            False,
        ], tied


def test_inf_reaches_the_step_which_is_skipped_under_a_loss_scale() -> None:
    for name in SCALED:
        recipe = replace(RECIPES[name], scaler=RECIPES["O1"].scaler)
        engine = Engine(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), SGD, recipe)
        with engine.forward():
            loss = engine(torch.full((2, 4), math.inf)).sum()
        engine.backward(loss)
        assert not engine.step().stepped, name


def test_a_recurrent_layer_is_called_on_written_numbers() -> None:
    def written(t: torch.Tensor) -> torch.Tensor:
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
        p.copy_(written(p) if p.dim() > 1 else p)
    assert torch.equal(y, other(written(x))[0])
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in lstm.parameters())


def test_a_contradiction_is_refused_with_its_reason() -> None:
    for make, said in (
        (lambda: ProductFormat(BF16, BF16), "about 8 bits; BF16 does not. Take E4M3"),
        (lambda: ProductFormat(MXFP8, E5M2), "one is of blocks, the other is not"),
        (lambda: ProductFormat(E4M3, E5M2, square_weights=True), "for formats of blocks"),
        (lambda: ProductFormat(E4M3, E5M2, history=0), "looks back 1 step or more"),
        (
            lambda: ProductFormat(E4M3, E5M2, margin=1),
            "margin=1: expected scale=TensorScale.DELAYED",
        ),
        (lambda: replace(DELAYED, margin=-1), "expected a whole number of 0 or more, got -1"),
        (lambda: replace(DELAYED, margin=0.5), "expected a whole number of 0 or more, got 0.5"),
        # E4M3: from 2^-9 to below 2^9
        (lambda: replace(DELAYED, margin=18), "every number is written as 0"),
        (
            lambda: replace(RECIPES["MXFP8"], autocast=BF16),
            "Take model=FP32, autocast=None, or products=None",
        ),
        (lambda: replace(RECIPES["BF16"], products=ProductFormat(NVFP4, NVFP4)), "Take model=FP32"),
    ):
        with pytest.raises(ValueError, match=said):
            make()


def test_a_layer_of_zeros_learns() -> None:
    """A last layer often begins at zero: no magnitude, no scale, and its gradient is there all the
    same.
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


def test_tiny_operands_have_a_product() -> None:
    """Their scales are so large that FP32 would not hold the product of two of them with little
    more.
    """
    engine = engine_with(RECIPES["FP8 current"].products, nn.Linear(32, 4, bias=False))
    for size in (1e-20, 1e-30):
        x = torch.randn(8, 32, generator=torch.Generator().manual_seed(0)) * size
        with engine.forward():
            y = engine(x)
        exact = x.double() @ engine.model.weight.double().T
        assert (y - exact).abs().max() <= 0.1 * exact.abs().max(), size


def test_a_history_of_zeros_keeps_the_scale() -> None:
    """As Transformer Engine does: an operand that was zero for long has not become large."""
    # in the second, it is all zeros only when the last step joins it
    for history, zeros in ((2, 4), (1, 1)):
        format = replace(RECIPES["FP8 delayed"].products, history=history)
        engine, loaded, shared = (
            engine_with(format, nn.Linear(4, 2, bias=False)) for _ in range(3)
        )
        for size in (8.0, *[0.0] * zeros):
            for each in (engine, shared):
                step(each, torch.full((3, 4), size))
            memory = shared.products.memory  # ranks exchange their histories after each step
            memory.take_largest([memory.remembered()] * 2)
        loaded.load_state_dict(engine.state_dict())
        scales = [
            float(each.products.memory.scale("weight:input", 448.0))
            for each in (engine, loaded, shared)
        ]
        assert scales == [448 / 8] * 3, history


def test_other_derivatives_are_refused_by_the_recipe_s_name() -> None:
    """Of a gradient, and by torch.func; those of "FP8", which only casts, are tested
    with autocast.
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

        for way in (
            lambda net=net: torch.autograd.grad(net(x).square().sum(), x, create_graph=True),
            lambda of=output, w=weights: torch.func.grad(of)(w, x[0]),
            lambda of=output, w=weights: torch.func.vmap(torch.func.grad(of), (None, 0))(w, x),
            lambda of=output, w=weights: torch.func.jacrev(of)(w, x[0]),
        ):
            with (
                engine.forward(),
                pytest.raises(RuntimeError, match=rf"recipe '{name}': expected .*, got .* 'O1'"),
            ):
                way()
