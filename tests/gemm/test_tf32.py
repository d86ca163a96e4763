"""Products in TF32: rounded operands on machines without TF32.

Results are compared with FP64 products of operands that `round_to` rounded, with the Tensor Core
emulator where sums are exact, and with torch's own layers where no product is involved.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from labkit.formats import TF32, round_to
from labkit.gemm import SPECS, emulate, tf32_products


def rounded(tensor: Tensor) -> Tensor:
    return torch.from_numpy(round_to(tensor.detach().double().numpy(), TF32))


def test_worked_example_of_11_significant_bits() -> None:
    a = torch.tensor([[1 + 2.0**-10, 1 + 2.0**-11]])
    b = torch.tensor([[1.0], [2.0**13]])
    with tf32_products("cpu"):
        # TF32 represents 1 + 2^-10; 1 + 2^-11 is a tie and rounds to 1.
        assert (a @ b).item() == 1 + 2.0**-10 + 2.0**13
    assert (a @ b).item() == 1 + 2.0**-10 + 2.0**13 + 4


def test_exact_products_and_sums_equal_the_emulator() -> None:
    """Products of 11 by 11 bits are exact in the 24 bits of FP32.

    So are sums of 16 products of integers up to 990, which are below 2^24.
    """
    torch.manual_seed(0)
    a = torch.randn(40, 1) * 2.0 ** torch.randint(-20, 20, (40, 1))
    b = torch.randn(1, 30)
    c, d = (torch.randint(-990, 990, shape).float() for shape in ((5, 16), (16, 9)))
    with tf32_products("cpu"):
        product = a @ b
        total = c @ d
    assert not torch.equal(product, a @ b)
    for spec in (SPECS[gpu].for_operands(TF32) for gpu in ("A100", "Ada", "H100", "B200")):
        assert torch.equal(product, emulate(rounded(a).float(), rounded(b).float(), None, spec)), (
            spec
        )
        assert torch.equal(total, emulate(c, d, None, spec)), spec


def test_forward_and_backward_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(20, 7)
    x = torch.randn(5, 20, requires_grad=True)
    gradient = torch.randn(5, 7)
    with tf32_products("cpu"):
        y = layer(x)
    y.backward(gradient)
    w = rounded(layer.weight)
    d = rounded(gradient)
    rounded_x = rounded(x)
    torch.testing.assert_close(
        y.double(), rounded_x @ w.T + layer.bias.double(), rtol=2e-6, atol=2e-6
    )
    torch.testing.assert_close(x.grad.double(), d @ w, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(layer.weight.grad.double(), d.T @ rounded_x, rtol=2e-6, atol=2e-6)
    # A bias is added and not multiplied, so its gradient is not rounded.
    assert torch.equal(layer.bias.grad, gradient.sum(0))


draw = partial(torch.randn, generator=torch.Generator().manual_seed(0))
A = draw(2, 3, 4)
B = draw(2, 4, 5)
V = draw(4)
IMAGE = draw(2, 4, 6, 6)
KERNEL = draw(6, 4, 3, 3)
CALLS: dict[str, Any] = {
    "matmul": (torch.matmul, (A, B)),
    "@": (Tensor.__matmul__, (A, B)),
    "bmm": (torch.bmm, (A, B)),
    "mm": (torch.mm, (A[0], B[0])),
    "mv": (torch.mv, (A[0], V)),
    "dot": (torch.dot, (V, V + 1)),
    "einsum": (torch.einsum, ("bij,bjk->bik", A, B)),
    "tensordot": (torch.tensordot, (A, B[0], 1)),
    "linear with a bias": (F.linear, (A, B[0].T.contiguous(), draw(5))),
    "conv2d": (F.conv2d, (IMAGE, KERNEL)),
    "conv2d with a bias and a stride": (F.conv2d, (IMAGE, KERNEL, draw(6), 2, 1)),
    "conv1d without a batch": (F.conv1d, (draw(4, 9), draw(3, 4, 2), draw(3))),
    "conv_transpose2d": (F.conv_transpose2d, (IMAGE, KERNEL.transpose(0, 1).contiguous(), draw(6))),
    "convolution": (
        torch.convolution,
        (IMAGE, KERNEL, draw(6), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ),
    "conv_tbc": (torch.conv_tbc, (draw(6, 2, 4), draw(3, 4, 5), draw(5), 1)),
}
# The indices of arguments that are added, so they are not rounded.
ADDED = {
    "linear with a bias": (2,),
    "conv2d with a bias and a stride": (2,),
    "conv1d without a batch": (2,),
    "conv_transpose2d": (2,),
    "convolution": (2,),
    "conv_tbc": (2,),
}


@pytest.mark.parametrize("name", CALLS)
def test_operands_are_rounded_and_biases_are_not(name: str) -> None:
    func, args = CALLS[name]
    with tf32_products("cpu"):
        ours = func(*args).double()
    added = ADDED.get(name, ())
    with_rounded_operands = []
    exact = []
    for i, argument in enumerate(args):
        is_operand = isinstance(argument, Tensor) and i not in added
        wide = argument.double() if isinstance(argument, Tensor) else argument
        exact.append(wide)
        with_rounded_operands.append(rounded(argument) if is_operand else wide)
    assert torch.allclose(ours, func(*with_rounded_operands), rtol=3e-6, atol=3e-6)
    # Rounding must make a difference, or the comparison above shows nothing.
    assert float((ours - func(*exact)).abs().max()) > 1e-5


each_sum_with_an_addend = pytest.mark.parametrize(
    "func", [torch.addmm, torch.addmv, torch.baddbmm, torch.addbmm, torch.addr]
)


def operands_of(func: Any) -> tuple[Tensor, Tensor]:
    """Return the two operands of a product with an addend."""
    operands = {"addmm": (A[0], B[0]), "addmv": (A[0], V), "addr": (V, V + 1)}
    return operands.get(func.__name__, (A, B))


@each_sum_with_an_addend
def test_operands_are_rounded_and_addends_are_not(func: Any) -> None:
    a, b = operands_of(func)
    shape = func(torch.zeros(()), a, b).shape
    c = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with tf32_products("cpu"):
        ours = func(c, a, b, beta=0.5, alpha=3)
    want = func(c.double(), rounded(a), rounded(b), beta=0.5, alpha=3)
    assert torch.allclose(ours.double(), want, rtol=3e-6, atol=3e-6)


@each_sum_with_an_addend
def test_an_addend_with_a_factor_of_0_is_not_read(func: Any) -> None:
    a, b = operands_of(func)
    nothing = torch.full_like(func(torch.zeros(()), a, b), torch.nan)
    with tf32_products("cpu"):
        product = func(nothing, a, b, beta=0)
    assert product.isfinite().all()


# 1 + 2^-11 is a tie between 1 and 1 + 2^-10
TIE = torch.full((1, 1), 1 + 2.0**-11)
THREE = torch.full((1, 1), 3.0)


def test_operands_of_a_product_in_place_are_rounded() -> None:
    x = torch.full((1, 1), 2.0**-11)
    with tf32_products("cpu"):
        result = x.addmm_(TIE, THREE)
    assert result is x
    assert x.item() == 3 + 2.0**-11


def test_operands_of_a_product_into_out_are_rounded() -> None:
    out = torch.zeros(1, 1)
    with tf32_products("cpu"):
        torch.mm(TIE, THREE, out=out)
    assert out.item() == 3


def test_products_of_attention_are_rounded_but_not_the_softmax() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 5, 8).unbind(0)
    with tf32_products("cpu"):
        ours = F.scaled_dot_product_attention(q, k, v)
    weights = (rounded(q).float() @ rounded(k).float().mT / 8**0.5).softmax(-1)
    # An operand that is not rounded would change some result by 2e-4 or more.
    torch.testing.assert_close(ours.double(), rounded(weights) @ rounded(v), rtol=0, atol=1e-6)


def test_attention_of_a_row_that_is_masked_whole_is_zero_in_tf32() -> None:
    q = torch.ones(1, 2, 4)
    mask = torch.tensor([[True, True], [False, False]])
    with tf32_products("cpu"):
        ours = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert torch.equal(ours, F.scaled_dot_product_attention(q, q, q, attn_mask=mask))


def floats(values: object) -> list[Tensor]:
    return [
        leaf
        for leaf in tree_leaves(values)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]


SHAPES: list[dict[str, Any]] = [
    {},
    {"bias": False},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
]
LAYERS = [(layer, options) for layer in ("LSTM", "GRU", "RNN") for options in SHAPES] + [
    ("LSTM", {"proj_size": 3})
]


def largest_difference_from_torch(layer: nn.Module, x: Any) -> float:
    """Return the largest difference of a layer's results under TF32 from torch's in FP32."""
    with tf32_products("cpu"):
        ours = floats(layer(x))
    differences = []
    for mine, other in zip(ours, floats(layer(x)), strict=True):
        assert mine.shape == other.shape
        differences.append((mine - other).abs().max().item())
    return max(differences)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("layer_name", "options"), LAYERS)
def test_recurrent_layers_differ_from_torch_by_rounding_only(
    layer_name: str, options: dict[str, Any], packed: bool
) -> None:
    """Inputs and weights are numbers of TF32, so that rounding changes only the state h.

    It changes by 2^-11 of its size or less. If W_hh is zero, the state has no effect.
    """
    torch.manual_seed(0)
    layer = getattr(nn, layer_name)(4, 6, **options)
    x: Any = rounded(torch.randn(5, 3, 4)).float().requires_grad_()
    if packed:
        lengths = [3, 3, 2, 1, 1] if options.get("batch_first") else [5, 3, 2]
        x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first="batch_first" in options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(rounded(parameter))

    # From the second step on, h is rounded; 2e-3 is four times 2^-11, for five steps of states
    # below 1.
    assert 0 < largest_difference_from_torch(layer, x) <= 2e-3

    for name, parameter in layer.named_parameters():
        if "weight_hh" in name:
            nn.init.zeros_(parameter)
    # A second layer and a projection multiply by a state through other weights.
    deep = options.get("num_layers", 1) > 1 or "proj_size" in options
    assert largest_difference_from_torch(layer, x) <= (2e-3 if deep else 1e-6)


def test_a_cell_takes_the_arguments_of_torchs_cells() -> None:
    x = torch.randn(3, 4)
    state = (torch.zeros(3, 6), torch.zeros(3, 6))
    w_ih = torch.randn(24, 4)
    w_hh = torch.randn(24, 6)
    with tf32_products("cpu"):
        without_bias = torch.lstm_cell(x, state, w_ih, w_hh)
        bias = torch.zeros(24)
        named = torch.lstm_cell(x, hx=state, w_ih=w_ih, w_hh=w_hh, b_ih=bias, b_hh=bias)
    for one, other in zip(without_bias, named, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_is_one_step_of_its_layer(cell: Any) -> None:
    torch.manual_seed(0)
    single = cell(4, 6)
    layer = getattr(nn, cell.__name__.removesuffix("Cell"))(4, 6)
    x = torch.randn(3, 4)
    layer.load_state_dict({f"{name}_l0": value for name, value in single.state_dict().items()})
    with tf32_products("cpu"):
        ours = single(x)
        sequence = layer(x[None])[0]
    assert torch.allclose(floats(ours)[0], sequence[0], rtol=0, atol=1e-6)
    assert not torch.equal(floats(ours)[0], floats(single(x))[0])


def test_gradients_flow_twice_through_a_product() -> None:
    x = torch.tensor([[3.0]], requires_grad=True)
    with tf32_products("cpu"):
        (slope,) = torch.autograd.grad((x @ x).sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert slope.item() == 6.0
    assert curvature.item() == 2.0


def test_other_dtypes_and_operations_are_not_rounded() -> None:
    wide = torch.full((1, 1), 1 + 2.0**-20, dtype=torch.float64)
    half = torch.full((1, 1), 3.0).half()
    with tf32_products("cpu"):
        assert (wide @ wide).item() == ((1 + 2.0**-20) ** 2)
        assert (half @ half).dtype == torch.float16
        assert (torch.full((1,), 1 + 2.0**-20) * 1).item() == 1 + 2.0**-20
