"""Edits of a model between two steps.

An edit of a weight reaches the next step and the master weights; an edit that the optimizer cannot
follow is refused.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Engine, load_checkpoint, save_checkpoint
from labkit.amp.masters.edits import Checksum, checksum, differences
from labkit.amp.masters.weights import MakeOptimizer
from labkit.gemm import SPECS

# With a learning rate of 0, only an edit changes a weight.
NO_UPDATE = partial(torch.optim.SGD, lr=0.0)
# FP16 rounds Adam's default eps of 1e-8 to zero, but not 1e-4, so O3 trains, too.
ADAM = partial(torch.optim.Adam, lr=1e-2, eps=1e-4)


def engine_for(name: str, flat: bool = False, make: MakeOptimizer = ADAM) -> Engine:
    torch.manual_seed(0)
    recipe = (
        replace(RECIPES["O2"], accumulator=SPECS["V100"]) if name == "on a V100" else RECIPES[name]
    )
    return Engine(
        nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3)), make, recipe, flat=flat
    )


def backward(engine: Engine, number: int) -> float:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(8, 6, generator=generator)
    targets = torch.randint(3, (8,), generator=generator)
    with engine.forward():
        loss = F.cross_entropy(engine(inputs), targets)
    engine.backward(loss)
    return loss.item()


def steps(engine: Engine, *numbers: int) -> list[float]:
    losses = []
    for number in numbers:
        engine.zero_grad()
        losses.append(backward(engine, number))
        engine.step()
    return losses


def equal_checksums(before: Checksum, after: Checksum) -> bool:
    flags = differences(before, after)
    return flags is not None and not any(bool(flag) for flag in flags)


def fill_vector(model: nn.Module) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(torch.full(vector.shape, 0.25), model.parameters())


def replace_data(p: nn.Parameter, dtype: torch.dtype | None) -> None:
    """Put a new tensor behind a parameter, in `dtype` or in the parameter's own."""
    p.data = torch.full(p.shape, 0.25, dtype=dtype or p.dtype)


EDITS: dict[str, Callable[[nn.Module], object]] = {
    "p.data.fill_()": lambda model: [p.data.fill_(0.25) for p in model.parameters()],
    "p.data = of its dtype": lambda model: [replace_data(p, None) for p in model.parameters()],
    "p.data = in FP32": lambda model: [replace_data(p, torch.float32) for p in model.parameters()],
    "vector_to_parameters": fill_vector,
    "load_state_dict": lambda m: m.load_state_dict(
        {k: torch.full(v.shape, 0.25) for k, v in m.state_dict().items()}
    ),
    "nn.init": lambda model: [nn.init.constant_(p, 0.25) for p in model.parameters()],
}


@pytest.mark.parametrize("name", ["FP32", "O2", "BF16", "O3", "FP16 no master", "FP16 Kahan"])
def test_an_edit_reaches_model_and_master_weights(name: str) -> None:
    for flat, (description, edit) in itertools.product((False, True), EDITS.items()):
        engine = engine_for(name, flat, NO_UPDATE)
        dtypes = [p.dtype for p in engine.model.parameters()]
        steps(engine, 0)
        edit(engine.model)
        steps(engine, 0)
        assert [p.dtype for p in engine.model.parameters()] == dtypes, (description, flat)
        for weights in (
            engine.fp32_model().values(),
            engine.weights.master_weights,
            engine.model.parameters(),
        ):
            assert all((w == 0.25).all() for w in weights), (description, flat)


def test_an_edit_between_backward_and_step_takes_effect() -> None:
    engine = engine_for("O2", make=NO_UPDATE)
    backward(engine, 0)
    engine.model[0].bias.data.fill_(0.5)
    engine.step()
    assert (engine.fp32_model()["0.bias"] == 0.5).all()


def test_an_edit_in_fp32_reaches_a_checkpoint_with_all_digits(tmp_path: Path) -> None:
    engine = engine_for("O2", make=NO_UPDATE)
    other = engine_for("O2", make=NO_UPDATE)
    steps(engine, 0)
    # FP16 cannot represent 0.1, and the master does.
    engine.model[0].bias.data = torch.full((16,), 0.1)
    load_checkpoint(save_checkpoint(tmp_path / "run.pt", engine), other)
    for edited in (engine, other):
        assert (edited.fp32_model()["0.bias"] == 0.1).all()
        assert (edited.model[0].bias == torch.tensor(0.1).half()).all()


def test_a_parameter_added_later_is_refused_by_name() -> None:
    additions: list[Callable[[nn.Sequential], object]] = [
        lambda model: model.__setitem__(0, nn.Linear(6, 16)),
        lambda model: model.add_module("last", nn.Linear(3, 3)),
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(16, 6))),
    ]
    for name, add in itertools.product(("FP32", "O1", "O2"), additions):
        engine = engine_for(name, make=NO_UPDATE)
        steps(engine, 0)
        loss = engine(torch.ones(1, 6)).sum()
        engine.zero_grad()
        add(engine.model)
        with pytest.raises(
            RuntimeError, match=r"parameter '(0.weight|last.weight)' was added to the model after"
        ):
            engine.backward(loss)


def test_weight_of_another_shape_is_refused_by_name() -> None:
    engine = engine_for("O2", make=NO_UPDATE)
    engine.model[0].weight.data = torch.zeros(3, 6)
    with pytest.raises(
        ValueError, match=r"'0.weight' were given the shape \(3, 6\); the optimizer steps \(16, 6\)"
    ):
        engine.forward()


# One element, a few, a power of two, and a large size that no block or vector divides.
CHECKSUM_SIZES = (1, 5, 4096, 100_003)


def test_checksum_detects_a_change_of_one_bit_pattern() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype, size in itertools.product(
        (torch.float16, torch.bfloat16, torch.float32), CHECKSUM_SIZES
    ):
        tensor = torch.randn(size, generator=generator).to(dtype)
        # NaN differs from itself in a comparison of numbers; the checksum reads bits.
        tensor[size // 3] = math.nan
        before = checksum([tensor])
        assert equal_checksums(before, checksum([tensor.clone()])), (dtype, size)
        codes = tensor.view(torch.int32 if dtype is torch.float32 else torch.int16)
        for index in {0, size // 2, size - 1}:
            codes[index] += 1
            assert not equal_checksums(before, checksum([tensor])), (dtype, size, index)
            codes[index] -= 1
        assert equal_checksums(before, checksum([tensor])), (dtype, size)


def test_checksum_detects_swapped_rows() -> None:
    torch.manual_seed(0)
    # Contiguous, transposed, channels last, strided, and not aligned to the storage's start.
    for number, tensor in enumerate(
        (
            torch.randn(500, 512).half(),
            torch.randn(512, 500).half().t(),
            torch.randn(64, 32, 3, 3).half().contiguous(memory_format=torch.channels_last),
            torch.randn(1000, 600).half()[:, ::2],
            torch.randn(70_001).half()[1:],
        )
    ):
        before = checksum([tensor])
        tensor[[0, -1]] = tensor[[-1, 0]].clone()
        assert not equal_checksums(before, checksum([tensor])), number
