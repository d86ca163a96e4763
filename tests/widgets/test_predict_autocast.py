"""What the replies of lesson 05 claim, computed again by numpy and by torch without the lab."""

from __future__ import annotations

import numpy as np
import torch

from labkit.widgets import predictions


def says(id: str, choice: str, *texts: str) -> None:
    """Hold that the reply to this choice says each of these."""
    reply = predictions()[id].choices[choice]
    assert [text for text in texts if text not in reply] == []


def test_a_softmax_by_hand_ends_in_nan() -> None:
    z = np.array([12, 0], dtype=np.float16)
    with np.errstate(all="ignore"):
        powers = np.exp(z)
        by_hand = powers / powers.sum()
    assert np.isinf(powers[0])
    assert np.isnan(by_hand[0])
    assert by_hand[1] == 0
    assert predictions()["autocast.softmax"].answer == "(NaN, 0)"
    assert f"{np.exp(12.0):,.0f}" == "162,755"
    exact = np.exp([12.0, 0.0]) / np.exp([12.0, 0.0]).sum()
    assert [f"{p:.6f}" for p in exact] == ["0.999994", "0.000006"]
    says("autocast.softmax", "(1, 0)", "162,755", "(0.999994, 0.000006)", "65504")


def test_a_copy_is_cast_and_its_gradient_is_cast_back() -> None:
    weight, x = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4)
    copied = weight.half()
    copied.retain_grad()
    torch.nn.functional.linear(x.half(), copied).float().square().mean().backward()
    assert copied.grad is not None
    assert weight.grad is not None
    assert (copied.grad.dtype, weight.grad.dtype) == (torch.float16, torch.float32)
    assert predictions()["autocast.weights"].answer == "FP32 and FP32"


def test_casting_twice_is_casting_once() -> None:
    x = torch.randn(1000)
    assert torch.equal(x.half(), x.half().half())
    assert predictions()["autocast.hand"].answer == "equal to the bit"
    says("autocast.hand", "yours raises an error", "FP16 times FP32 is refused")


def test_inf_raises_nothing_in_a_backward_pass() -> None:
    weight = torch.ones(2, requires_grad=True)
    ((weight.half() * 60000).float().sum() * 2.0**36).backward()
    assert weight.grad is not None
    assert weight.grad.isinf().all()
    before = weight.detach().clone()
    torch.optim.SGD([weight], lr=0.1).step()
    assert not weight.isfinite().any()
    assert before.isfinite().all()
    says("autocast.stage", "step", "write inf into the weights")
