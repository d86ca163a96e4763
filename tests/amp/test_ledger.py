"""The ledger of a forward pass: what it writes down is what autocast does, and errors are those numpy finds."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import Rule, autocast
from labkit.amp.casting.ledger import difference, ledger
from labkit.formats import BF16, E4M3, FP16
from labkit.gemm import half_storage


def by_hand(x, w):
    """A classifier's loss with its softmax written out."""
    powers = (x @ w).exp()
    return -(powers / powers.sum(-1, keepdim=True))[:, 0].log().mean()


@pytest.fixture
def operands():
    """x and w such that logits reach beyond 11.09, where exp leaves FP16."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 16, generator=generator) * 2, torch.randn(16, 10, generator=generator)


def ops(rows):
    return [row.op for row in rows]


class TestSoftmaxByHand:
    def test_worked_example(self, operands):
        rows = ledger(by_hand, *operands)
        assert ops(rows) == ["matmul", "exp", "sum", "div", "log", "mean", "neg"]
        assert [row.rule for row in rows[:4]] == [Rule.ALLOW, Rule.DENY, Rule.SET_DTYPE, Rule.KEEP]
        matmul, exp = rows[:2]
        assert (matmul.input_dtypes, matmul.to, matmul.result) == ((torch.float32,) * 2, torch.float16, torch.float16)
        assert (exp.input_dtypes, exp.to, exp.result) == ((torch.float16,), torch.float32, torch.float32)
        assert matmul.shape == (8, 10)
        assert all(row.why for row in rows)
        assert not any(row.moved or row.problem or row.overflowed for row in rows)

    def test_errors_are_those_that_numpy_finds(self, operands):
        x, w = (t.numpy() for t in operands)
        exact = x @ w
        half = (x.astype(np.float16).astype(np.float32) @ w.astype(np.float16).astype(np.float32)).astype(np.float16)
        matmul, exp = ledger(by_hand, *operands)[:2]

        def relative(found, true):
            found, true = found.astype(np.float64), true.astype(np.float64)
            return np.linalg.norm(found - true) / np.linalg.norm(true)

        assert matmul.error == pytest.approx(relative(half, exact), rel=1e-3)  # FP32 sums may differ in their last bit
        assert exp.error == pytest.approx(relative(np.exp(half.astype(np.float32)), np.exp(exact)), rel=1e-3)
        assert matmul.largest == pytest.approx(np.abs(exact).max(), rel=1e-6)
        assert matmul.ulps == matmul.error * 1024

    def test_exp_on_the_allow_list_overflows_where_numpy_does(self, operands):
        x, w = (t.numpy() for t in operands)
        half = (x.astype(np.float16).astype(np.float32) @ w.astype(np.float16).astype(np.float32)).astype(np.float16)
        with np.errstate(over="ignore"):
            beyond = int(np.isinf(np.exp(half.astype(np.float32)).astype(np.float16)).sum())
        assert beyond > 0
        exp = ledger(by_hand, *operands, overrides={"exp": Rule.ALLOW})[1]
        assert (exp.overflowed, exp.error, exp.moved, exp.home) == (beyond, float("inf"), True, Rule.DENY)

    def test_all_denied_is_fp32(self, operands):
        overrides = dict.fromkeys(ops(ledger(by_hand, *operands)), Rule.DENY)
        rows = ledger(by_hand, *operands, overrides=overrides)
        assert {row.result for row in rows} == {torch.float32}
        assert {row.error for row in rows} == {0.0}


def test_nothing_moved_is_autocast_itself(operands):
    events = []
    with half_storage("cpu"), autocast(FP16, listen=events.append):
        result = by_hand(*operands)
    rows = ledger(by_hand, *operands)
    listed = [row for row in rows if row.rule is not Rule.KEEP]
    assert [(row.op, row.input_dtypes, row.to, row.why) for row in listed] == [
        (event.op, event.input_dtypes, event.to, event.why) for event in events if event.rule is not Rule.KEEP
    ]
    exact = by_hand(*(t.double() for t in operands))
    assert rows[-1].result == result.dtype
    assert rows[-1].error == pytest.approx(float(abs(result.double() - exact) / exact), rel=1e-2, abs=1e-6)


def test_one_call_of_several_is_moved_by_its_key():
    rows = ledger(lambda x: (x @ x) @ x, torch.rand(3, 3), overrides={"matmul 2": Rule.DENY})
    moved = [(row.key, row.rule, row.result) for row in rows]
    assert moved == [("matmul 1", Rule.ALLOW, torch.float16), ("matmul 2", Rule.DENY, torch.float32)]


def test_modules_are_named_and_views_are_silent():
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    rows = ledger(net, torch.randn(2, 1, 8, 8))
    assert {row.op: row.where for row in rows} == {"conv2d": "0", "batch_norm": "1", "relu": "2", "linear": "4"}
    in_place = ledger(lambda x: (x @ x).relu_().transpose(0, 1), torch.rand(3, 3))
    assert ops(in_place) == ["matmul", "relu_"]


def test_attention_is_opened_up():
    rows = ledger(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), torch.randn(2, 5, 16))
    allowed = [row.op for row in rows if row.rule is Rule.ALLOW]
    assert allowed == ["linear", "scaled_dot_product_attention", "linear", "linear", "linear"]
    assert len({row.key for row in rows}) == len(rows)
    assert [row.result for row in rows if row.op == "layer_norm"] == [torch.float32] * 2


def test_the_model_and_the_random_generator_are_left_as_they_were():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    x, hidden = torch.randn(5, 4), nn.Linear(4, 4)(torch.randn(5, 4))
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    ledger(net, x, overrides={"linear": Rule.DENY})
    # A loss as people write it: the function is copied, the network that it closes over is not.
    rows = ledger(lambda x, y: F.mse_loss(net(x), y), hidden, torch.zeros(5, 3))
    assert ops(rows) == ["linear", "batch_norm", "dropout", "mse_loss"]
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_both_runs_drop_the_same_elements():
    *_, dropout = ledger(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)), torch.randn(8, 64))
    assert dropout.op == "dropout"
    assert dropout.error < 1e-3


def test_what_torch_refuses_ends_the_ledger():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU())
    first, second, relu = ledger(net, torch.randn(2, 4), overrides={"linear 2": Rule.KEEP})
    assert (first.result, first.problem) == (torch.float16, "")
    assert second.result is None
    assert "dtype" in second.problem
    assert (relu.result, relu.problem) == (None, "")


def test_a_banned_operation_says_what_to_use():
    p, y = torch.rand(4, 2).sigmoid(), torch.ones(4, 2)
    (row,) = ledger(F.binary_cross_entropy, p, y)
    assert row.rule is Rule.BANNED
    assert "binary_cross_entropy_with_logits" in row.problem
    (moved,) = ledger(F.binary_cross_entropy, p, y, overrides={"binary_cross_entropy": Rule.DENY})
    assert (moved.result, moved.problem) == (torch.float32, "")


def test_other_formats():
    (brain,) = ledger(torch.matmul, torch.rand(8, 8), torch.rand(8, 8), format=BF16)
    (half,) = ledger(torch.matmul, torch.rand(8, 8), torch.rand(8, 8))
    (eight,) = ledger(torch.matmul, torch.rand(8, 8), torch.rand(8, 8), format=E4M3)
    assert brain.result == torch.bfloat16
    assert half.error < brain.error < eight.error < 0.1
    assert (eight.to, eight.result) == (E4M3, torch.float32)  # stored in FP32, rounded to E4M3


def test_a_mask_of_minus_infinity_is_no_error():
    exact = torch.tensor([1.0, float("-inf"), 2.0])
    assert difference(exact.half(), exact) == (0.0, 0, 0)
    assert difference(torch.tensor([1.0, 0.0, float("nan")]).half(), exact) == (float("inf"), 1, 0)


def test_bad_overrides_are_refused():
    for overrides, says in (
        ({"softmax": Rule.ALLOW}, "calls no softmax; it calls exp"),
        ({"exp 2": Rule.ALLOW}, "calls no exp 2"),
        ({"exp": Rule.BANNED}, "expected overrides to allow, deny, promote, keep"),
        ({"exp": "allow"}, "expected overrides to allow, deny, promote, keep"),
    ):
        with pytest.raises(ValueError, match=says):
            ledger(torch.exp, torch.ones(2), overrides=overrides)


def test_a_model_that_asks_for_dtypes_has_no_ledger():
    def model(x):
        y = x @ x
        return y.exp() if y.dtype == torch.float32 else y.log()

    with pytest.raises(ValueError, match="calls other operations under autocast"):
        ledger(model, torch.rand(2, 2))
