"""What somebody does to the model's weights between two steps: it counts, or it is refused in words."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Ema, Engine, Weights, load_checkpoint, save_checkpoint
from labkit.amp.masters.edits import checksum, same

STANDING = partial(torch.optim.SGD, lr=0.0)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3))


def step(engine: Engine) -> None:
    engine.zero_grad()
    with engine.forward():
        loss = F.cross_entropy(engine(torch.ones(2, 6)), torch.tensor([0, 1]))
    engine.backward(loss)
    assert engine.step().stepped


# --- worked example: Wasserstein GAN, as published ---


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", ["O2", "BF16", "FP16 Kahan"])
def test_weight_clipping_clips_as_it_does_in_fp32(name: str, flat: bool) -> None:
    """A critic whose weights are clamped after each step, through `.data`, as in arXiv:1701.07875's own code."""

    def train(engine: Engine) -> list[float]:
        generator, losses = torch.Generator().manual_seed(1), []
        for _ in range(60):
            real, fake = torch.randn(64, 4, generator=generator) + 1, torch.randn(64, 4, generator=generator)
            engine.zero_grad()
            with engine.forward():
                loss = engine(fake).mean() - engine(real).mean()
            engine.backward(loss)
            engine.step()
            for p in engine.model.parameters():
                p.data.clamp_(-1 / 16, 1 / 16)
            losses.append(loss.item())
        return losses

    def critic(recipe: str) -> Engine:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        return Engine(model, partial(torch.optim.RMSprop, lr=5e-3), RECIPES[recipe], flat=flat)

    half, plain = critic(name), critic("FP32")
    ours, theirs = train(half), train(plain)
    assert ours[-10:] == pytest.approx(theirs[-10:], rel=0.05)
    for engine in (half, plain):
        assert max(float(w.abs().max()) for w in engine.fp32_model().values()) == 1 / 16


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


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", ["FP32", "O2", "BF16", "O3", "FP16 no master", "FP16 Kahan"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_counts(edit: str, name: str, flat: bool) -> None:
    engine = Engine(net(), STANDING, RECIPES[name], flat=flat)
    dtypes = [p.dtype for p in engine.model.parameters()]
    step(engine)
    EDITS[edit](engine.model)
    step(engine)
    assert [p.dtype for p in engine.model.parameters()] == dtypes
    for weights in (engine.fp32_model().values(), engine.weights.master_weights, engine.model.parameters()):
        assert all((w == 0.25).all() for w in weights)


def test_data_in_fp32_give_the_master_all_their_digits() -> None:
    engine = Engine(net(), STANDING, RECIPES["O2"])
    engine.model[0].weight.data = torch.full((16, 6), 0.1)
    step(engine)
    assert (engine.fp32_model()["0.weight"] == 0.1).all()
    assert (engine.model[0].weight == torch.tensor(0.1).half()).all()


def test_an_edit_between_backward_and_step_or_before_a_checkpoint_counts(tmp_path) -> None:  # type: ignore[no-untyped-def]
    engine, other = (Engine(net(), STANDING, RECIPES["O2"]) for _ in range(2))
    with engine.forward():
        engine.backward(engine(torch.ones(2, 6)).mean())
    engine.model[0].bias.data.fill_(0.5)
    engine.step()
    assert (engine.fp32_model()["0.bias"] == 0.5).all()
    engine.model[0].bias.data.fill_(0.75)
    load_checkpoint(save_checkpoint(tmp_path / "run.pt", engine), other)
    assert (other.fp32_model()["0.bias"] == 0.75).all()


def test_no_edit_costs_no_digit() -> None:
    engine = Engine(net(), partial(torch.optim.SGD, lr=1e-3), RECIPES["O2"])
    step(engine)
    digits = {name: m.clone() for name, m in engine.weights.named_masters().items()}
    assert any((m != m.half()).any() for m in digits.values())
    engine.model[2].bias.data.fill_(0.5)
    engine.weights.adopt_edits()
    after = engine.weights.named_masters()
    assert all(torch.equal(after[name], m) for name, m in digits.items() if name != "2.bias")


# --- what cannot count is refused ---


def replaced(model: nn.Sequential) -> None:
    model[0] = nn.Linear(6, 16)


def added(model: nn.Sequential) -> None:
    model.add_module("last", nn.Linear(3, 3))


def new_parameter(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.zeros(16, 6))


@pytest.mark.parametrize("name", ["FP32", "O1", "O2"])
@pytest.mark.parametrize("change", [replaced, added, new_parameter])
def test_a_layer_that_came_later_is_refused_by_name(change: Callable[[nn.Module], None], name: str) -> None:
    engine = Engine(net(), STANDING, RECIPES[name])
    step(engine)
    loss = engine(torch.ones(1, 6)).sum()
    engine.zero_grad()
    change(engine.model)
    for call in (engine.forward, lambda: engine.backward(loss)):
        with pytest.raises(RuntimeError, match=r"parameter '(0.weight|last.weight)' came into the model after"):
            call()


def test_data_of_another_shape_are_refused_by_name() -> None:
    engine = Engine(net(), STANDING, RECIPES["O2"])
    engine.model[0].weight.data = torch.zeros(3, 6)
    with pytest.raises(ValueError, match=r"'0.weight' were given the shape \(3, 6\); the optimizer steps \(16, 6\)"):
        engine.forward()


def test_a_layer_frozen_later_stays_and_one_thawed_later_is_refused() -> None:
    engine = Engine(net(), partial(torch.optim.SGD, lr=0.1, momentum=0.9), RECIPES["O2"])
    step(engine)
    engine.model[0].requires_grad_(False)
    before = engine.model[0].weight.clone()
    step(engine)
    assert torch.equal(engine.model[0].weight, before)
    model = net()
    model[0].requires_grad_(False)
    engine = Engine(model, STANDING, RECIPES["O2"])
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"'0.weight' was frozen when the optimizer was made"):
        step(engine)


def test_while_an_average_stands_in_the_model_nothing_takes_it_for_an_edit() -> None:
    engine = Engine(net(), STANDING, RECIPES["O2"])
    ema = Ema(engine)
    for average in ema.averages.values():
        average.fill_(9.0)
    before = engine.fp32_model()
    with ema.in_model():
        assert (engine.model[0].weight == 9).all()
        for call in (engine.weights.named_masters, engine.state_dict, partial(engine.weights.step, [])):
            with pytest.raises(RuntimeError, match="other values stand in the model's weights for a while"):
                call()
    step(engine)
    assert all(torch.equal(value, before[key]) for key, value in engine.fp32_model().items())


# --- the checksum ---


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 5, 4096, 100_003])
def test_a_change_of_any_one_number_by_one_code_shows(size: int, dtype: torch.dtype) -> None:
    tensor = torch.randn(size).to(dtype)
    before = checksum([tensor])
    assert same(before, checksum([tensor.clone()]))
    codes = tensor.view(torch.int32 if dtype is torch.float32 else torch.int16)
    for index in {0, size // 2, size - 1}:
        codes[index] += 1
        assert not same(before, checksum([tensor]))
        codes[index] -= 1
    assert same(before, checksum([tensor]))


def test_rows_that_change_places_show_and_no_order_of_dimensions_hides_a_change() -> None:
    image = torch.randn(64, 32, 3, 3).half()
    layouts: list[Tensor] = [
        torch.randn(500, 512).half(),
        torch.randn(512, 500).half().t(),
        image.contiguous(memory_format=torch.channels_last),
        torch.randn(1000, 600).half()[:, ::2],
        torch.randn(70_001).half()[1:],
    ]
    for tensor in layouts:
        before = checksum([tensor])
        tensor[[0, -1]] = tensor[[-1, 0]].clone()
        assert not same(before, checksum([tensor]))


def test_nan_is_no_change() -> None:
    model = nn.Linear(2, 1).half()
    weights = Weights(model, STANDING)
    model.weight.data.fill_(math.nan)
    weights.adopt_edits()
    noted = weights._noted
    weights.adopt_edits()
    assert weights._noted is noted
