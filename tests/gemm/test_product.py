"""Layers with a chosen accumulator, forward and backward, in any format.

Small integers make all sums exact, so results must equal torch's own bit for bit; tests of rounding
write it out. Formats in which torch does not compute are compared with `mma_reference`, one dot
product at a time, and with ml_dtypes for the stored results.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.amp import autocast
from labkit.formats import BF16, E2M1, E4M3, E5M2, FP16, TF32, Format, round_to
from labkit.gemm import (
    ACCUMULATORS,
    EXACT,
    SEQUENTIAL_FP16,
    SEQUENTIAL_FP32,
    SPECS,
    Accumulator,
    accumulate,
    matmul,
)
from labkit.gemm.product import REDUCTIONS, Emulated, run
from tests.oracles import mma_reference

ANY = [*ACCUMULATORS.values(), SPECS["V100"], SPECS["H100"]]


def integers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.randint(
        -3, 4, shape, generator=torch.Generator().manual_seed(seed + sum(shape))
    ).to(dtype)


def test_worked_example_of_a_backward_product() -> None:
    # dW = dY^T X adds over the batch: 4096 ones again.
    w = torch.zeros(1, 1).half().requires_grad_()
    run(F.linear, (torch.ones(4096, 1).half(), w), {}, SEQUENTIAL_FP16).backward(
        torch.ones(4096, 1).half()
    )
    assert w.grad is not None
    assert w.grad.item() == 2048.0
    assert w.grad.dtype == torch.float16


def test_products_of_a_linear_layer_round_once() -> None:
    # Y = X W^T + bias, dX = dY W, dW = dY^T X: each added up by the accumulator and rounded to FP16
    # once.
    g = torch.Generator().manual_seed(0)
    x, w = (torch.randn(16, 40, generator=g).half().requires_grad_() for _ in range(2))
    bias = torch.randn(16, generator=g).half().requires_grad_()
    dy = torch.randn(16, 16, generator=g).half()
    for by in ANY:
        x.grad = w.grad = None
        y = run(F.linear, (x, w, bias), {}, by)
        y.backward(dy)
        assert torch.equal(y, (accumulate(x, w.mT, None, by) + bias.float()).half())
        assert torch.equal(x.grad, accumulate(dy, w, None, by, FP16))
        assert torch.equal(w.grad, accumulate(dy.mT, x, None, by, FP16))


CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "linear": (F.linear, (integers(5, 7), integers(3, 7), integers(3)), {}),
    "linear, three dimensions": (F.linear, (integers(2, 5, 7), integers(3, 7)), {}),
    "linear, a vector": (F.linear, (integers(7), integers(3, 7), integers(3)), {}),
    "matmul": (torch.matmul, (integers(5, 7), integers(7, 4)), {}),
    "matmul, broadcast": (torch.matmul, (integers(2, 1, 5, 7), integers(3, 7, 4)), {}),
    "matmul, shared matrix": (torch.matmul, (integers(2, 3, 5, 7), integers(7, 4)), {}),
    "matmul, dot product": (torch.matmul, (integers(7), integers(7, seed=1)), {}),
    "matmul, vector on the left": (torch.matmul, (integers(7), integers(3, 7, 2)), {}),
    "matmul, vector on the right": (torch.matmul, (integers(3, 5, 7), integers(7)), {}),
    "@": (Tensor.__matmul__, (integers(5, 7), integers(7, 4)), {}),
    "reversed @": (Tensor.__rmatmul__, (integers(7, 4), integers(5, 7)), {}),
    "mm": (torch.mm, (integers(5, 7), integers(7, 4)), {}),
    "bmm": (torch.bmm, (integers(2, 5, 7), integers(2, 7, 3)), {}),
    "mv": (torch.mv, (integers(5, 7), integers(7)), {}),
    "addmm": (
        torch.addmm,
        (integers(3), integers(5, 7), integers(7, 3)),
        {"beta": 2, "alpha": 0.5},
    ),
    "addmm, beta 0": (torch.addmm, (integers(5, 3), integers(5, 7), integers(7, 3)), {"beta": 0}),
    "addmv": (torch.addmv, (integers(5), integers(5, 7), integers(7)), {}),
    "baddbmm": (
        torch.baddbmm,
        (integers(2, 5, 3), integers(2, 5, 7), integers(2, 7, 3)),
        {"alpha": 2},
    ),
    "bilinear": (
        F.bilinear,
        (integers(5, 3), integers(5, 2, seed=1), integers(4, 3, 2), integers(4)),
        {},
    ),
    "bilinear, three dimensions": (
        F.bilinear,
        (integers(2, 5, 3), integers(2, 5, 2, seed=1), integers(4, 3, 2)),
        {},
    ),
    "bilinear, vectors": (F.bilinear, (integers(3), integers(2, seed=1), integers(4, 3, 2)), {}),
}
for d in (1, 2, 3):
    forward = getattr(F, f"conv{d}d")
    transposed = getattr(F, f"conv_transpose{d}d")
    image = (5, 4, 3)[:d]
    kernel = (3, 2, 3)[:d]
    all_options = {
        "stride": (2, 1, 2)[:d],
        "padding": (1, 2, 0)[:d],
        "dilation": (2, 1, 1)[:d],
        "groups": 2,
    }
    CALLS |= {
        f"conv{d}d": (
            forward,
            (integers(2, 4, *image), integers(6, 4, *kernel), integers(6)),
            {"padding": "valid"},
        ),
        f"conv{d}d, everything": (
            forward,
            (integers(2, 4, *image), integers(6, 2, *kernel), integers(6)),
            all_options,
        ),
        f"conv{d}d, depthwise": (
            forward,
            (integers(1, 4, *image), integers(4, 1, *kernel)),
            {"groups": 4, "padding": 1},
        ),
        f"conv{d}d, unbatched, same": (
            forward,
            (integers(4, *image), integers(6, 4, *kernel)),
            {"padding": "same", "dilation": 2},
        ),
        f"conv_transpose{d}d": (
            transposed,
            (integers(2, 4, *image), integers(4, 3, *kernel), integers(3)),
            {"stride": np.int64(2)},
        ),
        f"conv_transpose{d}d, everything": (
            transposed,
            (integers(2, 4, *image), integers(4, 3, *kernel), integers(6)),
            all_options | {"output_padding": (1, 0, 1)[:d]},
        ),
        f"conv_transpose{d}d, unbatched": (
            transposed,
            (integers(4, *image), integers(4, 3, *kernel)),
            {"padding": 1},
        ),
    }


def outcome(
    call: Callable[..., Tensor], args: tuple[Any, ...], dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """Return the result, and the gradients of all tensors for a gradient of integers."""
    leaves = tuple(
        arg.clone().to(dtype).requires_grad_() if isinstance(arg, Tensor) else arg for arg in args
    )
    result = call(*leaves)
    result.backward(integers(*result.shape, seed=9).to(result.dtype))
    return result.detach(), [
        leaf.grad for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad is not None
    ]


def test_functions_equal_torch_s_where_nothing_rounds() -> None:
    for name, (func, args, kwargs) in CALLS.items():
        expected, expected_gradients = outcome(
            lambda *leaves, f=func, k=kwargs: f(*leaves, **k), args, torch.float32
        )
        if kwargs.get("beta") == 0:
            # torch gives an input that it did not read a gradient of zeros; `run` gives it none.
            expected_gradients = expected_gradients[1:]
        theirs = [tensor.half() for tensor in (expected, *expected_gradients)]
        for by in (EXACT, SEQUENTIAL_FP16, SPECS["V100"]):
            ours = outcome(
                lambda *leaves, f=func, k=kwargs, by=by: run(f, leaves, k, by), args, torch.float16
            )
            for mine, other in zip((ours[0], *ours[1]), theirs, strict=True):
                assert mine.dtype == torch.float16, (name, by)
                assert torch.equal(mine, other), (name, by)
    # Every function that `run` knows was called; attention has tests of its own.
    called = {func.__name__ for func, _, _ in CALLS.values()} | {"scaled_dot_product_attention"}
    assert called == set(REDUCTIONS)


def test_attention() -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, generator=g) for n in (5, 6, 6))
    mask = torch.rand(5, 6, generator=g) > 0.3
    # The softmax of a row that is masked completely would be NaN.
    mask[:, 0] = True
    options: list[dict[str, Any]] = [{}, {"is_causal": True}, {"scale": 0.25}, {"attn_mask": mask}]
    for option in (*options, {"attn_mask": torch.randn(5, 6, generator=g)}):
        for dtype in (torch.float16, torch.bfloat16):
            low = [t.to(dtype) for t in (q, k, v)]
            ours = run(F.scaled_dot_product_attention, tuple(low), option, EXACT)
            wide = {
                n: x.double() if isinstance(x, Tensor) and x.dtype != torch.bool else x
                for n, x in option.items()
            }
            exact = F.scaled_dot_product_attention(*(t.double() for t in low), **wide)
            # Weights, whose sum is 1, are rounded to half an ulp, and so is the sum of their
            # products with V; 1.01 allows for the FP32 softmax.
            bound = 1.01 * torch.finfo(dtype).eps / 2 * (low[2].double().abs().amax() + exact.abs())
            assert ((ours.double() - exact).abs() <= bound).all(), (option, dtype)


def test_attention_of_a_row_that_is_masked_whole_is_zero() -> None:
    q, k, v = (integers(2, 4, 8, seed=seed).requires_grad_() for seed in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False
    for each in (mask, torch.zeros(4, 4).masked_fill(~mask, -torch.inf)):
        ours = run(F.scaled_dot_product_attention, (q, k, v), {"attn_mask": each}, EXACT)
        assert not ours[:, 1].any()
        assert ours[:, 0].any()
        gradients = torch.autograd.grad(ours.sum(), (q, k, v))
        assert all(gradient.isfinite().all() for gradient in gradients)


def test_a_linear_layer_may_have_a_vector_of_weights() -> None:
    x, w = integers(4, 3), integers(3, seed=1)
    ours = run(F.linear, (x, w), {}, EXACT)
    assert torch.equal(ours, F.linear(x.float(), w.float()).half())


@pytest.mark.parametrize("padding", [-1, (0, -1), "full"])
def test_padding_that_torch_refuses_is_refused(padding: Any) -> None:
    arguments = (integers(1, 2, 5, 5), integers(3, 2, 3, 3))
    with pytest.raises(RuntimeError, match="padding"):
        F.conv2d(*arguments, padding=padding)
    with pytest.raises(RuntimeError, match="padding: expected"):
        run(F.conv2d, arguments, {"padding": padding}, EXACT)


@pytest.mark.parametrize("argument", ["padding", "output_padding"])
def test_negative_padding_of_a_transposed_one_is_refused(argument: str) -> None:
    arguments = (integers(1, 2, 5, 5), integers(2, 3, 3, 3))
    with pytest.raises(RuntimeError, match="negative"):
        F.conv_transpose2d(*arguments, **{argument: -1})
    message = f"^{argument}: expected one number or 2, each 0 or more, got -1"
    with pytest.raises(RuntimeError, match=message):
        run(F.conv_transpose2d, arguments, {argument: -1}, EXACT)


def test_attention_shares_keys_among_heads() -> None:
    q = integers(1, 4, 5, 8)
    k = integers(1, 2, 5, 8)
    v = integers(1, 2, 5, 8, seed=1)
    shared = run(F.scaled_dot_product_attention, (q, k, v), {"enable_gqa": True}, SPECS["A100"])
    doubled = (heads.repeat_interleave(2, 1) for heads in (k, v))
    assert torch.equal(
        shared, run(F.scaled_dot_product_attention, (q, *doubled), {}, SPECS["A100"])
    )


def test_attention_drops_weights() -> None:
    q = integers(1, 4, 5, 8)
    k = integers(1, 2, 5, 8)
    v = integers(1, 2, 5, 8, seed=1)
    dropped = run(
        F.scaled_dot_product_attention,
        (q, k, v),
        {"enable_gqa": True, "dropout_p": 1.0},
        SPECS["A100"],
    )
    assert not dropped.any()


def test_a_convolutions_gradient_for_its_input_is_rounded_once() -> None:
    # An input pixel's gradient is a sum over 9 patches in FP32, and only the sum is rounded to
    # FP16.
    g = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 6, 6, generator=g).half().requires_grad_()
    w = torch.randn(3, 2, 3, 3, generator=g).half()
    dy = torch.randn(1, 3, 6, 6, generator=g).half()
    run(F.conv2d, (x, w), {"padding": 1}, EXACT).backward(dy)
    exact = torch.nn.grad.conv2d_input(x.shape, w.double(), dy.double(), padding=1)
    assert x.grad is not None
    # Adding 9 sums in FP32 is off by at most 9 * 2^-23 of the sum of magnitudes; rounding to FP16
    # adds half an ulp.
    size = torch.nn.grad.conv2d_input(x.shape, w.double().abs(), dy.double().abs(), padding=1)
    assert ((x.grad.double() - exact).abs() <= exact.abs() * 2.0**-11 + size * 9 * 2.0**-23).all()


def test_result_may_stay_in_fp32() -> None:
    a = torch.ones(1, 1).half().requires_grad_()
    b = torch.ones(1, 1).half()
    y = matmul(a, b, SEQUENTIAL_FP32, torch.float32)
    assert y.dtype == torch.float32
    # FP16 does not represent the gradient; as an operand of the backward product it rounds to
    # 1 + 2^-10.
    y.backward(torch.full((1, 1), 1 + 2.0**-11 + 2.0**-20))
    assert a.grad is not None
    assert a.grad.item() == 1 + 2.0**-10


def test_beta_0_does_not_read_its_input() -> None:
    ignored = torch.full((5, 3), float("nan")).half()
    assert (
        run(torch.addmm, (ignored, integers(5, 7), integers(7, 3)), {"beta": 0}, EXACT)
        .isfinite()
        .all()
    )


@pytest.mark.parametrize(
    "func", [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.conv3d]
)
def test_convolution_swamps_in_an_fp16_accumulator(func: Callable[..., Any]) -> None:
    ones = [1] * int(func.__name__[-2])
    x = torch.ones(1, 4096, *ones).half()
    w = torch.ones(*((4096, 1) if "transpose" in func.__name__ else (1, 4096)), *ones).half()
    # FP16 rounds 2048 + 1 to 2048.
    assert run(func, (x, w), {}, SEQUENTIAL_FP16).item() == 2048
    assert run(func, (x, w), {}, SPECS["A100"]).item() == 4096


def test_bilinear_rounds_between_its_two_products() -> None:
    x1, x2, w = (
        torch.tensor(v).half() for v in ([1.0, 2.0**-11], [[1.0], [1.0]], [[[1.0], [1.0]]])
    )
    y = run(F.bilinear, (x1.expand(2, 2), x2, w), {}, EXACT)
    # 1 + 2^-11 is a tie, and 1 is even.
    assert y.flatten().tolist() == [1, 1]
    z = run(F.bilinear, (x1.expand(2, 2), x2 * 1.5, w), {}, EXACT)
    # The first product is rounded to 1, so the second is 1.5; 1.5 + 1.5 * 2^-11 would round up.
    assert z.flatten().tolist() == [1.5, 1.5]


@pytest.mark.parametrize("unknown", [torch.einsum, torch.conv_tbc, torch.lstm_cell])
def test_unknown_functions_are_refused(unknown: Any) -> None:
    with pytest.raises(
        NotImplementedError, match=rf"{unknown.__name__}.*linear, matmul.*Leave the"
    ):
        run(unknown, (), {}, EXACT)


@pytest.mark.parametrize("accumulator", ACCUMULATORS.values(), ids=list(ACCUMULATORS))
@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 0), (0, 3)), ((0, 2), (2, 3)), ((2, 3), (3, 0)), ((0,), (0,)), ((4, 2, 0), (0, 3))],
)
def test_empty_operands_give_the_zeros_of_torch(
    left: tuple[int, ...], right: tuple[int, ...], accumulator: Accumulator
) -> None:
    a = torch.ones(left, dtype=torch.float16, requires_grad=True)
    b = torch.ones(right, dtype=torch.float16, requires_grad=True)
    product = matmul(a, b, accumulator)
    assert torch.equal(product, torch.matmul(a.float(), b.float()).half())
    product.sum().backward()
    assert a.grad.shape == a.shape
    assert b.grad.shape == b.shape


def test_contradictory_arguments_are_refused() -> None:
    x = integers(1, 2, 5)
    w = integers(2, 3, 3)
    image = integers(1, 2, 5, 5)
    kernel = integers(2, 2, 3, 3)
    one_dtype = "one dtype"
    size = "does not fit input"
    masked = {"is_causal": True, "attn_mask": torch.ones(5, 5)}
    for func, args, options, message in (
        (torch.matmul, (torch.ones(2, 2).half(), torch.ones(2, 2)), {}, one_dtype),
        (F.conv2d, (image, kernel.float()), {}, one_dtype),
        (F.conv_transpose1d, (x, w.float()), {}, one_dtype),
        (F.conv_transpose1d, (x, integers(3, 3, 3)), {}, size),
        (F.conv2d, (integers(1, 3, 4, 4), kernel), {}, size),
        (
            F.conv_transpose1d,
            (x, w),
            {"stride": 2, "output_padding": 2},
            "must be smaller than stride",
        ),
        (
            F.conv2d,
            (image, kernel),
            {"stride": 2, "padding": "same"},
            "expected stride 1 with padding='same'",
        ),
        (F.scaled_dot_product_attention, (image,) * 3, masked, "got both"),
    ):
        with pytest.raises(RuntimeError, match=message):
            run(func, args, options, EXACT)


@pytest.mark.parametrize(
    ("func", "shapes"),
    [
        (torch.mm, [(3,), (3, 4)]),
        (torch.mm, [(5, 2, 3), (3, 4)]),
        (torch.bmm, [(2, 3), (3, 4)]),
        (torch.bmm, [(1, 2, 3), (5, 3, 4)]),
        (torch.mv, [(2, 3), (3, 4)]),
        (torch.addmm, [(4,), (3,), (3, 4)]),
        (torch.addmm, [(5, 2, 4), (2, 3), (3, 4)]),
        (torch.addmv, [(2,), (2, 3), (3, 1)]),
        (torch.baddbmm, [(5, 2, 4), (1, 2, 3), (5, 3, 4)]),
        (F.linear, [(3,), (4, 3), (2, 4)]),
        (F.bilinear, [(2, 3), (4,), (6, 3, 4)]),
        (F.bilinear, [(2, 3), (2, 4), (6, 4, 3)]),
        (F.conv1d, [(4,), (6, 4, 3)]),
        (F.conv2d, [(2, 4, 6, 6), (6, 4, 3)]),
        (F.conv2d, [(2, 4, 6, 6), (6, 4, 3, 3), (1,)]),
        (F.conv_transpose1d, [(2, 4, 5), (4, 6)]),
        (F.conv_transpose1d, [(2, 4, 5), (4, 6, 3), (1,)]),
    ],
)
def test_shapes_that_torch_refuses_are_refused(
    func: Callable[..., Any], shapes: list[tuple[int, ...]]
) -> None:
    tensors = [integers(*shape) for shape in shapes]
    with pytest.raises((RuntimeError, IndexError)):
        func(*tensors)
    with pytest.raises(RuntimeError, match=r"expected|expand"):
        run(func, tensors, {}, EXACT)


@pytest.mark.parametrize("func", [F.conv2d, F.conv_transpose2d])
@pytest.mark.parametrize(
    "options",
    [
        {"stride": 0},
        {"stride": (1, -1)},
        {"stride": (1, 1, 1)},
        {"dilation": 0},
        {"padding": (1, 1, 1)},
        {"groups": 0},
    ],
)
def test_options_that_torch_refuses_are_refused(
    func: Callable[..., Any], options: dict[str, Any]
) -> None:
    image = integers(1, 2, 5, 5)
    kernel = integers(2, 2, 3, 3)
    with pytest.raises(RuntimeError):
        func(image, kernel, **options)
    with pytest.raises(RuntimeError, match=rf"{min(options)}: expected|in 0 groups"):
        run(func, (image, kernel), options, EXACT)


def test_padding_that_leaves_no_result_is_refused() -> None:
    image = integers(1, 2, 5)
    kernel = integers(2, 2, 3)
    for padding, options in ((3, {}), (4, {"output_padding": 1, "stride": 1, "dilation": 2})):
        with pytest.raises(RuntimeError):
            F.conv_transpose1d(image, kernel, padding=padding + 1, **options)
        with pytest.raises(RuntimeError, match="padding: expected less than half of the result"):
            run(F.conv_transpose1d, (image, kernel), {"padding": padding + 1, **options}, EXACT)


def test_queries_without_features_weigh_all_values_equally() -> None:
    query = torch.zeros(2, 5, 0)
    key = torch.zeros(2, 6, 0)
    value = torch.ones(2, 6, 3)
    attention = F.scaled_dot_product_attention
    assert torch.equal(run(attention, (query, key, value), {}, EXACT), attention(query, key, value))


def test_operands_may_be_passed_by_name() -> None:
    named: dict[Callable[..., Any], dict[str, Any]] = {
        torch.matmul: {"input": (5, 7), "other": (7, 4)},
        torch.mm: {"input": (5, 7), "mat2": (7, 4)},
        torch.bmm: {"mat2": (2, 7, 3), "input": (2, 5, 7)},
        torch.mv: {"input": (5, 7), "vec": (7,)},
        torch.addmm: {"input": (3,), "mat1": (5, 7), "mat2": (7, 3)},
        torch.addmv: {"input": (5,), "mat": (5, 7), "vec": (7,)},
        torch.baddbmm: {"input": (2, 5, 3), "batch1": (2, 5, 7), "batch2": (2, 7, 3)},
    }
    for func, shapes in named.items():
        operands = {name: integers(*shape) for name, shape in shapes.items()}
        expected = func(**{name: value.float() for name, value in operands.items()})
        assert torch.equal(run(func, (), {**operands, "out": None}, EXACT), expected.half()), func


def test_a_second_derivative_is_refused() -> None:
    w = integers(7, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(
        matmul(integers(5, 7), w, EXACT).square().sum(), w, create_graph=True
    )
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


ML_DTYPES = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}


def stored(values: np.ndarray, format: Format) -> np.ndarray:
    """Return values after storage in an FP8 format, by ml_dtypes."""
    return values.astype(np.float32).astype(ML_DTYPES[format]).astype(np.float64)


def dots(a: np.ndarray, b: np.ndarray, formats: tuple[Format, Format], *row: int) -> np.ndarray:
    """Return a @ b, with each element by the reference.

    `row` is block length, fraction bits, and significand bits of a result.
    """
    length, fraction_bits, result_bits = row
    first, second = (format.name for format in formats)
    settings = (0.0, first, length, fraction_bits, "FP32", result_bits, second)
    return np.array(
        [[mma_reference.dot(x.tolist(), y.tolist(), *settings) for y in b.T] for x in a]
    )


def random_normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_worked_example_of_an_fp8_product_on_hopper() -> None:
    # 1 + 2^-14 in FP8: for it, Hopper keeps 13 bits behind the point.
    a = torch.tensor([[1.0, 2.0**-7]])
    b = torch.tensor([[1.0], [2.0**-7]])
    with autocast(E4M3, accumulator=SPECS["H100"]) as region:
        assert isinstance(region.accumulator, Emulated)
        assert region.accumulator(a, b).item() == 1.0
    assert Emulated(SPECS["B200"], E4M3, E4M3)(a, b).item() == 1 + 2.0**-14


def test_a_gpu_by_name_without_an_instruction_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="V100 Tensor Cores take FP16 operands; asked for E4M3"):
        Emulated("V100", E4M3, E4M3)


@pytest.mark.parametrize(
    ("gpu", "row"), [("H100", (32, 13, 13)), ("Ada", (16, 13, 13)), ("B200", (32, 25, 23))]
)
def test_a_layer_in_fp8_forward_and_backward(gpu: str, row: Any) -> None:
    # E4M3 forward, E5M2 gradients: dX = dY W and dW = dY^T X multiply E5M2 by E4M3.
    x = random_normal(5, 70).requires_grad_()
    w = random_normal(4, 70, seed=1).requires_grad_()
    dy = random_normal(5, 4, seed=2)
    with autocast(E4M3, gradient_format=E5M2, accumulator=SPECS[gpu]):
        y = F.linear(x, w)
    y.backward(dy)
    x8, w8 = (stored(t.detach().numpy(), E4M3) for t in (x, w))
    dy8 = stored(dy.numpy(), E5M2)
    assert np.array_equal(y.detach().numpy(), stored(dots(x8, w8.T, (E4M3, E4M3), *row), E4M3)), gpu
    assert np.array_equal(x.grad.numpy(), stored(dots(dy8, w8, (E5M2, E4M3), *row), E5M2))
    assert np.array_equal(w.grad.numpy(), stored(dots(dy8.T, x8, (E5M2, E4M3), *row), E5M2)), gpu


def test_tf32_forward_and_backward() -> None:
    x, w = (
        torch.from_numpy(round_to(random_normal(3, 11, seed=s).double().numpy(), TF32)).float()
        for s in (3, 4)
    )
    # Beyond the range of FP16, but not of TF32.
    x, w = (t * 2.0**60 for t in (x, w))
    d = Emulated(SPECS["A100"], TF32, TF32)(x.requires_grad_(), w.T)
    assert np.array_equal(
        d.detach().numpy(), dots(x.detach().numpy(), w.T.numpy(), (TF32, TF32), 4, 24, 23)
    )
    d.backward(torch.ones(3, 3))
    assert np.array_equal(x.grad.numpy(), dots(np.ones((3, 3)), w.numpy(), (TF32, TF32), 4, 24, 23))


def test_attention_rounds_its_weights_before_it_multiplies() -> None:
    # E4M3 does not represent the weights by softmax, and the emulated Tensor Core refuses such
    # operands.
    q, k, v = (random_normal(1, 2, 6, 8, seed=s).requires_grad_() for s in (5, 6, 7))
    with autocast(E4M3, gradient_format=E5M2, accumulator=SPECS["H100"]):
        y = F.scaled_dot_product_attention(q, k, v)
    y.sum().backward()
    assert torch.equal(y, torch.from_numpy(stored(y.detach().numpy(), E4M3)).float())
    assert all(t.grad.isfinite().all() for t in (q, k, v))


@pytest.mark.parametrize(
    ("message", "gpu", "format", "gradient_format"),
    [
        ("V100 Tensor Cores take FP16 operands; asked for E4M3", "V100", E4M3, None),
        ("T4 Tensor Cores take FP16 operands; asked for TF32", "T4", TF32, None),
        ("A100 Tensor Cores take FP16, BF16, TF32 operands; asked for E5M2", "A100", E5M2, None),
        (
            "H100 Tensor Cores take FP16, BF16, TF32, E4M3, E5M2 operands; asked for E2M1",
            "H100",
            E2M1,
            None,
        ),
        (
            "one format, or E4M3 by E5M2 where they take those; asked for E5M2 by BF16",
            "H100",
            BF16,
            E5M2,
        ),
    ],
)
def test_operands_that_a_gpu_lacks_are_refused(
    message: str, gpu: str, format: Format, gradient_format: Any
) -> None:
    with pytest.raises(ValueError, match=message):
        autocast(format, gradient_format=gradient_format, accumulator=SPECS[gpu])


def test_operands_of_two_fp8_dtypes_are_multiplied() -> None:
    a = random_normal(3, 40).to(torch.float8_e4m3fn)
    b = random_normal(40, 2, seed=1).to(torch.float8_e5m2)
    d = accumulate(a, b, None, SPECS["H100"])
    assert np.array_equal(
        d.numpy(), dots(a.double().numpy(), b.double().numpy(), (E4M3, E5M2), 32, 13, 13)
    )
    other_way = accumulate(b.mT.contiguous(), a.mT.contiguous(), None, SPECS["H100"])
    assert torch.equal(other_way.T, d)
    assert torch.equal(accumulate(a, b, None, EXACT, FP16), (a.double() @ b.double()).half())


def test_fp8_and_fp16_operands_are_refused() -> None:
    a = random_normal(3, 40).to(torch.float8_e4m3fn)
    b = random_normal(40, 2, seed=1).to(torch.float8_e5m2)
    with pytest.raises(ValueError, match=r"of one dtype.*float8_e4m3fn and torch.float16"):
        accumulate(a, b.half(), None, EXACT)


def test_a_product_with_a_scalar_is_refused() -> None:
    with pytest.raises(ValueError, match="expected vectors or matrices"):
        matmul(torch.ones(()).half(), torch.ones(2).half(), SEQUENTIAL_FP16)
