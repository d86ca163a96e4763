"""The checks of a GPU without one: each sees what it is to see."""

from functools import partial
from typing import Any

import pytest
import torch

from labkit.bench.triton_gemm import TILES
from labkit.frameworks.torch_amp import GradScaler, autocast
from tests.gpu import against_torch
from tests.gpu.checks import test_checks as checks
from tests.gpu.conftest import Asked, without_a_gpu

NOWHERE = partial(autocast, "cpu", enabled=False)
OURS = against_torch.pairs("cpu")[0]


def test_unchecked_items_are_listed_and_an_error_where_a_gpu_is_required() -> None:
    with pytest.raises(pytest.skip.Exception, match="THERE IS NO GPU: nothing of this was asked"):
        without_a_gpu(required=False)
    with pytest.raises(pytest.fail.Exception, match="LABKIT_REQUIRE_GPU=1"):
        without_a_gpu(required=True)


def test_the_lists_show_that_torchs_cpu_policy_is_another() -> None:
    theirs = partial(torch.autocast, "cpu", torch.float16), torch.amp.GradScaler
    found = {
        group: against_torch.lists(group, "cpu", theirs, OURS) for group in ("torch_fp16", "torch_fp32", "methods_fp32")
    }
    outcome = {call.rpartition(" ")[2]: how for calls in found.values() for call, how in calls.items()}
    assert outcome["torch.mm"] == "equal", "a product is rounded once by both"
    assert outcome["torch.softmax"] == "torch returns float16; labkit float32"
    assert outcome["method.exp"] == "torch returns float16; labkit float32"
    assert sum(len(against_torch.listed_calls("cpu")[group]) for group in against_torch.groups()) > 100


def test_values_refusals_and_dtypes_are_distinguished_and_fail_the_check() -> None:
    class Nudged(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return torch.nextafter(func(*args, **(kwargs or {})), torch.tensor(torch.inf))

    def compared(function: Any, arguments: Any, *regions: Any) -> str:
        call = partial(against_torch._listed, function, arguments, {})
        return against_torch.compare(*(against_torch.outcome(call, region()) for region in regions))

    thirds = (torch.full((2, 2), 1 / 3),) * 2
    assert compared(torch.matmul, thirds, NOWHERE, NOWHERE) == "equal"
    assert compared(torch.matmul, thirds, NOWHERE, OURS[0]) == "torch returns float32; labkit float16"
    banned = torch._C._nn.binary_cross_entropy, (torch.rand(2), torch.rand(2))
    assert compared(*banned, NOWHERE, OURS[0]).startswith("torch accepts; labkit RuntimeError")
    assert compared(*banned, OURS[0], NOWHERE).endswith("; labkit accepts")
    assert compared(*banned, OURS[0], OURS[0]) == "refused"
    assert compared(torch.exp, (torch.ones(3),), NOWHERE, Nudged) == "the numbers differ", "one last bit"
    asked = Asked()
    checks.check_unlike(asked, {"a": "equal", "b": "unusable: it has no kernel"})
    assert (asked.found["calls"], asked.found["unlike"]) == (2, {"b": "unusable: it has no kernel"})
    with pytest.raises(AssertionError, match="c: the numbers differ"):
        checks.check_unlike(asked, {"c": "the numbers differ"})
    assert asked.found["unlike"] == {"c": "the numbers differ"}


def test_a_scaler_that_grows_one_step_late_is_seen() -> None:
    class Late(GradScaler):
        def __init__(self, device: str, init_scale: float, growth_interval: int) -> None:
            super().__init__(device, init_scale, growth_interval=growth_interval + 1)

    late = (OURS[0], Late)
    how = against_torch.compare_training("MLP", OURS, late, "cpu", width=16, steps=12)
    assert "tracker 3 instead of loss" in how, "torch's begins anew after 3 clean steps"
    assert against_torch.compare_training("MLP", OURS, OURS, "cpu", width=16, steps=12) == "equal"


@pytest.mark.parametrize("packed", [False, True])
def test_a_recurrent_layer_that_is_cast_otherwise_is_seen(packed: bool) -> None:
    theirs, ours, again = (
        against_torch.outcome(against_torch.recurrent("LSTM", 8, packed, "cpu"), region())
        for region in (NOWHERE, OURS[0], NOWHERE)
    )
    assert len(theirs[0]) == 1 + 2 + 4, "the outputs and each weight's gradient"
    assert against_torch.compare(theirs, again) == "equal"
    assert against_torch.compare(theirs, ours) != "equal"


def test_wrong_products_of_our_kernel_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "matmul", lambda a, b, _: (a.float() @ b.float()).to(a.dtype))
    assert checks.wrong_products(TILES[-1], torch.float16, 20, 30, 40, "cpu") == 0
    eye = torch.eye(20, 30)
    monkeypatch.setattr(checks, "matmul", lambda a, b, _: (a.float() @ b.float()).to(a.dtype) + eye)
    assert checks.wrong_products(TILES[-1], torch.float16, 20, 30, 40, "cpu") == 20
