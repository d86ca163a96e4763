"""The ledger of a forward pass: it records what autocast does, with errors as numpy finds them."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.amp import Rule, autocast
from labkit.amp.casting.ledger import difference, ledger
from labkit.formats import BF16, E4M3, FP16
from labkit.gemm import half_storage

INF = float("inf")


def softmax_loss(x: Tensor, w: Tensor) -> Tensor:
    """Return the loss of a classifier whose softmax is written out."""
    powers = (x @ w).exp()
    return -(powers / powers.sum(-1, keepdim=True))[:, 0].log().mean()


@pytest.fixture
def operands() -> tuple[Tensor, Tensor]:
    """Return x and w whose logits reach beyond 11.09, where exp leaves the range of FP16."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8, 16, generator=generator) * 2
    return x, torch.randn(16, 10, generator=generator)


def names(rows: list[Any]) -> list[str]:
    return [row.op for row in rows]


# --- a softmax that is written out ---


def test_ledger_has_a_row_for_each_operation(operands) -> None:
    rows = ledger(softmax_loss, *operands)
    assert names(rows) == ["matmul", "exp", "sum", "div", "log", "mean", "neg"]


def test_row_has_rule_and_reason(operands) -> None:
    rows = ledger(softmax_loss, *operands)
    assert [row.rule for row in rows[:4]] == [Rule.ALLOW, Rule.DENY, Rule.SET_DTYPE, Rule.KEEP]
    assert all(row.why for row in rows)


def test_row_has_shape_and_dtypes(operands) -> None:
    matmul, exp = ledger(softmax_loss, *operands)[:2]
    half, single = torch.float16, torch.float32
    assert matmul.shape == (8, 10)
    assert (matmul.input_dtypes, matmul.to, matmul.result) == ((single, single), half, half)
    assert (exp.input_dtypes, exp.to, exp.result) == ((half,), single, single)


def test_rows_of_a_healthy_pass_report_no_problem(operands) -> None:
    rows = ledger(softmax_loss, *operands)
    assert not any(row.moved or row.problem or row.overflowed for row in rows)


def test_denied_operations_have_no_error(operands) -> None:
    rows = ledger(softmax_loss, *operands)
    denied = ledger(softmax_loss, *operands, overrides=dict.fromkeys(names(rows), Rule.DENY))
    assert {(row.result, row.error) for row in denied} == {(torch.float32, 0.0)}


# --- errors, as numpy finds them ---


def relative_error(result: np.ndarray, exact: np.ndarray) -> float:
    """Return the norm of the error relative to the exact result's norm, in FP64."""
    result = result.astype(np.float64)
    exact = exact.astype(np.float64)
    return float(np.linalg.norm(result - exact) / np.linalg.norm(exact))


class Numpy:
    """The matrix product and the powers of `softmax_loss`, exact and under autocast."""

    def __init__(self, operands: tuple[Tensor, Tensor]) -> None:
        x, w = (operand.numpy() for operand in operands)
        half_x = x.astype(np.float16)
        half_w = w.astype(np.float16)
        self.product = x @ w
        product = half_x.astype(np.float32) @ half_w.astype(np.float32)
        self.half_product = product.astype(np.float16)
        self.powers = np.exp(self.product)
        self.powers_of_half = np.exp(self.half_product.astype(np.float32))


def test_errors_are_those_of_numpy(operands) -> None:
    numpy = Numpy(operands)
    matmul, exp = ledger(softmax_loss, *operands)[:2]
    # The FP32 sums of torch and numpy may differ in their last bit.
    product_error = relative_error(numpy.half_product, numpy.product)
    assert matmul.error == pytest.approx(product_error, rel=1e-3)
    assert exp.error == pytest.approx(relative_error(numpy.powers_of_half, numpy.powers), rel=1e-3)


def test_largest_result_is_that_of_numpy(operands) -> None:
    matmul = ledger(softmax_loss, *operands)[0]
    assert matmul.largest == pytest.approx(np.abs(Numpy(operands).product).max(), rel=1e-6)


def test_errors_in_ulps_are_relative_to_epsilon(operands) -> None:
    matmul = ledger(softmax_loss, *operands)[0]
    assert matmul.ulps == matmul.error * 1024


def test_overflows_are_those_of_numpy(operands) -> None:
    with np.errstate(over="ignore"):
        overflowed = int(np.isinf(Numpy(operands).powers_of_half.astype(np.float16)).sum())
    assert overflowed > 0
    exp = ledger(softmax_loss, *operands, overrides={"exp": Rule.ALLOW})[1]
    assert exp.overflowed == overflowed
    assert exp.error == INF


def test_moved_operation_states_its_own_list(operands) -> None:
    exp = ledger(softmax_loss, *operands, overrides={"exp": Rule.ALLOW})[1]
    assert exp.moved
    assert exp.home is Rule.DENY


MASKED = torch.tensor([1.0, float("-inf"), 2.0])


def test_infinity_of_a_mask_is_not_an_error() -> None:
    assert difference(MASKED.half(), MASKED) == (0.0, 0, 0)


def test_nan_in_place_of_a_number_is_an_infinite_error() -> None:
    result = torch.tensor([1.0, 0.0, float("nan")]).half()
    assert difference(result, MASKED) == (INF, 1, 0)


# --- the same operations as autocast ---

FORMATS = pytest.mark.parametrize("format", [FP16, BF16, E4M3], ids=lambda format: format.name)


@FORMATS
def test_rows_are_the_events_of_autocast(operands, format) -> None:
    events = []
    with half_storage("cpu"), autocast(format, listen=events.append):
        softmax_loss(*operands)
    rows = ledger(softmax_loss, *operands, format=format)

    def listed(records: list[Any]) -> list[Any]:
        return [
            (record.op, record.input_dtypes, record.to, record.why)
            for record in records
            if record.rule is not Rule.KEEP
        ]

    assert listed(rows) == listed(events)


@FORMATS
def test_last_row_is_the_result_of_autocast(operands, format) -> None:
    with half_storage("cpu"), autocast(format):
        result = softmax_loss(*operands)
    exact = softmax_loss(*(operand.double() for operand in operands))
    last = ledger(softmax_loss, *operands, format=format)[-1]
    error = float(abs(result.double() - exact) / exact)
    assert last.result == result.dtype
    assert last.error == pytest.approx(error, rel=1e-2, abs=1e-6)


def test_operations_name_their_module() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)
    )
    rows = ledger(net, torch.randn(2, 1, 8, 8))
    # Flatten returns a view, and views have no row.
    places = {"conv2d": "0", "batch_norm": "1", "relu": "2", "linear": "4"}
    assert {row.op: row.where for row in rows} == places


def test_view_after_an_operation_in_place_has_no_row() -> None:
    rows = ledger(lambda x: (x @ x).relu_().transpose(0, 1), torch.rand(3, 3))
    assert names(rows) == ["matmul", "relu_"]


def test_an_operation_that_writes_into_out_has_a_row() -> None:
    def sum_into(x: Tensor) -> Tensor:
        total = torch.empty(2, 2)
        torch.add(x, x, out=total)
        return total @ x

    assert names(ledger(sum_into, torch.ones(2, 2))) == ["add", "matmul"]


def test_attention_is_recorded_by_its_parts() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    rows = ledger(layer, torch.randn(2, 5, 16))
    allowed = [row.op for row in rows if row.rule is Rule.ALLOW]
    assert allowed == ["linear", "scaled_dot_product_attention", "linear", "linear", "linear"]
    assert len({row.key for row in rows}) == len(rows)


# --- no effect on the model ---


@pytest.fixture
def net_with_dropout() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))


def test_both_passes_drop_the_same_elements(net_with_dropout) -> None:
    dropout = ledger(net_with_dropout, torch.randn(5, 4), overrides={"linear": Rule.DENY})[-1]
    assert dropout.op == "dropout"
    assert dropout.error < 1e-3


def test_model_of_a_closure_stays_as_it_was(net_with_dropout) -> None:
    """The function is copied for the ledger; the network that it refers to is not."""
    net = net_with_dropout
    state_before = copy.deepcopy(net.state_dict())
    x = nn.Linear(4, 4)(torch.randn(5, 4))
    rows = ledger(lambda x, y: F.mse_loss(net(x), y), x, torch.zeros(5, 3))
    assert names(rows) == ["linear", "batch_norm", "dropout", "mse_loss"]
    for name, tensor in net.state_dict().items():
        assert torch.equal(state_before[name], tensor), name
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())


def test_attributes_and_weights_of_a_network_stay_as_they_were() -> None:
    class Counts(nn.Linear):
        """A layer that counts its calls, and whose calls halve its weight."""

        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            with torch.no_grad():
                self.weight.mul_(0.5)
            return super().forward(x)

    network = Counts(2, 2)
    before = network.weight.detach().clone()
    ledger(network, torch.ones(1, 2))
    assert network.calls == 0
    assert torch.equal(network.weight, before)


def test_networks_that_a_function_reaches_stay_as_they_were() -> None:
    """The function reaches them by another function, a list, an object and a default argument."""
    norms = [nn.BatchNorm1d(3) for _ in range(4)]
    by_function, listed, held, default = norms
    holder = SimpleNamespace(norm=held)

    def inner(x: Tensor) -> Tensor:
        return by_function(x)

    def function(x: Tensor, norm: nn.Module = default) -> Tensor:
        return norm(holder.norm(norms[1](inner(x))))

    assert names(ledger(function, torch.randn(5, 3))) == ["batch_norm"] * 4
    for norm in (by_function, listed, held, default):
        assert norm.num_batches_tracked.item() == 0
        assert norm.running_mean.tolist() == [0.0] * 3


def test_a_buffer_that_a_network_replaces_stays_its_own() -> None:
    class Counts(nn.Module):
        """A module that replaces its count instead of changing it."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            return x @ x

    network = Counts()
    ledger(lambda x: network(network(x)), torch.ones(2, 2))
    assert network.count.item() == 0.0


def test_random_state_stays_as_it_was(net_with_dropout) -> None:
    x = torch.randn(5, 4)
    state_before = torch.get_rng_state()
    ledger(net_with_dropout, x)
    assert torch.equal(torch.get_rng_state(), state_before)


# --- operations that fail ---


def test_ledger_ends_with_the_operation_that_fails() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU())
    first, second, relu = ledger(net, torch.randn(2, 4), overrides={"linear 2": Rule.KEEP})
    assert (first.rule, first.result, first.problem) == (Rule.ALLOW, torch.float16, "")
    assert (second.key, second.rule, second.result) == ("linear 2", Rule.KEEP, None)
    assert "dtype" in second.problem
    # It was not reached.
    assert (relu.result, relu.problem) == (None, "")


@pytest.fixture
def probabilities() -> tuple[Tensor, Tensor]:
    return torch.rand(4, 2).sigmoid(), torch.ones(4, 2)


def test_banned_operation_names_its_replacement(probabilities) -> None:
    (row,) = ledger(F.binary_cross_entropy, *probabilities)
    assert row.rule is Rule.BANNED
    assert "binary_cross_entropy_with_logits" in row.problem


def test_banned_operation_runs_on_the_deny_list(probabilities) -> None:
    overrides = {"binary_cross_entropy": Rule.DENY}
    (row,) = ledger(F.binary_cross_entropy, *probabilities, overrides=overrides)
    assert row.result == torch.float32
    assert row.problem == ""


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"softmax": Rule.ALLOW}, "calls no softmax; it calls exp"),
        ({"exp 2": Rule.ALLOW}, "calls no exp 2"),
        (
            {"exp": Rule.BANNED},
            r"overrides: expected one of Rule\.ALLOW, Rule\.DENY, Rule\.PROMOTE, Rule\.KEEP, got",
        ),
        (
            {"exp": "allow"},
            r"overrides: expected one of Rule\.ALLOW, Rule\.DENY, Rule\.PROMOTE, Rule\.KEEP, got",
        ),
    ],
)
def test_invalid_override_is_refused(overrides, message) -> None:
    with pytest.raises(ValueError, match=message):
        ledger(torch.exp, torch.ones(2), overrides=overrides)


def test_model_that_branches_on_dtypes_is_refused() -> None:
    def model(x: Tensor) -> Tensor:
        y = x @ x
        return y.exp() if y.dtype == torch.float32 else y.log()

    with pytest.raises(ValueError, match="calls other operations under autocast"):
        ledger(model, torch.rand(2, 2))
