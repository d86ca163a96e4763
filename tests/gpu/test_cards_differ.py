"""What CUDA refuses and the CPU takes: each row on the CPU and a simulated card, and all against torch's OpInfo."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tests.gpu.simulated.cards import CARDS
from tests.gpu.simulated.refusals import REFUSALS, Refusal

# What OpInfo says CUDA lacks and the simulated card computes all the same: whole numbers and booleans, in kernels whose
# words nobody has read. A row takes an operation off this list.
WHOLE = ["int16", "int32", "int64", "int8", "uint8"]
NOT_REFUSED = {
    **{f"nn.functional.{kind}{n}d": ["int64"] for kind in ("avg_pool", "conv", "conv_transpose") for n in (1, 2, 3)},
    **{f"nn.functional.max_pool{n}d": WHOLE for n in (2, 3)},
    **{
        f"nn.functional.{name}": ["uint8"]
        for name in ("interpolate.bilinear", "interpolate.bicubic", "upsample_bilinear")
    },
    "nn.functional.local_response_norm": ["int64"],
    "_upsample_bilinear2d_aa": ["uint8"],
    "einsum": WHOLE,  # OpInfo's first sample of it multiplies no matrices
    "native_dropout_backward": ["bool", *WHOLE],
    **{f"scatter_reduce.{kind}": ["bool"] for kind in ("prod", "amin", "amax")},
    "norm": ["complex32"],
    "norm.inf": ["complex32"],
    "torch._scaled_mm_v2": ["float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"],
}


def outcome(row: Refusal, device: str) -> str:
    """Return what a row's example says on a device; "" where it raises nothing."""
    try:
        exec(row.example, {"torch": torch, "F": F, "device": device})
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return str(error)
    return ""


def outcomes() -> dict[str, str]:
    return {row.name: outcome(row, "cuda") for row in REFUSALS}


@pytest.fixture(scope="module")
def said(simulated_gpu) -> dict[str, dict[str, str]]:
    """What each row says on the cards with and without FP8."""
    return {card: simulated_gpu(card, outcomes) for card in ("T4", "H100")}


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row.name)
def test_the_cpu_takes_it_and_the_card_refuses_in_torchs_words(said: dict[str, dict[str, str]], row: Refusal) -> None:
    assert outcome(row, "cpu") == ""
    for card, words in said.items():
        if row.holds_for(CARDS[card].capability):
            assert row.words in words[row.name]
        else:
            assert row.words not in words[row.name]


def test_no_two_rows_have_one_name() -> None:
    names = [row.name for row in REFUSALS]
    assert sorted(set(names)) == sorted(names)
    assert all(row.source for row in REFUSALS)


def taken_by_the_card() -> dict[str, list[str]]:
    """Run the operations whose dtypes CUDA lacks, by OpInfo, and return those that the card takes with their dtypes."""
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.utils._pytree import tree_map

    def on_card(value: object) -> object:
        return value.cuda() if isinstance(value, torch.Tensor) else value

    taken: dict[str, list[str]] = {}
    for operation in op_db:
        for dtype in operation.dtypes - operation.dtypesIfCUDA:
            sample = next(iter(operation.sample_inputs("cpu", dtype)))
            moved = tree_map(on_card, (sample.input, sample.args, sample.kwargs))
            try:
                operation(moved[0], *moved[1], **moved[2])
            except (RuntimeError, NotImplementedError):
                continue
            taken.setdefault(operation.full_name, []).append(str(dtype).removeprefix("torch."))
    return {name: sorted(dtypes) for name, dtypes in taken.items()}


@pytest.mark.slow
def test_opinfo_names_no_other_dtype_that_cuda_lacks(simulated_gpu) -> None:
    """On an A100, since some rows of OpInfo ask for the capability of the card at hand."""
    taken = simulated_gpu("A100", taken_by_the_card)
    assert not any(dtype in ("float16", "bfloat16") for dtypes in taken.values() for dtype in dtypes)
    assert taken == NOT_REFUSED
