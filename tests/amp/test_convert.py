"""A network to FP16 and back: what moves, what stays, and that it is still the same network."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from labkit.amp import to_fp32, to_model_format
from labkit.formats import BF16, E4M3, FP16, Format
from labkit.gemm import half_storage


def test_worked_example() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    assert to_model_format(net, FP16) is net
    assert {key: value.dtype for key, value in net.state_dict().items()} == {
        "0.weight": torch.float16,
        "0.bias": torch.float16,
        "1.weight": torch.float32,
        "1.bias": torch.float32,
        "1.running_mean": torch.float32,
        "1.running_var": torch.float32,
        "1.num_batches_tracked": torch.int64,
        "4.weight": torch.float16,
        "4.bias": torch.float16,
    }


NORMS = {
    "BatchNorm1d": nn.BatchNorm1d(4), "BatchNorm2d": nn.BatchNorm2d(4), "BatchNorm3d": nn.BatchNorm3d(4),
    "SyncBatchNorm": nn.SyncBatchNorm(4), "InstanceNorm2d": nn.InstanceNorm2d(4, affine=True),
    "GroupNorm": nn.GroupNorm(2, 4), "LayerNorm": nn.LayerNorm(4), "RMSNorm": nn.RMSNorm(4),
}  # fmt: skip


def test_every_normalisation_layer_is_kept_unless_told_otherwise() -> None:
    for keep, (name, norm) in itertools.product((True, False), NORMS.items()):
        to_model_format(nn.Sequential(nn.ModuleDict({"inside": norm})), FP16, keep_norms=keep)
        floats = {t.dtype for t in norm.state_dict().values() if t.is_floating_point()}
        assert floats == {torch.float32 if keep else torch.float16}, name
        to_fp32(norm)


def test_going_back_keeps_what_rounding_left() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 20), nn.LayerNorm(20))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    assert to_fp32(to_model_format(net, FP16, keep_norms=False)) is net
    for key, value in net.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, before[key].half().float())
    assert not torch.equal(net[0].weight, before["0.weight"]), "rounded stays rounded"


def test_parameters_stay_the_objects_they_are_and_ties_hold() -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False), "norm": nn.LayerNorm(5)})
    net["head"].weight = net["embed"].weight
    net["head"].bias = net["norm"].bias
    mask = torch.ones(3)
    net.register_buffer("mask", mask)
    net["embed"].register_buffer("mask", mask)
    ids = [id(p) for p in net.parameters()]
    to_model_format(net, BF16)
    assert [id(p) for p in net.parameters()] == ids
    assert net["head"].weight is net["embed"].weight
    assert net["head"].weight.dtype == torch.bfloat16
    assert net["norm"].bias.dtype == torch.float32, "shared with a norm, it stays with the norm"
    assert net["embed"].mask is net.mask, "a shared buffer, too"
    assert net.mask.dtype == torch.float32, "which a network's own buffer keeps"


def test_complex_whole_and_boolean_numbers_are_left_alone() -> None:
    net = nn.Module()
    net.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    for name, dtype in (("count", torch.int64), ("mask", torch.bool)):
        net.register_buffer(name, torch.ones(2, dtype=dtype))
    to_model_format(net, FP16)
    assert [t.dtype for t in net.state_dict().values()] == [torch.complex64, torch.int64, torch.bool]


def test_recurrent_layers_compute_with_the_converted_weights() -> None:
    torch.manual_seed(0)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        layer, x = kind(3, 4, num_layers=2, bidirectional=True), torch.randn(5, 2, 3)
        expected = layer(x)[0]
        to_model_format(layer, FP16)
        with half_storage("cpu"):
            halves = layer(x.half())[0]
        assert halves.dtype == torch.float16
        torch.testing.assert_close(halves.float(), expected, rtol=0, atol=5e-3)
        torch.testing.assert_close(to_fp32(layer)(x)[0], expected, rtol=0, atol=5e-3)


def test_parametrized_modules_and_gradients_move_along() -> None:
    torch.manual_seed(0)
    layer = parametrizations.weight_norm(nn.Linear(3, 2))
    layer(torch.ones(1, 3)).sum().backward()
    to_model_format(layer, FP16)
    assert {p.dtype for p in layer.parameters()} == {torch.float16}
    assert {p.grad.dtype for p in layer.parameters() if p.grad is not None} == {torch.float16}
    assert layer.weight.dtype == torch.float16


def test_a_format_that_torch_computes_nothing_in_is_the_caller_s_affair_and_one_it_lacks_is_refused() -> None:
    assert to_model_format(nn.Linear(1, 1), E4M3).weight.dtype == torch.float8_e4m3fn
    with pytest.raises(ValueError, match="torch has no dtype for 1-4-7"):
        to_model_format(nn.Linear(1, 1), Format("1-4-7", exponent_bits=4, significand_bits=7))
