"""The drop-in against torch.amp on a simulated card: operations, modules, composites, whole trainings.

The card runs the CPU's kernels under CUDA's key, so which operation is cast to what is torch's own C++. What its
kernels cannot show is cuBLAS and cuDNN.
"""

from typing import Any

import pytest
import torch

from labkit.amp.casting.lists import NO_HALF_KERNEL
from labkit.frameworks import torch_amp
from tests.gpu import against_torch
from tests.gpu.simulated import Outcomes

# Where the drop-in differs from torch on purpose: name -> why. A name that no longer differs fails its test.
KEPT_IN_FP32 = "torch multiplies in FP16 inside, then divides or factorizes in FP32, or fails: kept in FP32"
REFUSED_BY_TORCH = "torch refuses the nuclear norm of FP16; ours is computed in FP32"
EARLIER = "ours is FP32 before neighbours are added, torch's after: FP32 either way"
FACTORS = {"svd_lowrank": KEPT_IN_FP32, "pca_lowrank": KEPT_IN_FP32}
OPERATIONS = {
    "float32": {"cov": KEPT_IN_FP32, "corrcoef": KEPT_IN_FP32, **FACTORS},
    "float16": {
        "cov": "torch rounds what it multiplies to FP16; ours is FP16 throughout, as without autocast",
        "norm": REFUSED_BY_TORCH, "linalg.norm": REFUSED_BY_TORCH, "linalg.matrix_norm": REFUSED_BY_TORCH,
        "trapz": EARLIER, "trapezoid": EARLIER, "cumulative_trapezoid": EARLIER,
        "sum_to_size": "torch returns its input where there is nothing to sum; ours is FP32 always", **FACTORS,
    },
}  # fmt: skip
STEP_BY_STEP = "gradients differ in FP16's last bit: torch runs it step by step, for want of cuDNN on this card"
MODULES = {"nn.LSTM": STEP_BY_STEP, "nn.GRU": STEP_BY_STEP, "nn.RNN": STEP_BY_STEP}
UNWRITTEN = {"linalg.lstsq"}  # returns memory that nobody wrote to, which differs from call to call
# On a CPU alone: operations below autocast, which torch calls itself and whose CPU kernels return other dtypes.
ON_CPU = {"_softmax_backward_data", "native_batch_norm", "native_group_norm"}


def widened(name: str, how: list[str]) -> bool:
    """Return whether an operation has no half kernel, and ours is FP32 where torch fails or stays in half."""
    in_fp32 = all(words.endswith("labkit accepts") or "labkit float32" in words for words in how)
    return name.replace(".", "_") in NO_HALF_KERNEL and in_fp32


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("given", OPERATIONS)
def test_every_sample_of_every_operation(simulated_gpu: Any, given: str) -> None:
    found = simulated_gpu("T4", against_torch.operations, given, 1000, timeout=1000)
    different, on_cpu = ({n for n, how in found[w].items() if not widened(n, how)} for w in ("different", "on_cpu"))
    assert different - UNWRITTEN == set(OPERATIONS[given]), found["different"]
    assert on_cpu <= {*OPERATIONS[given], *ON_CPU}, found["on_cpu"]
    assert found["equal"] > 15_000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("given", ["float32", "float16"])
def test_every_module_forward_and_backward(simulated_gpu: Any, given: str) -> None:
    found = simulated_gpu("T4", against_torch.modules, given, timeout=500)
    assert set(found["different"]) <= set(MODULES), found["different"]
    assert found["on_cpu"] == {}
    assert found["equal"] > 2500


def by_the_list() -> list[str]:
    logits, classes = 8 * torch.randn(64, 10, device="cuda", dtype=torch.float16), torch.arange(64, device="cuda") % 10

    def loss(region: Any) -> Any:
        with region:
            return torch.nn.functional.cross_entropy(logits, classes)

    theirs = against_torch.outcome(loss, torch.autocast("cuda", torch.float16))
    ours = [against_torch.outcome(loss, torch_amp.autocast("cuda", torch.float16))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_amp, "COMPOSITES", {})
        ours.append(against_torch.outcome(loss, torch_amp.autocast("cuda", torch.float16)))
    return [against_torch.compare(theirs, one) for one in ours]


EXACT = [network for network in against_torch.TRAINED if f"nn.{network}" not in MODULES]


def trainings() -> dict[str, str]:
    pairs = against_torch.pairs("cuda")
    return {name: against_torch.compare_training(name, *pairs, "cuda", width=32, steps=12) for name in EXACT}


@pytest.fixture(scope="module")
def found(simulated_gpu: Any) -> Outcomes:
    return simulated_gpu("T4", [against_torch.composites, by_the_list, trainings])


def test_functions_that_are_made_of_several_operations(found: Outcomes) -> None:
    composites = found[against_torch.composites]
    assert composites["different"] == composites["on_cpu"] == {}
    assert composites["equal"] > 55


def test_the_comparison_sees_a_cross_entropy_that_runs_in_fp32(found: Outcomes) -> None:
    """The rule of labkit.amp.autocast, which goes by the documentation's list, is another one than torch's."""
    assert found[by_the_list] == ["equal", "the numbers differ"]


def test_trainings_have_torchs_losses_scales_and_trackers(found: Outcomes) -> None:
    assert found[trainings] == dict.fromkeys(EXACT, "equal")
