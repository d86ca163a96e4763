"""TF32 products: torch's switches, and rounded operands on machines without TF32.

Results are compared with FP64 products of operands that `round_to` rounded, with the Tensor Core
emulator where sums are exact, and with torch's own layers where no product is involved.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from labkit.formats import TF32, round_to
from labkit.gemm import SPECS, emulate, fp32_precision, has_tf32, tf32_products
from labkit.modes import open_modes


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


def test_operands_are_rounded_and_biases_are_not() -> None:
    for name, (func, args) in CALLS.items():
        with tf32_products("cpu"):
            ours = func(*args).double()
        added = ADDED.get(name, ())
        wide = []
        for i, argument in enumerate(args):
            if isinstance(argument, Tensor):
                argument = argument.double() if i in added else rounded(argument)
            wide.append(argument)
        exact = [a.double() if isinstance(a, Tensor) else a for a in args]
        assert torch.allclose(ours, func(*wide), rtol=3e-6, atol=3e-6), name
        # Rounding must make a difference, or the comparison above shows nothing.
        assert float((ours - func(*exact)).abs().max()) > 1e-5, name


@pytest.mark.parametrize(
    "func", [torch.addmm, torch.addmv, torch.baddbmm, torch.addbmm, torch.addr]
)
def test_operands_are_rounded_and_addends_are_not(func: Any) -> None:
    a, b = {"addmm": (A[0], B[0]), "addmv": (A[0], V), "addr": (V, V + 1)}.get(
        func.__name__, (A, B)
    )
    c = draw(func(torch.zeros(()), a, b).shape)
    with tf32_products("cpu"):
        ours = func(c, a, b, beta=0.5, alpha=3)
        without_addend = func(torch.full_like(c, torch.nan), a, b, beta=0)
    want = func(c.double(), rounded(a), rounded(b), beta=0.5, alpha=3)
    assert torch.allclose(ours.double(), want, rtol=3e-6, atol=3e-6)
    assert without_addend.isfinite().all()


def test_products_of_attention_are_rounded_but_not_the_softmax() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 5, 8).unbind(0)
    with tf32_products("cpu"):
        ours = F.scaled_dot_product_attention(q, k, v)
    weights = (rounded(q) @ rounded(k).mT / 8**0.5).softmax(-1).float()
    torch.testing.assert_close(ours.double(), rounded(weights) @ rounded(v), rtol=1e-3, atol=1e-4)
    assert not torch.equal(ours, F.scaled_dot_product_attention(q, k, v))


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


def test_an_unknown_precision_is_refused() -> None:
    before = torch.get_float32_matmul_precision()
    with pytest.raises(ValueError, match='expected "ieee" or "tf32"'), fp32_precision("tf23"):
        pass
    assert torch.get_float32_matmul_precision() == before


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


def test_on_ampere_torchs_switch_is_set_and_no_mode_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with tf32_products("cuda"):
        assert torch.backends.cudnn.conv.fp32_precision == "tf32"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert not open_modes()


OPERATIONS = [(backend, op) for backend in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn")]
SWITCHES = [("generic", "all"), ("cuda", "all"), ("mkldnn", "all"), *OPERATIONS]


def switches() -> dict[tuple[str, str], str]:
    """Return the precision that torch reports for each switch."""
    return {key: torch._C._get_fp32_precision_getter(*key) for key in SWITCHES}


def legacy() -> tuple[object, ...]:
    """Return what the older API reports; it raises if both APIs were used."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        return torch.get_float32_matmul_precision(), matmul.allow_tf32, cudnn.allow_tf32
    except RuntimeError:
        return ("raises",)


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    """Restore torch's defaults after a test; no getter of torch returns them exactly."""
    yield
    torch.set_float32_matmul_precision("highest")
    torch._C._set_cudnn_allow_tf32(True)
    for key in SWITCHES:
        torch._C._set_fp32_precision_setter(
            *key, "tf32" if key in (("cuda", "conv"), ("cuda", "rnn")) else "none"
        )


def test_ieee_turns_tf32_off_for_every_operation() -> None:
    # By default, convolutions of torch use TF32.
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    with fp32_precision("ieee"):
        assert {switches()[key] for key in OPERATIONS} == {"ieee"}
        assert legacy() == ("highest", False, False)
    assert torch.backends.cudnn.conv.fp32_precision == "tf32"


def test_tf32_is_turned_on_for_the_gpu_only() -> None:
    with fp32_precision("tf32"):
        assert {switches()["cuda", op] for op in ("matmul", "conv", "rnn")} == {"tf32"}
        assert switches()["mkldnn", "matmul"] == "ieee"
        assert legacy() == ("high", True, True)
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


def old_api() -> None:
    torch.set_float32_matmul_precision("medium")
    # torch.backends.cudnn.allow_tf32 by its C function, because torch's tests may freeze the flag.
    torch._C._set_cudnn_allow_tf32(False)


def new_api() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"


def both_apis() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "ieee"


def inherited() -> None:
    # torch.backends.fp32_precision by its C function, for the same reason.
    torch._C._set_fp32_precision_setter("generic", "all", "tf32")
    torch.backends.cudnn.conv.fp32_precision = "none"


@pytest.mark.parametrize("prepare", [lambda: None, old_api, new_api, both_apis, inherited])
def test_switches_of_either_api_are_restored(
    prepare: Callable[[], None],
) -> None:
    prepare()
    before = switches(), legacy()
    for precision in ("ieee", "tf32"):
        with fp32_precision(precision):
            # Other code of the session may use the older API, which must not raise in the block.
            assert "raises" not in legacy()
        assert (switches(), legacy()) == before
        with pytest.raises(ZeroDivisionError), fp32_precision(precision):
            raise ZeroDivisionError
        assert (switches(), legacy()) == before


def test_nested_blocks_may_have_other_precisions() -> None:
    with fp32_precision("tf32"):
        with fp32_precision("ieee"), fp32_precision("ieee"):
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def test_a_switch_that_was_set_inside_of_a_block_stays() -> None:
    with fp32_precision("ieee"):
        torch.set_float32_matmul_precision("high")
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.conv.fp32_precision == "tf32", (
        "an unchanged switch was not restored"
    )


def test_an_inherited_switch_inherits_again_after_a_block() -> None:
    inherited()
    with fp32_precision("ieee"):
        pass
    torch._C._set_fp32_precision_setter("generic", "all", "ieee")
    # The switch follows the generic one, and was not set to the value that it had before the block.
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"


class BlockInThread:
    """A thread that opens a block and closes it when `end` is called."""

    def __init__(self, precision: str) -> None:
        self.open = threading.Event()
        self.may_close = threading.Event()
        self.precision_inside = ""
        self.precision = precision
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        with fp32_precision(self.precision):
            self.open.set()
            self.may_close.wait(60)
            self.precision_inside = torch.backends.cuda.matmul.fp32_precision

    def end(self) -> None:
        self.may_close.set()
        self.thread.join(60)


def test_threads_of_one_precision_share_a_block() -> None:
    first = BlockInThread("ieee")
    second = BlockInThread("ieee")
    assert first.open.wait(60)
    assert second.open.wait(60), "a block of the same precision waits"
    first.end()
    assert torch.backends.cudnn.conv.fp32_precision == "ieee", (
        "restored before the second block closed"
    )
    other = BlockInThread("tf32")
    assert not other.open.is_set()
    other.may_close.set()
    second.end()
    other.end()
    assert second.precision_inside == "ieee"
    assert other.precision_inside == "tf32"
    assert torch.backends.cudnn.conv.fp32_precision == "tf32", "not restored after the last block"


def test_threads_that_nest_the_other_precision_do_not_deadlock() -> None:
    both_in = threading.Barrier(2)
    precisions = []

    def run() -> None:
        with fp32_precision("tf32"):
            both_in.wait(60)
            with fp32_precision("ieee"):
                precisions.append(torch.backends.cuda.matmul.fp32_precision)
            precisions.append(torch.backends.cuda.matmul.fp32_precision)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(precisions) == ["ieee", "ieee", "tf32", "tf32"]


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ((7, 0), False),
        ((7, 5), False),
        ((8, 0), True),
        ((8, 9), True),
        ((12, 0), True),
    ],
)
def test_nvidia_gpus_have_tf32_since_ampere(
    monkeypatch: pytest.MonkeyPatch, capability: Any, expected: bool
) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device, capability=capability: capability
    )
    assert has_tf32("cuda") is expected


def test_other_devices_have_no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not has_tf32("cpu")
    assert not has_tf32("mps")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert not has_tf32("cuda")
