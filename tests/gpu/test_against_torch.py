"""The drop-in for torch.amp against torch.amp itself, on a simulated card.

The card runs the CPU's kernels under CUDA's dispatch key, so torch's own C++ decides the casts of
each operation. Differences of cuBLAS and cuDNN are not visible here.
"""

from functools import partial
from typing import Any

import pytest
import torch

from labkit.amp.casting.lists import NO_HALF_KERNEL
from labkit.bench.triton_gemm import TILES
from labkit.frameworks import torch_amp
from labkit.frameworks.torch_amp import GradScaler, autocast
from tests.gpu import against_torch
from tests.gpu.checks import test_checks as checks
from tests.gpu.conftest import CheckRun, without_a_gpu

# Where the drop-in differs from torch on purpose: name -> why. A name that no longer differs fails
# its test.
KEPT_IN_FP32 = (
    "torch multiplies in FP16 inside, then divides or factorizes in FP32, or fails: kept in FP32"
)
REFUSED_BY_TORCH = "torch refuses the nuclear norm of FP16; ours is computed in FP32"
EARLIER = "ours is FP32 before neighbours are added, torch's after: FP32 either way"
FACTORS = {"svd_lowrank": KEPT_IN_FP32, "pca_lowrank": KEPT_IN_FP32}
OPERATIONS = {
    "float32": {"cov": KEPT_IN_FP32, "corrcoef": KEPT_IN_FP32, **FACTORS},
    "float16": {
        "cov": "torch rounds what it multiplies to FP16; ours is FP16 throughout, as without "
        "autocast",
        "norm": REFUSED_BY_TORCH,
        "linalg.norm": REFUSED_BY_TORCH,
        "linalg.matrix_norm": REFUSED_BY_TORCH,
        "trapz": EARLIER,
        "trapezoid": EARLIER,
        "cumulative_trapezoid": EARLIER,
        "sum_to_size": "torch returns its input where there is nothing to sum; ours is FP32 always",
        **FACTORS,
    },
}
STEP_BY_STEP = (
    "gradients differ in FP16's last bit: torch runs it step by step, for want of cuDNN on "
    "this card"
)
MODULES = {"nn.LSTM": STEP_BY_STEP, "nn.RNN": STEP_BY_STEP}
# This operation returns uninitialized memory, which differs from call to call.
UNINITIALIZED = {"linalg.lstsq"}
# Operations below autocast, which torch itself calls; on a CPU, their kernels return other dtypes.
ON_CPU = {"_softmax_backward_data", "native_batch_norm", "native_group_norm"}


def widened(name: str, how: list[str]) -> bool:
    """Return whether an operation has no half kernel, so that torch fails or stays in half.

    Ours is FP32 then.
    """
    in_fp32 = all(words.endswith("labkit accepts") or "labkit float32" in words for words in how)
    return name.replace(".", "_") in NO_HALF_KERNEL and in_fp32


both_dtypes = pytest.mark.parametrize("dtype", OPERATIONS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@both_dtypes
def test_every_sample_of_every_operation(simulated_gpu: Any, dtype: str) -> None:
    found = simulated_gpu("T4", against_torch.operations, dtype, 1000, timeout=1000)
    different, on_cpu = (
        {n for n, how in found[w].items() if not widened(n, how)} for w in ("different", "on_cpu")
    )
    assert different - UNINITIALIZED == set(OPERATIONS[dtype]), found["different"]
    assert on_cpu <= {*OPERATIONS[dtype], *ON_CPU}, found["on_cpu"]
    assert found["equal"] > 15_000


@pytest.mark.slow
@pytest.mark.timeout(600)
@both_dtypes
def test_every_module_forward_and_backward(simulated_gpu: Any, dtype: str) -> None:
    found = simulated_gpu("T4", against_torch.modules, dtype, timeout=500)
    assert set(found["different"]) <= set(MODULES), found["different"]
    assert found["on_cpu"] == {}
    assert found["equal"] > 2500


def by_the_list() -> list[str]:
    logits = 8 * torch.randn(64, 10, device="cuda", dtype=torch.float16)
    classes = torch.arange(64, device="cuda") % 10

    def loss(region: Any) -> Any:
        with region:
            return torch.nn.functional.cross_entropy(logits, classes)

    theirs = against_torch.outcome(loss, torch.autocast("cuda", torch.float16))
    ours = [against_torch.outcome(loss, autocast("cuda", torch.float16))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_amp, "COMPOSITES", {})
        ours.append(against_torch.outcome(loss, autocast("cuda", torch.float16)))
    return [against_torch.compare(theirs, result) for result in ours]


EXACT = [network for network in against_torch.TRAINED if f"nn.{network}" not in MODULES]


def trainings() -> dict[str, str]:
    pairs = against_torch.pairs("cuda")
    return {
        name: against_torch.compare_training(name, *pairs, "cuda", width=32, steps=12)
        for name in EXACT
    }


def test_composites_and_trainings_equal_torch_s(simulated_gpu: Any) -> None:
    """The rule of labkit.amp.autocast, from torch's documentation, differs from torch's own."""
    found = simulated_gpu("T4", [against_torch.composites, by_the_list, trainings])
    composites = found[against_torch.composites]
    assert composites["different"] == {}
    assert composites["on_cpu"] == {}
    assert composites["equal"] > 55
    assert found[by_the_list] == ["equal", "the numbers differ"]
    assert found[trainings] == dict.fromkeys(EXACT, "equal")


# ---- the checks of a real card, on a CPU: each must detect a difference

NOWHERE = partial(autocast, "cpu", enabled=False)
OURS = against_torch.pairs("cpu")[0]


def test_checks_without_a_gpu_are_skipped_or_fail() -> None:
    with pytest.raises(pytest.skip.Exception, match="THERE IS NO GPU: this test did not run"):
        without_a_gpu(required=False)
    with pytest.raises(pytest.fail.Exception, match="LABKIT_REQUIRE_GPU=1"):
        without_a_gpu(required=True)


def test_the_lists_detect_torch_s_other_policy_for_a_cpu() -> None:
    theirs = partial(torch.autocast, "cpu", torch.float16), torch.amp.GradScaler
    outcome = {
        call.rpartition(" ")[2]: how
        for group in ("torch_fp16", "torch_fp32", "methods_fp32")
        for call, how in against_torch.lists(group, "cpu", theirs, OURS).items()
    }
    assert outcome["torch.mm"] == "equal", "a product is rounded once by both"
    assert outcome["torch.softmax"] == "torch returns float16; labkit float32"
    assert outcome["method.exp"] == "torch returns float16; labkit float32"
    assert (
        sum(len(against_torch.listed_calls("cpu")[group]) for group in against_torch.groups()) > 100
    )


def test_values_refusals_and_dtypes_are_distinguished() -> None:
    class NextAfter(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return torch.nextafter(func(*args, **(kwargs or {})), torch.tensor(torch.inf))

    def compared(function: Any, arguments: Any, *regions: Any) -> str:
        call = partial(against_torch._listed, function, arguments, {})
        return against_torch.compare(*(against_torch.outcome(call, region()) for region in regions))

    thirds = (torch.full((2, 2), 1 / 3),) * 2
    banned = torch._C._nn.binary_cross_entropy, (torch.rand(2), torch.rand(2))
    assert compared(torch.matmul, thirds, NOWHERE, NOWHERE) == "equal"
    assert (
        compared(torch.matmul, thirds, NOWHERE, OURS[0]) == "torch returns float32; labkit float16"
    )
    assert compared(torch.matmul, thirds, NOWHERE, NextAfter) == "the numbers differ"
    assert compared(*banned, NOWHERE, OURS[0]).startswith("torch accepts; labkit RuntimeError")
    assert compared(*banned, OURS[0], NOWHERE).endswith("; labkit accepts")
    assert compared(*banned, OURS[0], OURS[0]) == "refused"


def test_a_check_fails_if_torch_can_compute_a_different_call() -> None:
    check_run = CheckRun()
    checks.check_unlike(check_run, {"a": "equal", "b": "unusable: it has no kernel"})
    assert check_run.found["calls"] == 2
    assert check_run.found["unlike"] == {"b": "unusable: it has no kernel"}
    with pytest.raises(AssertionError, match="c: the numbers differ"):
        checks.check_unlike(check_run, {"c": "the numbers differ"})
    assert check_run.found["unlike"] == {"c": "the numbers differ"}


def test_a_late_scaler_is_detected() -> None:
    class Late(GradScaler):
        def __init__(self, device: str, init_scale: float, growth_interval: int) -> None:
            super().__init__(device, init_scale, growth_interval=growth_interval + 1)

    how = against_torch.compare_training("MLP", OURS, (OURS[0], Late), "cpu", width=16, steps=12)
    # torch's tracker restarts after three clean steps.
    assert "tracker 3 instead of loss" in how
    assert against_torch.compare_training("MLP", OURS, OURS, "cpu", width=16, steps=12) == "equal"


def test_a_wrong_recurrent_cast_is_detected() -> None:
    for packed in (False, True):
        call = against_torch.recurrent("LSTM", 8, packed, "cpu")
        theirs, ours, again = (
            against_torch.outcome(call, region()) for region in (NOWHERE, OURS[0], NOWHERE)
        )
        # The output, two states, and the gradients of four weights.
        assert len(theirs[0]) == 1 + 2 + 4
        assert against_torch.compare(theirs, again) == "equal"
        assert against_torch.compare(theirs, ours) != "equal"


def test_wrong_products_of_labkit_s_kernel_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for added, wrong in ((0, 0), (torch.eye(20, 30), 20)):

        def product(a, b, _, added=added):
            return (a.float() @ b.float()).to(a.dtype) + added

        monkeypatch.setattr(checks, "matmul", product)
        assert checks.wrong_products(TILES[-1], torch.float16, 20, 30, 40, "cpu") == wrong
