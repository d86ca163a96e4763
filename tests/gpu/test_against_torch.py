"""The drop-in for torch.amp against torch.amp itself, on a simulated card.

The card runs the CPU's kernels under CUDA's dispatch key, so torch's own C++ decides the casts of
each operation. Differences of cuBLAS and cuDNN are not visible here.
"""

import re
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
from tests.gpu.simulated import Outcomes

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


def a_loss_in_parts_and_by_the_list() -> list[str]:
    """Compare torch's cross entropy of FP16 logits with ours in parts, and with that of the list.

    torch.autocast casts the parts of a cross entropy one by one; torch's documentation lists it as
    one operation in FP32.
    """
    logits = 8 * torch.randn(64, 10, device="cuda", dtype=torch.float16)
    classes = torch.arange(64, device="cuda") % 10

    def loss(region: Any) -> Any:
        with region:
            return torch.nn.functional.cross_entropy(logits, classes)

    theirs = against_torch.outcome(loss, torch.autocast("cuda", torch.float16))
    ours = against_torch.outcome(loss, autocast("cuda", torch.float16))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_amp, "COMPOSITES", {})
        listed = against_torch.outcome(loss, autocast("cuda", torch.float16))
    return [against_torch.compare(theirs, ours), against_torch.compare(theirs, listed)]


EXACT = [network for network in against_torch.TRAINED if f"nn.{network}" not in MODULES]


def trainings() -> dict[str, str]:
    pairs = against_torch.pairs("cuda")
    return {
        name: against_torch.compare_training(name, *pairs, "cuda", width=32, steps=12)
        for name in EXACT
    }


@pytest.fixture(scope="module")
def outcomes(simulated_gpu: Any) -> Outcomes:
    compared = [against_torch.composites, a_loss_in_parts_and_by_the_list, trainings]
    return simulated_gpu("T4", compared)


def test_composites_equal_torch_s(outcomes: Outcomes) -> None:
    composites = outcomes[against_torch.composites]
    assert composites["different"] == {}
    assert composites["on_cpu"] == {}
    assert composites["equal"] > 55


def test_the_list_of_the_documentation_differs_from_torch_itself(outcomes: Outcomes) -> None:
    assert outcomes[a_loss_in_parts_and_by_the_list] == ["equal", "the numbers differ"]


def test_trainings_equal_torch_s(outcomes: Outcomes) -> None:
    assert outcomes[trainings] == dict.fromkeys(EXACT, "equal")


# ---- the checks of a real card, on a CPU: each must detect a difference

NOWHERE = partial(autocast, "cpu", enabled=False)
OURS = against_torch.pairs("cpu")[0]


def test_a_check_without_a_gpu_is_skipped() -> None:
    with pytest.raises(pytest.skip.Exception, match="THERE IS NO GPU: this test did not run"):
        without_a_gpu(required=False)


def test_a_check_without_a_required_gpu_fails() -> None:
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


def test_the_lists_have_more_than_100_calls() -> None:
    calls = against_torch.listed_calls("cpu")
    assert sum(len(calls[group]) for group in against_torch.groups()) > 100


class NextAfter(torch.overrides.TorchFunctionMode):
    """A region in which each result is the next greater number."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.nextafter(func(*args, **(kwargs or {})), torch.tensor(torch.inf))


PRODUCT = (torch.matmul, (torch.full((2, 2), 1 / 3),) * 2)
# Autocast refuses this loss.
BANNED = (torch._C._nn.binary_cross_entropy, (torch.full((2,), 0.5),) * 2)


@pytest.mark.parametrize(
    ("call", "regions", "expected"),
    [
        (PRODUCT, (NOWHERE, NOWHERE), "equal"),
        (PRODUCT, (NOWHERE, OURS[0]), "torch returns float32; labkit float16"),
        (PRODUCT, (NOWHERE, NextAfter), "the numbers differ"),
        (BANNED, (NOWHERE, OURS[0]), r"torch accepts; labkit RuntimeError.*"),
        (BANNED, (OURS[0], NOWHERE), r"torch RuntimeError.*; labkit accepts"),
        (BANNED, (OURS[0], OURS[0]), "refused"),
    ],
)
def test_the_first_difference_of_two_outcomes_is_named(
    call: Any, regions: Any, expected: str
) -> None:
    function, arguments = call
    listed = partial(against_torch._listed, function, arguments, {})
    theirs, ours = (against_torch.outcome(listed, region()) for region in regions)
    assert re.fullmatch(expected, against_torch.compare(theirs, ours), re.DOTALL)


def test_calls_that_torch_cannot_compute_pass_a_check() -> None:
    check_run = CheckRun()
    checks.check_unlike(check_run, {"a": "equal", "b": "unusable: it has no kernel"})
    assert check_run.found["calls"] == 2
    assert check_run.found["unlike"] == {"b": "unusable: it has no kernel"}


def test_a_check_fails_if_torch_can_compute_a_different_call() -> None:
    check_run = CheckRun()
    with pytest.raises(AssertionError, match="c: the numbers differ"):
        checks.check_unlike(check_run, {"c": "the numbers differ"})
    assert check_run.found["unlike"] == {"c": "the numbers differ"}


class Late(GradScaler):
    """A scaler whose scale grows a step too late."""

    def __init__(self, device: str, init_scale: float, growth_interval: int) -> None:
        super().__init__(device, init_scale, growth_interval=growth_interval + 1)


def test_a_late_scaler_is_detected() -> None:
    how = against_torch.compare_training("MLP", OURS, (OURS[0], Late), "cpu", width=16, steps=12)
    # torch's tracker restarts after three clean steps.
    assert "tracker 3 instead of loss" in how


def test_a_training_equals_itself() -> None:
    assert against_torch.compare_training("MLP", OURS, OURS, "cpu", width=16, steps=12) == "equal"


@pytest.mark.parametrize(("region", "equal"), [(NOWHERE, True), (OURS[0], False)])
@pytest.mark.parametrize("packed", [False, True])
def test_a_wrong_recurrent_cast_is_detected(packed: bool, region: Any, equal: bool) -> None:
    call = against_torch.recurrent("LSTM", 8, packed, "cpu")
    theirs = against_torch.outcome(call, NOWHERE())
    ours = against_torch.outcome(call, region())
    assert (against_torch.compare(theirs, ours) == "equal") == equal


def test_a_recurrent_call_compares_outputs_states_and_gradients() -> None:
    call = against_torch.recurrent("LSTM", 8, packed=False, device="cpu")
    compared, *_ = against_torch.outcome(call, NOWHERE())
    # The output, two states, and the gradients of four weights.
    assert len(compared) == 1 + 2 + 4


@pytest.mark.parametrize(("added", "wrong"), [(torch.zeros(20, 30), 0), (torch.eye(20, 30), 20)])
def test_wrong_products_of_labkit_s_kernel_are_counted(
    added: torch.Tensor, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def product(a: torch.Tensor, b: torch.Tensor, _: Any) -> torch.Tensor:
        return (a.float() @ b.float()).to(a.dtype) + added

    monkeypatch.setattr(checks, "matmul", product)
    assert checks.wrong_products(TILES[-1], torch.float16, 20, 30, 40, "cpu") == wrong
