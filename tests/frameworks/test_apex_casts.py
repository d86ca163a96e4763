"""Casts of `labkit.frameworks.apex`: its lists, and functions that a user registers."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from labkit.frameworks.apex import amp
from tests.frameworks.apex_networks import BATCH, FLOAT, HALF, small

pytestmark = pytest.mark.usefixtures("restored_torch")


@pytest.fixture
def casts():
    return amp.init()


def test_the_last_rule_of_a_registered_function_counts():
    module = SimpleNamespace(dtype_of=lambda tensor: tensor.dtype)
    amp.register_half_function(module, "dtype_of")
    amp.register_float_function(module, "dtype_of")
    amp.initialize(nn.Linear(2, 1), opt_level="O1", verbosity=0)
    assert module.dtype_of(torch.ones(1).half()) == torch.float32


ONES = torch.ones(4, 4)
# Name of an operation -> a function of x, and the dtype of its result; None is that of x.
OPERATIONS = {
    "linear": (lambda x: F.linear(x, torch.ones(3, 4, dtype=x.dtype)), HALF),
    "conv2d": (lambda x: F.conv2d(x.view(1, 1, 4, 4), torch.ones(1, 1, 2, 2)), HALF),
    "matmul method": (lambda x: x.matmul(ONES), HALF),
    "matmul operator": (lambda x: x @ ONES, HALF),
    "rnn cell": (lambda x: nn.RNNCell(4, 3)(x), HALF),
    "gru": (lambda x: nn.GRU(4, 3)(x)[0], HALF),
    "lstm of a packed sequence": (
        lambda x: nn.LSTM(4, 3)(nn.utils.rnn.pack_sequence([x, x[:2]]))[0].data,
        HALF,
    ),
    "softmax": (lambda x: F.softmax(x, dim=-1), FLOAT),
    "group_norm": (lambda x: F.group_norm(x, 2), FLOAT),
    "mse_loss": (lambda x: F.mse_loss(x, torch.zeros_like(x)), FLOAT),
    "sum": (lambda x: x.sum(), FLOAT),
    "pow": (lambda x: x**2.0, FLOAT),
    "relu": (F.relu, None),
    "batch_norm": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True), None),
    "in-place add": (lambda x: x.clone().add_(ONES), None),
    "in-place add of FP16": (lambda x: x.clone().add_(ONES.half()), None),
    "in-place product by name": (lambda x: x.clone().addmm_(mat1=ONES.half(), mat2=ONES), None),
    "add": (lambda x: x + ONES, FLOAT),
    "cat": (lambda x: torch.cat([x, ONES]), FLOAT),
    "cat of FP16": (lambda x: torch.cat([x, ONES.half()]), None),
}


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_the_dtype_of_its_list(name, dtype, casts):
    operation, result_dtype = OPERATIONS[name]
    assert operation(BATCH.to(dtype)).dtype == (result_dtype or dtype)


def test_in_place_operations_of_the_fp32_list_refuse_fp16(casts):
    assert BATCH.clone().exp_().dtype == FLOAT
    with pytest.raises(NotImplementedError, match="exp"):
        BATCH.half().exp_()


def test_binary_cross_entropy_is_refused_in_fp16(casts):
    p = torch.rand(4)
    ones = torch.ones(4)
    assert F.binary_cross_entropy(p, ones).dtype == FLOAT
    with pytest.raises(NotImplementedError, match="with_logits"):
        F.binary_cross_entropy(p.half(), ones.half())


def test_allow_banned_casts_a_refused_operation():
    amp.init(allow_banned=True)
    p = torch.rand(4).half()
    assert F.binary_cross_entropy(p, torch.ones(4).half()).dtype == FLOAT


def test_disable_casts_nests(casts):
    with amp.disable_casts():
        with amp.disable_casts():
            assert (BATCH @ BATCH).dtype == FLOAT
        assert (BATCH @ BATCH).dtype == FLOAT
    assert (BATCH @ BATCH).dtype == HALF


def fail_without_casts():
    with amp.disable_casts():
        raise KeyError


def test_an_exception_ends_disable_casts(casts):
    with pytest.raises(KeyError):
        fail_without_casts()
    assert (BATCH @ BATCH).dtype == HALF


def test_deactivated_amp_casts_nothing(casts):
    casts._deactivate()
    assert (BATCH @ BATCH).dtype == FLOAT


def test_registered_functions_are_cast_from_the_next_initialize():
    module = SimpleNamespace(double=lambda x: x + x)
    amp.register_float_function(torch, "sigmoid")
    amp.register_half_function(module, "double")
    amp.register_promote_function(torch, "relu")
    assert torch.sigmoid(BATCH.half()).dtype == HALF
    amp.initialize(small(), verbosity=0)
    assert torch.sigmoid(BATCH.half()).dtype == FLOAT
    assert BATCH.half().sigmoid().dtype == FLOAT
    assert module.double(BATCH).dtype == HALF


def test_registrations_are_for_one_initialize():
    module = SimpleNamespace(double=lambda x: x + x)
    original = module.double
    amp.register_float_function(torch, "sigmoid")
    amp.register_half_function(module, "double")
    amp.initialize(small(), verbosity=0)
    amp.initialize(small(), verbosity=0)
    assert torch.sigmoid(BATCH.half()).dtype == HALF
    assert module.double is original


def add(a, b):
    return a + b


@pytest.mark.parametrize("decorate", [amp.half_function, amp.float_function, amp.promote_function])
def test_decorated_functions_cast_nothing_before_amp(decorate):
    assert decorate(add)(BATCH, BATCH).dtype == FLOAT


@pytest.mark.parametrize(
    ("decorate", "both_half", "one_half"),
    [
        (amp.half_function, HALF, HALF),
        (amp.float_function, FLOAT, FLOAT),
        (amp.promote_function, HALF, FLOAT),
    ],
)
def test_decorated_functions_cast_their_arguments(decorate, both_half, one_half, casts):
    assert decorate(add)(BATCH.half(), BATCH.half()).dtype == both_half
    assert decorate(add)(BATCH, BATCH.half()).dtype == one_half
