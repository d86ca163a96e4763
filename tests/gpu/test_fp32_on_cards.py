"""FP32 and TF32 on simulated cards: which precision torch's switches ask for while a card multiplies.

The simulated card computes as the CPU does, so it cannot show what cuDNN makes of a switch; it shows that the switch
stands where it should at each product, forward and backward.
"""

from __future__ import annotations

import pytest


def products_of_a_training() -> dict[str, object]:
    """Train three steps of FP32, O1 and TF32 on the card; return the switches at its products, and what is recorded."""
    from dataclasses import replace

    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from labkit.amp import RECIPES, Engine
    from labkit.train import TASKS, train

    class AtEachProduct(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[tuple[str, str]] = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func._schema.name in ("aten::convolution", "aten::convolution_backward", "aten::mm", "aten::addmm"):
                backends = torch.backends
                precisions = f"{backends.cuda.matmul.fp32_precision} {backends.cudnn.conv.fp32_precision}"
                self.seen.add((func._schema.name, precisions))
            return func(*args, **(kwargs or {}))

    task, found = replace(TASKS["digits_cnn"], steps=3), {}
    for name in ("FP32", "O1", "TF32"):
        with AtEachProduct() as switches:
            record = train(task, RECIPES[name], device="gpu", measure_every=0)
        found[name] = {
            "switches": sorted({precisions for _, precisions in switches.seen}),
            "operations": sorted({operation for operation, _ in switches.seen}),
            "recorded": record.arithmetic,
            "losses": [step.loss for step in record.steps],
        }
    engine = Engine(torch.nn.Linear(3, 2), torch.optim.SGD, RECIPES["TF32"], device="cuda")
    with AtEachProduct() as switches:
        with engine.forward():
            loss = engine(torch.ones(2, 3, device="cuda")).sum()
        engine.backward(loss)
    found["Engine"] = {"switches": sorted({precisions for _, precisions in switches.seen})}
    found["session"] = [torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision]
    return found


@pytest.mark.parametrize("card", ["A100", "H100"])
def test_from_ampere_on_fp32_is_ieees_and_tf32_is_torchs_switch(simulated_gpu, card: str) -> None:
    found = simulated_gpu(card, products_of_a_training)
    assert {"aten::convolution", "aten::convolution_backward", "aten::mm"} <= set(found["FP32"]["operations"])
    assert found["FP32"]["switches"] == found["O1"]["switches"] == ["ieee ieee"]
    assert found["TF32"]["switches"] == ["tf32 tf32"]
    assert found["TF32"]["recorded"]["FP32 conv"] == "tf32"
    assert found["FP32"]["recorded"]["FP32 conv"] == "ieee"
    assert found["FP32"]["recorded"]["cuDNN deterministic"] == "yes"
    assert found["Engine"]["switches"] == ["tf32 tf32"], "a loop of one's own has it in the backward pass too"
    assert found["TF32"]["losses"] == found["FP32"]["losses"], "the switch alone: no operand is rounded by the lab"
    assert found["session"] == ["none", "tf32"], "torch's defaults are back"


@pytest.mark.parametrize("card", ["T4", "V100"])
def test_before_ampere_operands_are_rounded(simulated_gpu, card: str) -> None:
    found = simulated_gpu(card, products_of_a_training)
    assert found["TF32"]["switches"] == ["ieee ieee"]
    assert found["Engine"]["switches"] == ["none tf32"], "a switch that such a card has not is left to the session"
    assert found["TF32"]["recorded"]["FP32 conv"] == "tf32, emulated"
    assert found["TF32"]["losses"] != found["FP32"]["losses"]
    assert found["TF32"]["losses"] == pytest.approx(found["FP32"]["losses"], rel=1e-2)
