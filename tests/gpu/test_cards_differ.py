"""How the simulated cards differ: what each says of itself, what it refuses, and what TF32 is on it."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from tests.gpu.simulated import Outcomes
from tests.gpu.simulated.cards import CARDS
from tests.gpu.simulated.refusals import REFUSALS, Refusal

pytestmark = pytest.mark.slow  # what the simulated cards are changes rarely

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


def refusals() -> dict[str, str]:
    return {row.name: outcome(row, "cuda") for row in REFUSALS}


def what_the_card_says() -> list[Any]:
    properties = torch.cuda.get_device_properties(0)
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    return [properties.name, [properties.major, properties.minor], properties.multi_processor_count, native]


def dropped(state: list[int]) -> list[float]:
    """Return a seed and what dropout keeps, from a random state of another card."""
    torch.cuda.set_rng_state(torch.tensor(state, dtype=torch.uint8))
    return [torch.cuda.initial_seed(), *F.dropout(torch.ones(8, device="cuda")).tolist()]


def products_of_a_training() -> dict[str, Any]:
    """Train three steps of FP32, O1 and TF32 on the card; return the switches at its products, and what is recorded."""
    from dataclasses import replace

    from torch.utils._python_dispatch import TorchDispatchMode

    from labkit.amp import RECIPES, Engine
    from labkit.train import TASKS, train

    class AtEachProduct(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.switches: set[str] = set()
            self.operations: set[str] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func._schema.name in ("aten::convolution", "aten::convolution_backward", "aten::mm", "aten::addmm"):
                backends = torch.backends
                self.operations.add(func._schema.name)
                self.switches.add(f"{backends.cuda.matmul.fp32_precision} {backends.cudnn.conv.fp32_precision}")
            return func(*args, **(kwargs or {}))

    task, found = replace(TASKS["digits_cnn"], steps=3), {}
    for name in ("FP32", "O1", "TF32"):
        with AtEachProduct() as seen:
            record = train(task, RECIPES[name], device="gpu", measure_every=0)
        found[name] = {
            "switches": list(seen.switches),
            "operations": list(seen.operations),
            "recorded": record.arithmetic,
            "losses": [step.loss for step in record.steps],
        }
    engine = Engine(torch.nn.Linear(3, 2), torch.optim.SGD, RECIPES["TF32"], device="cuda")
    with AtEachProduct() as seen:
        with engine.forward():
            loss = engine(torch.ones(2, 3, device="cuda")).sum()
        engine.backward(loss)
    session = [torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision]
    return found | {"Engine": {"switches": list(seen.switches)}, "session": session}


STATE = [3, *[0] * 7, 8, *[0] * 7]  # seed 3 and offset 8, as bytes


@pytest.fixture(scope="module")
def on(simulated_gpu: Any) -> dict[str, Outcomes]:
    """What ran on a card with FP8 and TF32, and on one without."""
    calls = [what_the_card_says, refusals, (dropped, STATE), products_of_a_training]
    return {card: simulated_gpu(card, calls) for card in ("T4", "H100")}


def test_each_card_says_what_the_real_one_says(on: dict[str, Outcomes]) -> None:
    for name, outcomes in on.items():
        card = CARDS[name]
        assert outcomes[what_the_card_says] == [
            f"{card.name} (simulated)", list(card.capability), card.multiprocessors, name == "H100"
        ]  # fmt: skip
    assert on["T4"][dropped] == on["H100"][dropped], "a random state goes from card to card"
    assert on["T4"][dropped][0] == 3


def test_the_cpu_takes_it_and_the_card_refuses_in_torchs_words(on: dict[str, Outcomes]) -> None:
    assert len({row.name for row in REFUSALS}) == len(REFUSALS) > 60
    assert {row.name: said for row in REFUSALS if (said := outcome(row, "cpu"))} == {}
    for card, outcomes in on.items():
        said = outcomes[refusals]
        wrong = {row.name: said[row.name] for row in REFUSALS
                 if (row.words in said[row.name]) != row.holds_for(CARDS[card].capability)}  # fmt: skip
        assert wrong == {}, card


def test_from_ampere_on_fp32_is_ieees_and_tf32_is_torchs_switch(on: dict[str, Outcomes]) -> None:
    found = on["H100"][products_of_a_training]
    assert {"aten::convolution", "aten::convolution_backward", "aten::mm"} <= set(found["FP32"]["operations"])
    assert found["FP32"]["switches"] == found["O1"]["switches"] == ["ieee ieee"]
    assert found["TF32"]["switches"] == ["tf32 tf32"]
    assert found["TF32"]["recorded"]["FP32 conv"] == "tf32"
    assert found["FP32"]["recorded"]["FP32 conv"] == "ieee"
    assert found["FP32"]["recorded"]["cuDNN deterministic"] == "yes"
    assert found["Engine"]["switches"] == ["tf32 tf32"], "a loop of one's own has it in the backward pass too"
    assert found["TF32"]["losses"] == found["FP32"]["losses"], "the switch alone: no operand is rounded by the lab"
    assert found["session"] == ["none", "tf32"], "torch's defaults are back"


def test_before_ampere_operands_are_rounded(on: dict[str, Outcomes]) -> None:
    found = on["T4"][products_of_a_training]
    assert found["TF32"]["switches"] == ["ieee ieee"]
    assert found["Engine"]["switches"] == ["none tf32"], "a switch that such a card has not is left to the session"
    assert found["TF32"]["recorded"]["FP32 conv"] == "tf32, emulated"
    assert found["TF32"]["losses"] != found["FP32"]["losses"]
    assert found["TF32"]["losses"] == pytest.approx(found["FP32"]["losses"], rel=1e-2)


def taken_by_the_card() -> dict[str, list[str]]:
    """Run the operations whose dtypes CUDA lacks, by OpInfo, and return those that the card takes with their dtypes."""
    from torch.testing._internal.common_methods_invocations import op_db

    taken: dict[str, list[str]] = {}
    for operation in op_db:
        for dtype in operation.dtypes - operation.dtypesIfCUDA:
            sample = next(iter(operation.sample_inputs("cpu", dtype)))
            given = sample.input, sample.args, sample.kwargs
            first, rest, named = tree_map(lambda x: x.cuda() if isinstance(x, torch.Tensor) else x, given)
            try:
                operation(first, *rest, **named)
            except (RuntimeError, NotImplementedError):
                continue
            taken.setdefault(operation.full_name, []).append(str(dtype).removeprefix("torch."))
    return {name: sorted(dtypes) for name, dtypes in taken.items()}


@pytest.mark.slow
def test_opinfo_names_no_other_dtype_that_cuda_lacks(simulated_gpu: Any) -> None:
    """On an A100, since some rows of OpInfo ask for the capability of the card at hand."""
    taken = simulated_gpu("A100", taken_by_the_card)
    assert not any(dtype in ("float16", "bfloat16") for dtypes in taken.values() for dtype in dtypes)
    assert taken == NOT_REFUSED
