"""What happens to a model between two steps: edits count, or are refused in words; copies train on by themselves."""

import copy
import io
import itertools
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Ema, Engine, load_checkpoint, save_checkpoint
from labkit.amp.masters.edits import Checksum, checksum, differences
from labkit.amp.masters.weights import MakeOptimizer
from labkit.gemm import SPECS

STANDING = partial(torch.optim.SGD, lr=0.0)
ADAM = partial(torch.optim.Adam, lr=1e-2, eps=1e-4)  # FP16 holds 1e-4, so that O3 trains too


def engine_for(name: str, flat: bool = False, make: MakeOptimizer = ADAM) -> Engine:
    torch.manual_seed(0)
    recipe = replace(RECIPES["O2"], accumulator=SPECS["V100"]) if name == "on a V100" else RECIPES[name]
    return Engine(nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3)), make, recipe, flat=flat)


def backward(engine: Engine, number: int) -> float:
    generator = torch.Generator().manual_seed(number)
    inputs, targets = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
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


def same(before: Checksum, after: Checksum) -> bool:
    return not any(differences(before, after) or [before])


# --- every way to edit ---


def fill_vector(model: nn.Module) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(torch.full(vector.shape, 0.25), model.parameters())


def for_each(edit: Callable[[nn.Parameter], object]) -> Callable[[nn.Module], None]:
    return lambda model: [edit(p) for p in model.parameters()] and None


def new_data(dtype: torch.dtype | None) -> Callable[[nn.Module], None]:
    def edit(p: nn.Parameter) -> None:
        p.data = torch.full(p.shape, 0.25, dtype=dtype or p.dtype)

    return for_each(edit)


EDITS: dict[str, Callable[[nn.Module], object]] = {
    "p.data.fill_()": for_each(lambda p: p.data.fill_(0.25)),
    "p.data.copy_()": for_each(lambda p: p.data.copy_(torch.full(p.shape, 0.25))),
    "p.data = of its dtype": new_data(None),
    "p.data = in FP32": new_data(torch.float32),
    "vector_to_parameters": fill_vector,
    "load_state_dict": lambda m: m.load_state_dict({k: torch.full(v.shape, 0.25) for k, v in m.state_dict().items()}),
    "nn.init": for_each(lambda p: nn.init.constant_(p, 0.25)),
    "p.data.normal_() and back": for_each(lambda p: p.data.normal_().fill_(0.25)),
}


@pytest.mark.parametrize("name", ["FP32", "O2", "BF16", "O3", "FP16 no master", "FP16 Kahan"])
def test_an_edit_counts(name: str) -> None:
    for flat, (way, edit) in itertools.product((False, True), EDITS.items()):
        engine = engine_for(name, flat, STANDING)
        dtypes = [p.dtype for p in engine.model.parameters()]
        steps(engine, 0)
        edit(engine.model)
        steps(engine, 0)
        assert [p.dtype for p in engine.model.parameters()] == dtypes, (way, flat)
        for weights in (engine.fp32_model().values(), engine.weights.master_weights, engine.model.parameters()):
            assert all((w == 0.25).all() for w in weights), (way, flat)


def test_data_in_fp32_give_the_master_all_their_digits() -> None:
    engine = engine_for("O2", make=STANDING)
    engine.model[0].weight.data = torch.full((16, 6), 0.1)
    steps(engine, 0)
    assert (engine.fp32_model()["0.weight"] == 0.1).all()
    assert (engine.model[0].weight == torch.tensor(0.1).half()).all()


def test_an_edit_between_backward_and_step_or_before_a_checkpoint_counts(tmp_path) -> None:  # type: ignore[no-untyped-def]
    engine, other = (engine_for("O2", make=STANDING) for _ in range(2))
    with engine.forward():
        engine.backward(engine(torch.ones(2, 6)).mean())
    engine.model[0].bias.data.fill_(0.5)
    engine.step()
    assert (engine.fp32_model()["0.bias"] == 0.5).all()
    engine.model[0].bias.data.fill_(0.75)
    load_checkpoint(save_checkpoint(tmp_path / "run.pt", engine), other)
    assert (other.fp32_model()["0.bias"] == 0.75).all()


# --- what cannot count is refused ---


def test_a_layer_that_came_later_and_data_of_another_shape_are_refused_by_name() -> None:
    changes: list[Callable[[nn.Sequential], object]] = [
        lambda model: model.__setitem__(0, nn.Linear(6, 16)),
        lambda model: model.add_module("last", nn.Linear(3, 3)),
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.zeros(16, 6))),
    ]
    for name, change in itertools.product(("FP32", "O1", "O2"), changes):
        engine = engine_for(name, make=STANDING)
        steps(engine, 0)
        loss = engine(torch.ones(1, 6)).sum()
        engine.zero_grad()
        change(engine.model)
        with pytest.raises(RuntimeError, match=r"parameter '(0.weight|last.weight)' was added to the model after"):
            engine.backward(loss)
    engine = engine_for("O2", make=STANDING)
    engine.model[0].weight.data = torch.zeros(3, 6)
    with pytest.raises(ValueError, match=r"'0.weight' were given the shape \(3, 6\); the optimizer steps \(16, 6\)"):
        engine.forward()


def test_an_average_in_the_model_is_not_taken_for_an_edit() -> None:
    engine = engine_for("O2", make=STANDING)
    ema = Ema(engine)
    for average in ema.averages.values():
        average.fill_(9.0)
    before = engine.fp32_model()
    with ema.in_model():
        assert (engine.model[0].weight == 9).all()
        for call in (engine.weights.named_masters, engine.state_dict, partial(engine.weights.step, [])):
            with pytest.raises(RuntimeError, match="other values stand in the model's weights for a while"):
                call()
    steps(engine, 0)
    assert all(torch.equal(value, before[key]) for key, value in engine.fp32_model().items())


# --- the checksum ---


def test_a_change_of_any_one_number_by_one_code_shows() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype, size in itertools.product((torch.float16, torch.bfloat16, torch.float32), (1, 5, 4096, 100_003)):
        tensor = torch.randn(size, generator=generator).to(dtype)
        tensor[size // 3] = math.nan  # which equals nothing, and is no change
        before = checksum([tensor])
        assert same(before, checksum([tensor.clone()])), (dtype, size)
        codes = tensor.view(torch.int32 if dtype is torch.float32 else torch.int16)
        for index in {0, size // 2, size - 1}:
            codes[index] += 1
            assert not same(before, checksum([tensor])), (dtype, size, index)
            codes[index] -= 1
        assert same(before, checksum([tensor])), (dtype, size)


def test_rows_that_change_places_show_and_no_order_of_dimensions_hides_a_change() -> None:
    torch.manual_seed(0)
    layouts = [
        torch.randn(500, 512).half(),
        torch.randn(512, 500).half().t(),
        torch.randn(64, 32, 3, 3).half().contiguous(memory_format=torch.channels_last),
        torch.randn(1000, 600).half()[:, ::2],
        torch.randn(70_001).half()[1:],
    ]
    for number, tensor in enumerate(layouts):
        before = checksum([tensor])
        tensor[[0, -1]] = tensor[[-1, 0]].clone()
        assert not same(before, checksum([tensor])), number


def through_torch(engine: Engine) -> Engine:
    file = io.BytesIO()
    torch.save(engine, file)
    file.seek(0)
    loaded: Engine = torch.load(file, weights_only=False)
    return loaded


WAYS: dict[str, Callable[[Engine], Engine]] = {
    "deepcopy": copy.deepcopy,
    "torch.save": through_torch,
}


def alike(a: Engine, b: Engine) -> bool:
    states = (a.fp32_model(), b.fp32_model())
    return a.scalers == b.scalers and all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", ["FP32", "O1", "O2", "O3", "BF16", "FP16 stochastic", "FP16 Kahan", "on a V100"])
def test_a_copy_after_a_step_trains_on_alike_and_alone(name: str) -> None:
    for flat, (way, copied) in itertools.product((False, True), WAYS.items()):
        engine = engine_for(name, flat)
        steps(engine, 0, 1)
        twin = copied(engine)
        before = {key: value.clone() for key, value in engine.fp32_model().items()}
        ahead = steps(twin, 2, 3)
        unmoved = engine.fp32_model()
        assert all(torch.equal(value, before[key]) for key, value in unmoved.items()), (way, flat)
        assert steps(engine, 2, 3) == ahead, (way, flat)
        assert alike(engine, twin), (way, flat)


@pytest.mark.parametrize("name", ["O2", "BF16", "FP32"])
def test_a_copy_between_backward_and_step_takes_its_gradients_along(name: str) -> None:
    for flat, (way, copied) in itertools.product((False, True), WAYS.items()):
        engine = engine_for(name, flat)
        steps(engine, 0)
        engine.zero_grad()
        backward(engine, 1)
        backward(engine, 2)
        twin = copied(engine)
        for each in (twin, engine):
            backward(each, 3)
            each.clip(0.1)
        third = copied(twin)
        reports = [each.step() for each in (engine, twin, third)]
        assert reports[0] == reports[1] == reports[2], (way, flat)
        assert reports[0].stepped
        assert alike(engine, twin), (way, flat)
        assert alike(engine, third), (way, flat)


def test_a_copy_remembers_what_was_done_to_gradients_and_weights() -> None:
    engine = engine_for("O2")
    backward(engine, 0)
    nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0)
    for each in (engine, copy.deepcopy(engine)):
        with pytest.raises(RuntimeError, match="gradients were changed between"):
            each.step()
    engine = engine_for("O2")
    engine.model[0].weight.data.clamp_(-0.01, 0.01)
    twin = pickle.loads(pickle.dumps(engine))
    assert steps(engine, 1) == steps(twin, 1)
    assert alike(engine, twin)
    assert engine.fp32_model()["0.weight"].abs().max() < 0.03, "the clamp, and one step of 0.01"
