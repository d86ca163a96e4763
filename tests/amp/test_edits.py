"""Edits of a model between two steps, copies, listeners and weight averages of an engine.

An edit of a weight reaches the next step and the master weights; an edit that the optimizer cannot
follow is refused. Copies of an engine train independently, listeners change no bit of a training,
and averages equal torch's.
"""

import copy
import io
import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.amp import (
    RECIPES,
    Ema,
    Engine,
    Moment,
    ScalerState,
    StepEvent,
    StepReport,
    load_checkpoint,
    save_checkpoint,
)
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


def save_and_load(engine: Engine) -> Engine:
    """Return the engine that torch.load makes from what torch.save wrote."""
    file = io.BytesIO()
    torch.save(engine, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPY_FUNCTIONS: dict[str, Callable[[Engine], Engine]] = {
    "deepcopy": copy.deepcopy,
    "torch.save": save_and_load,
}
COPY_RECIPES = (
    "FP32",
    "O1",
    "O1 graph",
    "O2",
    "O3",
    "BF16",
    "FP8 delayed",
    "NVFP4",
    "FP16 stochastic",
    "FP16 Kahan",
)


def equal_states(a: Engine, b: Engine) -> bool:
    states = (a.fp32_model(), b.fp32_model())
    return a.scalers == b.scalers and all(
        torch.equal(states[0][key], states[1][key]) for key in states[0]
    )


@pytest.mark.parametrize("name", [*COPY_RECIPES, "on a V100"])
def test_copy_trains_independently(name: str) -> None:
    for flat, (description, copy_engine) in itertools.product(
        (False, True), COPY_FUNCTIONS.items()
    ):
        case = (description, flat)
        engine = engine_for(name, flat)
        steps(engine, 0, 1, 2)
        twin = copy_engine(engine)
        before = {key: value.clone() for key, value in engine.fp32_model().items()}
        losses_of_twin = steps(twin, 3, 4)
        for key, value in engine.fp32_model().items():
            assert torch.equal(value, before[key]), (*case, key)
        assert steps(engine, 3, 4) == losses_of_twin, case
        engine.zero_grad()
        backward(engine, 5)
        # A copy between backward and step takes the gradients along.
        twin = copy_engine(engine)
        for pending in (twin, engine):
            backward(pending, 6)
            pending.clip(0.1)
        third = copy_engine(twin)
        reports = [pending.step() for pending in (engine, twin, third)]
        assert reports[0] == reports[1], case
        assert reports[1] == reports[2], case
        assert equal_states(engine, twin), case
        assert equal_states(engine, third), case


def test_copy_refuses_gradients_that_were_clipped_outside() -> None:
    engine = engine_for("O2")
    backward(engine, 0)
    nn.utils.clip_grad_norm_(engine.model.parameters(), 1.0)
    for clipped in (engine, copy.deepcopy(engine)):
        with pytest.raises(RuntimeError, match="gradients were changed between"):
            clipped.step()


def test_copy_takes_an_edit_of_weights_along() -> None:
    engine = engine_for("O2")
    engine.model[0].weight.data.clamp_(-0.01, 0.01)
    twin = save_and_load(engine)
    assert steps(engine, 1) == steps(twin, 1)
    assert equal_states(engine, twin)
    # The clamp allows 0.01, and Adam's first step moves a weight by its learning rate of 0.01.
    assert engine.fp32_model()["0.weight"].abs().max() < 0.03


# The learning rates are exact in binary, and the second makes an update equal its gradient.
SGD = partial(torch.optim.SGD, lr=0.125)
SGD_BY_1 = partial(torch.optim.SGD, lr=1.0)


def step(engine: Engine, inputs: Tensor) -> None:
    engine.zero_grad()
    with engine.forward():
        loss = engine(inputs).sum()
    engine.backward(loss)
    engine.step()


def one_weight(recipe: str = "O2", make: MakeOptimizer = SGD_BY_1) -> Engine:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return Engine(layer, make, RECIPES[recipe])


def test_worked_example_of_a_step_with_a_static_scale() -> None:
    # y = w x with w = 1 and x = 0.25: the gradient is x, 2^10 times as large on its way and
    # unscaled in the step.
    engine = one_weight("FP16 static", SGD)
    events = list[StepEvent]()
    gradients_at = {}

    def record(event: StepEvent) -> None:
        events.append(event)
        gradients_at[event.moment] = [
            (gradient.dtype, gradient.item()) for gradient in event.gradients.values()
        ]

    with engine.listen(record):
        step(engine, torch.tensor([[0.25]]))
    assert [event.moment for event in events] == list(Moment)
    forward, _, _, stepped = events
    assert forward.loss.item() == 0.25
    assert forward.scale == 2.0**10
    assert forward.report is None
    unscaled = [(torch.float32, 0.25)]
    assert list(gradients_at.values()) == [[], [(torch.float16, 2.0**8)], unscaled, unscaled]
    assert stepped.report.stepped
    assert engine.model.weight.item() == 1 - 0.125 * 0.25


def test_a_skipped_step_is_an_event() -> None:
    engine = one_weight("FP16 static too high")
    events = list[StepEvent]()
    with engine.listen(events.append):
        # The scale of 2^26 is beyond FP16.
        step(engine, torch.tensor([[1.0]]))
    assert [event.moment for event in events] == list(Moment)
    assert not events[-1].report.stepped


def test_each_backward_is_an_event_until_the_listener_leaves(monkeypatch) -> None:
    engine = one_weight("FP32")
    moments = list[Moment]()
    with suppress(KeyError), engine.listen(lambda event: moments.append(event.moment)):
        for _ in range(2):
            engine.backward(engine(torch.ones(1, 1)).sum())
        engine.step()
        raise KeyError
    # Without a listener, no event is made: making one would call None and raise.
    monkeypatch.setattr(engine.weights, "by_name", None)
    step(engine, torch.ones(1, 1))
    assert moments == [Moment.FORWARD, Moment.SCALED] * 2 + [Moment.UNSCALED, Moment.STEPPED]


def test_listeners_change_no_bit_of_a_run() -> None:
    inputs = torch.linspace(-1, 1, 12).reshape(4, 3)
    for recipe in ("FP32", "O1", "O2", "O3", "BF16", "FP8", "FP16 no master"):
        weights = []
        for region in (
            lambda _: nullcontext(),
            lambda engine: engine.listen(lambda event: dict(event.gradients)),
        ):
            torch.manual_seed(0)
            engine = Engine(
                nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), SGD, RECIPES[recipe]
            )
            # The gradient of a sum is 1, which the default scale of 2^16 takes beyond FP16.
            if engine.recipe.scaler.dynamic:
                engine.scaler = ScalerState(2.0**8)
            for number in range(3):
                with region(engine):
                    step(engine, inputs)
                assert engine.steps == number + 1, f"{recipe}: a step was skipped"
            weights.append([p.detach().clone() for p in engine.model.parameters()])
        assert all(map(torch.equal, *weights)), recipe


def test_average_equals_torch_s_average_of_the_masters() -> None:
    torch.manual_seed(0)
    engine = Engine(nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5)), SGD_BY_1, RECIPES["O2"])
    masters = list(engine.weights.named_masters().values())
    theirs = [m.clone() for m in masters]
    rule = torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    ema = Ema(engine, decay=0.99)
    for _ in range(10):
        engine.weights.step([torch.randn_like(m) for m in masters])
        # The average ignores a skipped step.
        ema.update(StepReport(stepped=False, found_inf=True, scale=1.0, why="skipped"))
        ema.update(StepReport(stepped=True, found_inf=False, scale=1.0, why="taken"))
        rule(theirs, masters, torch.tensor(1))
    assert all(torch.equal(a, b) for a, b in zip(ema.averages.values(), theirs, strict=True))


def test_evaluation_of_the_average_changes_no_training_step() -> None:
    for recipe, flat in itertools.product(("FP32", "O2"), (False, True)):
        torch.manual_seed(0)
        averaged, plain = (
            Engine(nn.Linear(2, 2), SGD_BY_1, RECIPES[recipe], flat=flat) for _ in range(2)
        )
        plain.load_model(averaged.fp32_model())
        ema = Ema(averaged, decay=0.5)
        update = [torch.ones_like(m) for m in averaged.weights.optimizer_weights]
        for _ in range(2):
            averaged.weights.step(update)
            plain.weights.step(update)
            ema.update()
            with ema.in_model():
                averaged(torch.ones(1, 2))
                assert torch.equal(
                    averaged.model.weight, ema.averages["weight"].to(averaged.model.weight.dtype)
                )
                assert not torch.equal(averaged.model.weight, plain.model.weight), (recipe, flat)
                for call in (
                    averaged.weights.named_masters,
                    averaged.state_dict,
                    partial(averaged.weights.step, update),
                ):
                    with pytest.raises(
                        RuntimeError, match="the model's weights temporarily hold other values"
                    ):
                        call()
            assert torch.equal(averaged.model.weight, plain.model.weight), (recipe, flat)


def test_average_loads_into_a_plain_model_with_tied_weights() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    engine = Engine(model, SGD_BY_1, RECIPES["O2"])
    ema = Ema(engine, decay=0.5)
    engine.weights.step([torch.ones_like(m) for m in engine.weights.master_weights])
    ema.update()
    engine.model[1].running_mean.fill_(3.0)
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    plain.load_state_dict(ema.model())
    assert torch.equal(plain[0].weight, ema.averages["0.weight"])
    assert torch.equal(plain[2].weight, ema.averages["0.weight"])
    assert (plain[1].running_mean == 3).all()


def test_averages_of_other_names_are_refused() -> None:
    engine = Engine(nn.Linear(2, 2), SGD_BY_1, RECIPES["O2"])
    weight = torch.zeros(2, 2)
    for averages, name in (
        ({"weight": weight}, "bias"),
        ({"weight": weight, "bias": torch.zeros(2), "head": weight}, "head"),
    ):
        with pytest.raises(ValueError, match=f"'{name}' is only on one side"):
            engine.fp32_model(averages)


def test_average_refuses_decays_outside_of_0_to_1() -> None:
    for decay in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="expected 0 <= decay < 1"):
            Ema(one_weight(), decay)


def test_average_with_a_decay_of_numpy_is_saved_and_loaded(tmp_path: Path) -> None:
    engine = one_weight()
    ema = Ema(engine, np.float64(0.75))
    path = save_checkpoint(tmp_path / "run.pt", engine, ema=ema.state_dict())
    assert load_checkpoint(path, engine)["ema"]["decay"] == 0.75


def test_average_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="of another network"):
        Ema(one_weight()).load_state_dict(
            Ema(Engine(nn.Linear(2, 2), SGD_BY_1, RECIPES["O2"])).state_dict()
        )


@pytest.mark.parametrize("decay", [1.0, -0.5, float("nan")])
def test_an_average_refuses_a_saved_decay_out_of_range(decay: float) -> None:
    ema = Ema(Engine(nn.Linear(2, 1), SGD_BY_1, RECIPES["O2"]), decay=0.5)
    with pytest.raises(ValueError, match="expected 0 <= decay < 1"):
        ema.load_state_dict({**ema.state_dict(), "decay": decay})
    assert ema.decay == 0.5
