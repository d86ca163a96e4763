"""The exercises of lesson 07: their references against torch's optimizers, layers and utilities."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.grading.cases import cases, reference


def test_the_master_step_is_torchs_sgd_on_fp32_weights() -> None:
    for master, scaled_grads, scale, lr in cases("master.step"):
        weight = nn.Parameter(master.clone())
        optimizer = torch.optim.SGD([weight], lr=lr)
        for scaled in scaled_grads:
            weight.grad = scaled.float() / scale
            if weight.grad.isfinite().all():
                optimizer.step()
        model, after = reference("master.step")(master, scaled_grads, scale, lr)
        assert torch.equal(after, weight.detach())
        assert torch.equal(model, weight.detach().half())


@pytest.mark.parametrize("model_bits", [16, 32])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("with_master", [False, True])
def test_the_bill_is_what_torchs_tensors_weigh(model_bits: int, optimizer: str, with_master: bool) -> None:
    weight = nn.Parameter(torch.ones(1000, dtype=torch.float16 if model_bits == 16 else torch.float32))
    weight.grad = torch.ones_like(weight)
    if with_master and model_bits == 32:
        return  # an FP32 weight is its own master
    stepped = nn.Parameter(weight.detach().float()) if with_master else weight
    stepped.grad = weight.grad.to(stepped.dtype)
    kinds = {
        "sgd": lambda: torch.optim.SGD([stepped]),
        "momentum": lambda: torch.optim.SGD([stepped], momentum=0.9),
        "adam": lambda: torch.optim.Adam([stepped], eps=1e-4),
    }
    made = kinds[optimizer]()
    made.step()
    kept = [weight, weight.grad, *([stepped] if with_master else [])]
    kept += [t for t in made.state[stepped].values() if isinstance(t, torch.Tensor) and t.numel() == weight.numel()]
    moments = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
    assert reference("master.memory")(1000, model_bits, with_master, moments) == sum(t.nbytes for t in kept)


def test_the_groups_are_those_of_real_layers() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3), nn.LayerNorm(3))
    net[0].requires_grad_(False)
    listed = [(name, tuple(p.shape), p.requires_grad) for name, p in net.named_parameters()]
    norms = {id(p) for m in net.modules() if isinstance(m, nn.BatchNorm2d | nn.LayerNorm) for p in m.parameters()}
    decays = [n for n, p in net.named_parameters() if p.requires_grad and id(p) not in norms and "bias" not in n]
    groups = reference("master.groups")(listed)
    assert groups["decay"] == decays == ["3.weight"]
    assert groups["no decay"] == [n for n, _, trainable in listed if trainable and n not in decays]


def test_the_flat_step_is_torchs_vector_of_parameters() -> None:
    for flat, scaled_grads, scale, lr in cases("master.flat"):
        layers = [nn.Parameter(torch.zeros_like(grad, dtype=torch.float32)) for grad in scaled_grads]
        nn.utils.vector_to_parameters(flat.clone(), layers)  # the parameters become views of it
        for layer, grad in zip(layers, scaled_grads, strict=True):
            layer.grad = grad.float() / scale
        torch.optim.SGD(layers, lr=lr).step()
        after, weights = reference("master.flat")(flat, scaled_grads, scale, lr)
        assert torch.equal(after, nn.utils.parameters_to_vector(layers))
        assert all(torch.equal(ours, layer.detach().half()) for ours, layer in zip(weights, layers, strict=True))


def test_the_average_is_torchs_averaged_model() -> None:
    for history, decay in cases("master.ema"):
        net = nn.ParameterList([nn.Parameter(history[0][0].clone())])
        averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(decay))
        averaged.update_parameters(net)  # the first call copies
        for master, stepped in history[1:]:
            if stepped:
                net[0].data.copy_(master)
                averaged.update_parameters(net)
        torch.testing.assert_close(
            reference("master.ema")(history, decay), averaged.module[0].detach(), rtol=16 * 2.0**-23, atol=0
        )
