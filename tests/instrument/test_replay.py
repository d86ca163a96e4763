"""Replays of watched steps in FP32."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.instrument import watch
from tests.instrument.test_watch import X, Y, plain

pytestmark = pytest.mark.usefixtures("nothing_stays_behind")


def test_unusual_parameters_are_counted_and_replayed():
    weight_norm, spectral_norm = (
        torch.nn.utils.parametrizations.weight_norm,
        torch.nn.utils.spectral_norm,
    )
    for name, model, inputs in (
        ("FP64", nn.Linear(8, 4).double(), X.double()),
        ("BF16", nn.Linear(8, 4).bfloat16(), X.bfloat16()),
        ("weight norm", nn.Sequential(weight_norm(nn.Linear(8, 4))), X),
        ("spectral norm", nn.Sequential(spectral_norm(nn.Linear(8, 4))), X),
    ):
        with watch(model, every=1, against_fp32_every=1) as w:
            plain(model, 2, inputs=inputs)
        report = w.report()
        assert report.unseen == (), name
        assert len(report.against_fp32) == 2, name
        if name == "FP64":
            # The watch counts FP64 numbers in FP32, which is not a cast of the model.
            assert "casts in a step" not in str(report)


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_pre_hook",
        "register_forward_hook",
        "register_full_backward_pre_hook",
        "register_full_backward_hook",
    ],
)
def test_a_replay_calls_no_hook_of_the_user(register: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    calls = []
    getattr(model[1], register)(lambda *_: calls.append(1))
    with watch(model, every=1, against_fp32_every=1) as w:
        plain(model, 3)
    assert len(w.report().against_fp32) == 3
    assert len(calls) == 3


def test_a_failed_replay_is_reported_once_with_its_reason():
    model = nn.Linear(8, 4)
    batch = X.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1, against_fp32_every=1) as w:
        for _ in range(3):
            cross_entropy(model(batch.add_(1)), Y).backward()
            batch.zero_()
            optimizer.step()
    changed = "an input of the model was changed in place after the call (first in step 0)"
    assert w.report().unseen == (f"comparison with FP32: {changed}",)


def test_a_nested_input_that_changed_is_not_replayed():
    class Nested(nn.Linear):
        def forward(self, batch):
            return super().forward(batch["x"][0])

    model = Nested(8, 4)
    x = X.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=1, against_fp32_every=1) as w:
        cross_entropy(model({"x": [x]}), Y).backward()
        with torch.no_grad():
            x.zero_()
        optimizer.step()
    (unseen,) = w.report().unseen
    assert "an input of the model was changed in place after the call" in unseen
