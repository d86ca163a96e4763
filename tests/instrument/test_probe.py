"""Probes of a backward pass, layer by layer, which change nothing; and updates that are swallowed."""

import pytest
import torch
from torch import nn

from labkit.instrument import probe, snapshot, swallowed, underflow, zeros_inside


def small_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))


def test_a_probe_changes_nothing_and_leaves_no_hook_even_when_the_forward_pass_fails() -> None:
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    plain, probed = small_net(), small_net()
    plain(inputs).sum().backward()
    with probe(probed):
        probed(inputs).sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), probed.parameters(), strict=True))
    with pytest.raises(RuntimeError), probe(probed):
        probed(torch.ones(2, 5))
    assert not any(module._forward_hooks for module in probed.modules())


def test_layers_come_in_the_order_of_the_forward_pass() -> None:
    net = small_net()
    with probe(net) as probed:
        net(torch.ones(2, 4)).sum().backward()
    assert list(probed.gradients) == ["0", "1", "2"]
    taken = snapshot(probed.gradients, step=7, kind="activation gradients")
    assert taken.step == 7
    assert [h.total for h in taken.layers.values()] == [6, 6, 2]


def test_underflow_counts_what_fp32_had_and_fp16_lost() -> None:
    exact = {"a": torch.tensor([1e-9, 1.0, 0.0, 1e-8])}
    halved = {"a": exact["a"].half()}
    assert underflow(exact, halved) == 2 / 3
    assert zeros_inside(halved) == 3 / 4, "the plain count takes the zero that was one all along for a loss"
    assert underflow({"a": torch.zeros(3)}, {"a": torch.zeros(3)}) == 0.0
    with pytest.raises(ValueError, match="same layers"):
        underflow({"a": torch.ones(1)}, {"b": torch.ones(1)})
    with pytest.raises(ValueError, match=r"reference \(1,\), observed \(2,\)"):
        underflow({"a": torch.ones(1)}, {"a": torch.ones(2)})


def test_worked_example_of_a_swallowed_update() -> None:
    # FP16's spacing from 1 up is 2^-10: half of it is swallowed (a tie, and 1 is even), a little more is not.
    weights = torch.ones(4).half()
    updates = torch.tensor([2.0**-11, 2.0**-11 + 2.0**-18, 2.0**-10, 0.0])
    after = (weights.float() + updates).half()
    assert swallowed([weights], [after], [updates]) == pytest.approx(1 / 3)


def test_parameters_without_a_gradient_are_not_counted() -> None:
    weight = torch.ones(2)
    assert swallowed([weight, weight], [weight, weight + 1], [None, torch.ones(2)]) == 0.0
    assert swallowed([weight], [weight], [torch.zeros(2)]) == 0.0
    with pytest.raises(ValueError, match="have one shape"):
        swallowed([weight], [weight], [torch.ones(3)])
    with pytest.raises(ValueError, match="shorter"):
        swallowed([weight], [weight], [])
