"""FP16 storage with FP32 sums on a CPU, which gives the numbers that a GPU would store.

The oracle of most tests is the same operation in FP32, with its result rounded to FP16 once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.formats import FP16
from labkit.gemm import SEQUENTIAL_FP16, half_storage, rounds_once
from labkit.modes import open_modes


def test_worked_example_4096_ones() -> None:
    # An FP16 accumulator stops counting at 2048, because 2048 + 1 rounds to 2048.
    total = np.float16(0)
    for _ in range(4096):
        total += np.float16(1)
    assert total == 2048
    with half_storage("cpu"):
        assert (torch.ones(1, 4096).half() @ torch.ones(4096, 1).half()).item() == 4096


def test_forward_and_backward_of_a_linear_layer_round_once() -> None:
    # The three GEMMs of a linear layer, written out: Y = X W^T, dX = dY W, dW = dY^T X, each
    # rounded once.
    g = torch.Generator().manual_seed(0)
    x = torch.randn(16, 40, generator=g).half().requires_grad_()
    w = torch.randn(24, 40, generator=g).half().requires_grad_()
    dy = torch.randn(16, 24, generator=g).half()
    with half_storage("cpu"):
        y = F.linear(x, w)
    y.backward(dy)
    assert y.dtype == torch.float16
    assert x.grad.dtype == torch.float16
    assert w.grad.dtype == torch.float16
    assert torch.equal(y, (x.float() @ w.float().T).half())
    assert torch.equal(x.grad, (dy.float() @ w.float()).half())
    assert torch.equal(w.grad, (dy.float().T @ x.float()).half())


def test_norms_take_half_inputs_and_fp32_weights() -> None:
    norm = nn.GroupNorm(2, 8)
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.randn(4, 8, 5, 5).to(dtype)
        with half_storage("cpu"):
            y = norm(x)
        assert y.dtype == dtype
        assert torch.equal(y, norm(x.float()).to(dtype))


def test_running_statistics_in_fp16_are_kept() -> None:
    # O3's batch norm has FP16 buffers; a kernel that works on FP32 copies must round them back.
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)).half() * 3 + 5
    half = nn.BatchNorm1d(2).half()
    wide = nn.BatchNorm1d(2)
    with half_storage("cpu"):
        half(x)
    wide(x.float())
    assert wide.running_mean is not None
    assert wide.running_mean.abs().min() > 0.1
    assert torch.equal(half.running_mean, wide.running_mean.half())
    assert torch.equal(half.running_var, wide.running_var.half())


def test_mixed_operands_are_refused_as_on_a_gpu() -> None:
    with half_storage("cpu"), pytest.raises(RuntimeError, match="dtype"):
        F.linear(torch.ones(2, 3).half(), torch.ones(4, 3))


def test_fp32_products_are_not_rounded() -> None:
    a = torch.randn(8, 8)
    b = torch.randn(8, 8)
    with half_storage("cpu"):
        ours = a @ b
    assert torch.equal(ours, torch.matmul(a, b))


def test_on_a_gpu_nothing_is_emulated() -> None:
    with half_storage("cuda"):
        assert not open_modes()


def random_normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_product_is_written_into_out() -> None:
    a = random_normal(8, 8).half()
    b = random_normal(8, 8, seed=1).half()
    out = torch.zeros(8, 8).half()
    with half_storage("cpu"):
        torch.matmul(a, b, out=out)
    assert torch.equal(out, (a.float() @ b.float()).half())


ONES = torch.ones(4096).half()
# each writes the sum of 4096 ones into a tensor of zeros, and returns it
WRITING: dict[str, Callable[[], Tensor]] = {
    "addmm_": lambda: torch.zeros(1, 1).half().addmm_(ONES[None], ONES[:, None]),
    "addbmm_": lambda: torch.zeros(1, 1).half().addbmm_(ONES[None, None], ONES[None, :, None]),
    "addmv_": lambda: torch.zeros(1).half().addmv_(mat=ONES[None], vec=ONES),
    "baddbmm_": lambda: torch.zeros(1, 1, 1).half().baddbmm_(ONES[None, None], ONES[None, :, None]),
    "mm": lambda: torch.mm(ONES[None], ONES[:, None], out=torch.zeros(1, 1).half()),
    "matmul": lambda: torch.matmul(ONES[None], ONES, out=torch.zeros(1).half()),
}
REDUCED = sorted(set(WRITING) - {"addbmm_"})


@pytest.mark.parametrize("name", WRITING)
def test_a_product_that_is_written_is_summed_in_fp32(name: str) -> None:
    with half_storage("cpu"):
        assert WRITING[name]().item() == 4096


@pytest.mark.parametrize("name", REDUCED)
def test_a_product_that_is_written_has_the_accumulator(name: str) -> None:
    with half_storage("cpu", SEQUENTIAL_FP16):
        assert WRITING[name]().item() == 2048


def test_a_written_product_without_an_accumulator_is_refused() -> None:
    with half_storage("cpu", SEQUENTIAL_FP16), pytest.raises(NotImplementedError, match="addbmm"):
        WRITING["addbmm_"]()


def test_gradients_flow_through_a_product_in_place() -> None:
    a = random_normal(3, 4).half().requires_grad_()
    b = random_normal(4, 2, seed=1).half().requires_grad_()
    x = random_normal(3, 2, seed=2).half().requires_grad_()
    with half_storage("cpu"):
        expected = torch.autograd.grad(torch.addmm(x, a, b, beta=0.5).sum(), (x, a, b))
        gradients = torch.autograd.grad(x.clone().addmm_(a, b, beta=0.5).sum(), (x, a, b))
    for ours, theirs in zip(gradients, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_a_product_in_place_returns_its_operand() -> None:
    x = torch.zeros(1, 1).half()
    with half_storage("cpu"):
        assert x.addmm_(ONES[None], ONES[:, None]) is x


def test_out_gets_the_shape_of_the_product() -> None:
    out = torch.empty(0).half()
    with half_storage("cpu"):
        torch.mm(ONES[None], ONES[:, None], out=out)
    assert out.shape == (1, 1)


def test_out_is_refused_where_gradients_are_recorded() -> None:
    a = torch.ones(2, 2).half().requires_grad_()
    with half_storage("cpu"), pytest.raises(RuntimeError, match="automatic differentiation"):
        torch.mm(a, a, out=torch.zeros(2, 2).half())


def test_a_compiled_product_in_place_has_the_accumulator() -> None:
    @torch.compile(backend="eager")
    def add(x: Tensor) -> Tensor:
        return x.addmm_(ONES[None], ONES[:, None])

    with half_storage("cpu", SEQUENTIAL_FP16):
        assert add(torch.zeros(1, 1).half()).item() == 2048


PRODUCTS: tuple[Callable[..., torch.Tensor], ...] = (
    lambda a, b: a @ b,
    torch.Tensor.matmul,
    torch.mm,
    lambda a, b: torch.addmm(a, a, b),
    lambda a, b: torch.einsum("ij,jk->ik", a, b),
    lambda a, b: torch.einsum("...j,jk", [a, b]),
    lambda a, b: torch.tensordot(a, b, 1),
    lambda a, b: torch.inner(a, b),
    lambda a, b: torch.linalg.multi_dot([a, b]),
    lambda a, b: a.T @ b,
    lambda a, b: F.bilinear(a, b, torch.stack([a, b])),
    lambda a, b: torch.bmm(a[None], b[None]),
    lambda a, b: F.scaled_dot_product_attention(a[None], b[None], a[None]),
    lambda a, b: F.conv1d(a[None], b[:, :, None]),
)


def test_products_by_any_function_round_once() -> None:
    a = random_normal(8, 8).half()
    b = random_normal(8, 8, seed=1).half()
    for number, product in enumerate(PRODUCTS):
        with half_storage("cpu"):
            ours = product(a, b)
        assert ours.dtype == torch.float16, number
        assert torch.equal(ours, product(a.float(), b.float()).half()), number


def test_attention_layers_in_training_and_evaluation() -> None:
    """In evaluation, torch has a fused path for these layers, which a function mode disables."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    x = random_normal(2, 5, 16)
    for module, args in ((layer, (x,)), (attention, (x, x, x))):
        exact = module(*args)
        half = module.half()
        for training in (True, False):
            half.train(training)
            with half_storage("cpu"), torch.set_grad_enabled(training):
                out = half(*(t.half() for t in args))
            result, want = (out[0], exact[0]) if isinstance(out, tuple) else (out, exact)
            assert result.dtype == torch.float16
            # The layers round some ten numbers near 1 one after the other.
            assert (result.float() - want).abs().max() < 16 * FP16.epsilon


CELLS = {nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell, nn.RNN: nn.RNNCell}


@pytest.mark.parametrize("kind", list(CELLS))
def test_a_recurrent_layer_equals_a_loop_of_fp16_cells(kind: Any) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4).half()
    cell = CELLS[kind](3, 4).half()
    cell.load_state_dict(
        {name.removesuffix("_l0"): value for name, value in layer.state_dict().items()}
    )
    x, x_of_cells = (random_normal(6, 2, 3).half().requires_grad_() for _ in range(2))
    with half_storage("cpu"):
        y, _ = layer(x)
        state = None
        steps = []
        for x_t in x_of_cells:
            state = cell(x_t, state)
            steps.append(state[0] if isinstance(state, tuple) else state)
    assert y.dtype == torch.float16
    assert torch.equal(y, torch.stack(steps))
    y.float().sum().backward()
    torch.stack(steps).float().sum().backward()
    assert torch.equal(x.grad, x_of_cells.grad)
    # The layer adds gradients of weights over time in FP32 and rounds once; the loop of cells adds
    # in FP16, and rounds six times.
    for ours, other in zip(layer.parameters(), cell.parameters(), strict=True):
        assert ours.grad.dtype == torch.float16
        assert (ours.grad - other.grad).abs().max() <= 6 * FP16.epsilon * other.grad.abs().max()


def test_state_with_tiny_growth_stays_constant_in_fp16() -> None:
    """A ReLU layer computes h = h + 2^-12 x from h = 1: FP16 rounds every step away, FP32 none."""
    layer = nn.RNN(1, 1, nonlinearity="relu", bias=False)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(2.0**-12)
        layer.weight_hh_l0.fill_(1.0)
    x = torch.ones(100, 1)
    start = torch.ones(1, 1)
    _, wide = layer(x, start)
    with half_storage("cpu"):
        _, half = layer.half()(x.half(), start.half())
    assert wide.item() == 1 + 100 * 2.0**-12
    assert half.item() == 1


def test_layer_of_one_feature_has_all_its_gradients() -> None:
    for kind in CELLS:
        layer = kind(1, 1).half()
        x = torch.ones(2, 1, 1).half().requires_grad_()
        with half_storage("cpu"):
            layer(x)[0].sum().backward()
        assert all(
            p.grad is not None and p.grad.dtype == torch.float16 for p in layer.parameters()
        ), kind


def test_a_sequence_without_steps_is_refused_as_by_torch() -> None:
    layer = nn.GRU(3, 4).half()
    empty = torch.zeros(0, 2, 3).half()
    with pytest.raises(RuntimeError, match="sequence length to be larger than 0"):
        layer(empty)
    with half_storage("cpu"), pytest.raises(RuntimeError, match="one step or more"):
        layer(empty)


def test_second_derivative_of_a_recurrent_layer_is_refused() -> None:
    for kind in CELLS:
        layer = kind(1, 1).half()
        x = torch.ones(2, 1, 1).half().requires_grad_()
        with half_storage("cpu"):
            (slope,) = torch.autograd.grad(layer(x)[0].float().square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            slope.sum().backward()


def test_dropout_between_layers_acts_in_training_only() -> None:
    torch.manual_seed(0)
    layer = nn.GRU(4, 4, num_layers=2, dropout=0.5).half()
    x = random_normal(3, 2, 4).half()
    with half_storage("cpu"):
        y, last = layer(x)
        other, _ = layer(x)
        layer.eval()
        evaluated, last_evaluated = layer(x)
        evaluated_again, _ = layer(x)
    assert not torch.equal(y, other)
    assert torch.equal(evaluated, evaluated_again)
    # Nothing is dropped before the first layer, so its state is the same.
    assert torch.equal(last[0], last_evaluated[0])


def test_the_accumulator_is_a_choice() -> None:
    ones = torch.ones(1, 4096).half()
    # A GPU has its own accumulator, and a chosen one must replace it.
    for device in ("cpu", "cuda"):
        with half_storage(device, SEQUENTIAL_FP16):
            # FP16 rounds 2048 + 1 to 2048.
            assert (ones @ ones.T).item() == 2048


def test_an_accumulator_changes_products_only() -> None:
    x = torch.arange(4.0).half()
    with half_storage("cpu", SEQUENTIAL_FP16):
        assert torch.equal(
            F.layer_norm(x, (4,)), rounds_once(F.layer_norm, (x, (4,)), {}, torch.float16)
        )
        with pytest.raises(NotImplementedError, match="lstm"):
            nn.LSTM(2, 2).half()(torch.ones(1, 1, 2).half())


def test_a_batch_norm_of_nan_runs_backward() -> None:
    inputs = torch.full((4, 3, 5, 5), float("nan")).half().requires_grad_()
    with half_storage("cpu"):
        outputs = torch.nn.BatchNorm2d(3)(inputs)
    outputs.float().sum().backward()
    assert inputs.grad is not None
    # As without half_storage, NaN is passed on, and no error is raised in backward.
    assert inputs.grad.isnan().all()


HALF, BFLOAT = torch.float16, torch.bfloat16


def on_cuda_only(dtype: torch.dtype) -> list[Any]:
    """Return the operations that CUDA has in a dtype and the CPU has in FP32 only.

    Torch's own tests list them as OpInfo.
    """
    opinfo = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    ops = [op for op in opinfo.op_db if dtype in op.dtypesIfCUDA and dtype not in op.dtypes]
    return [op for op in ops if torch.float32 in op.dtypes]


def test_worked_example_average_pooling_in_three_dimensions() -> None:
    x = torch.tensor([1, 1 + 2.0**-10]).half().reshape(1, 1, 2, 1)
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
        F.avg_pool3d(x, (1, 2, 1))
    with half_storage("cpu"):
        # The mean 1 + 2^-11 is a tie, and 1 is even.
        assert F.avg_pool3d(x, (1, 2, 1)).item() == 1


UPCAST = {HALF: torch.float32, BFLOAT: torch.float32, torch.complex32: torch.complex64}


def cast(value: Any, dtypes: dict[torch.dtype, torch.dtype]) -> Any:
    """Return a copy without history, its tensors cast as the table says."""
    return tree_map_only(
        Tensor, lambda t: t.detach().clone().to(dtypes.get(t.dtype, t.dtype)), value
    )


def run(op: Any, sample: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return the results and gradients of an operation for a sample input.

    The loss is the sum of the results, so the gradient that enters the operation is exact.
    """
    leaves = [
        t
        for t in tree_leaves(sample)
        if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())
    ]
    for leaf in leaves:
        leaf.requires_grad_(op.supports_autograd)
    # rrelu draws random slopes.
    torch.manual_seed(0)
    out = [
        t for t in tree_leaves(op.op(sample[0], *sample[1], **sample[2])) if isinstance(t, Tensor)
    ]
    if not out[0].requires_grad:
        return out, []
    sums = [real(t).sum() for t in out]
    return out, [
        g for g in torch.autograd.grad(sum(sums), leaves, allow_unused=True) if g is not None
    ]


def real(tensor: Tensor) -> Tensor:
    """Return FP32 numbers, two for a complex one."""
    return (
        torch.view_as_real(tensor.to(torch.complex64).resolve_conj())
        if tensor.is_complex()
        else tensor.float()
    )


@pytest.mark.filterwarnings("ignore")
def test_half_operations_equal_fp32_rounded_once() -> None:
    listed = [(dtype, op) for dtype in (HALF, BFLOAT) for op in on_cuda_only(dtype)]
    assert {"nn.functional.avg_pool3d", "nn.functional.rrelu", "fft.irfftn"} <= {
        op.name for _, op in listed
    }
    for dtype, op in listed:
        half = {torch.float32: dtype, torch.complex64: torch.complex32}
        # Four samples suffice for each operation; some have hundreds.
        for inputs in list(op.sample_inputs("cpu", torch.float32))[:4]:
            sample = cast((inputs.input, inputs.args, inputs.kwargs), half)
            with half_storage("cpu"):
                ours, our_gradients = run(op, cast(sample, {}))
            exact, exact_gradients = run(op, cast(sample, UPCAST))
            expected = cast(exact + exact_gradients, half)
            for a, b in zip(ours + our_gradients, expected, strict=True):
                assert a.dtype == b.dtype, (op.full_name, dtype)
                assert a.shape == b.shape, (op.full_name, dtype)
                assert torch.allclose(real(a), real(b), rtol=0, atol=0, equal_nan=True), (
                    op.full_name,
                    dtype,
                )


def test_an_operation_in_place_returns_its_argument() -> None:
    x = torch.linspace(-2, 2, 9).half()
    for inplace in (True, False):
        torch.manual_seed(0)
        argument = x.clone()
        with half_storage("cpu"):
            y = F.rrelu(argument, training=True, inplace=inplace)
        torch.manual_seed(0)
        assert torch.equal(y, F.rrelu(x.float(), training=True).half())
        assert (y is argument) == inplace
        assert torch.equal(argument, x) == (not inplace)


def test_an_operation_in_place_takes_its_argument_by_name() -> None:
    argument = torch.tensor([1.5, 2.7]).half()
    with half_storage("cpu"):
        returned = torch.round_(input=argument)
    assert returned is argument
    assert argument.tolist() == [2.0, 3.0]


def test_operations_that_a_gpu_refuses_are_refused() -> None:
    """There are no complex numbers of BF16, and neither CUDA nor a CPU inverts matrices in FP16.

    CUDA refuses weights of a loss in another dtype than its input.
    """
    with half_storage("cpu"), pytest.raises(RuntimeError, match="BFloat16"):
        torch.fft.fft(torch.ones(4).bfloat16())
    with half_storage("cpu"), pytest.raises(RuntimeError, match="Half"):
        torch.linalg.inv(torch.eye(2).half())
    with half_storage("cpu"), pytest.raises(NotImplementedError, match="Half"):
        F.multi_margin_loss(torch.ones(2, 3).half(), torch.tensor([0, 1]), weight=torch.ones(3))
