"""Changes of a model between two steps: they count, or are refused.

And what follows an engine: listeners at the moments of a step, and an average of the master
weights.
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

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.amp import (
    RECIPES,
    Ema,
    Engine,
    Moment,
    StepEvent,
    StepReport,
    load_checkpoint,
    save_checkpoint,
)
from labkit.amp.masters.edits import Checksum, checksum, differences
from labkit.amp.masters.weights import MakeOptimizer
from labkit.gemm import SPECS

STANDING = partial(torch.optim.SGD, lr=0.0)
ADAM = partial(torch.optim.Adam, lr=1e-2, eps=1e-4)  # FP16 holds 1e-4, so that O3 trains too


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


def same(before: Checksum, after: Checksum) -> bool:
    return not any(differences(before, after) or [before])


def fill_vector(model: nn.Module) -> None:
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(torch.full(vector.shape, 0.25), model.parameters())


def new_data(p: nn.Parameter, dtype: torch.dtype | None) -> None:
    p.data = torch.full(p.shape, 0.25, dtype=dtype or p.dtype)


EDITS: dict[str, Callable[[nn.Module], object]] = {
    "p.data.fill_()": lambda model: [p.data.fill_(0.25) for p in model.parameters()],
    "p.data = of its dtype": lambda model: [new_data(p, None) for p in model.parameters()],
    "p.data = in FP32": lambda model: [new_data(p, torch.float32) for p in model.parameters()],
    "vector_to_parameters": fill_vector,
    "load_state_dict": lambda m: m.load_state_dict(
        {k: torch.full(v.shape, 0.25) for k, v in m.state_dict().items()}
    ),
    "nn.init": lambda model: [nn.init.constant_(p, 0.25) for p in model.parameters()],
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
        for weights in (
            engine.fp32_model().values(),
            engine.weights.master_weights,
            engine.model.parameters(),
        ):
            assert all((w == 0.25).all() for w in weights), (way, flat)


def test_edit_between_backward_and_step_counts(tmp_path: Path) -> None:
    engine, other = (engine_for("O2", make=STANDING) for _ in range(2))
    backward(engine, 0)
    engine.model[0].bias.data.fill_(0.5)
    engine.step()
    assert (engine.fp32_model()["0.bias"] == 0.5).all()
    engine.model[0].bias.data = torch.full((16,), 0.1)  # in FP32: the master has all its digits
    load_checkpoint(save_checkpoint(tmp_path / "run.pt", engine), other)
    for each in (engine, other):
        assert (each.fp32_model()["0.bias"] == 0.1).all()
        assert (each.model[0].bias == torch.tensor(0.1).half()).all()


def test_later_layer_is_refused_by_name() -> None:
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
        with pytest.raises(
            RuntimeError, match=r"parameter '(0.weight|last.weight)' was added to the model after"
        ):
            engine.backward(loss)
    engine = engine_for("O2", make=STANDING)
    engine.model[0].weight.data = torch.zeros(3, 6)
    with pytest.raises(
        ValueError, match=r"'0.weight' were given the shape \(3, 6\); the optimizer steps \(16, 6\)"
    ):
        engine.forward()


def test_a_change_of_any_one_number_by_one_code_shows() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype, size in itertools.product(
        (torch.float16, torch.bfloat16, torch.float32), (1, 5, 4096, 100_003)
    ):
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


def test_moved_rows_are_seen_as_a_change() -> None:
    torch.manual_seed(0)
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
        assert not same(before, checksum([tensor])), number


def through_torch(engine: Engine) -> Engine:
    torch.save(engine, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Engine], Engine]] = {
    "deepcopy": copy.deepcopy,
    "torch.save": through_torch,
}
COPIED = (
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


def alike(a: Engine, b: Engine) -> bool:
    states = (a.fp32_model(), b.fp32_model())
    return a.scalers == b.scalers and all(
        torch.equal(states[0][key], states[1][key]) for key in states[0]
    )


@pytest.mark.parametrize("name", [*COPIED, "on a V100"])
def test_copy_trains_independently(name: str) -> None:
    for flat, (way, copied) in itertools.product((False, True), WAYS.items()):
        engine = engine_for(name, flat)
        steps(engine, 0, 1, 2)
        twin = copied(engine)
        before = {key: value.clone() for key, value in engine.fp32_model().items()}
        ahead = steps(twin, 3, 4)
        assert all(torch.equal(value, before[key]) for key, value in engine.fp32_model().items()), (
            way,
            flat,
        )
        assert steps(engine, 3, 4) == ahead, (way, flat)
        engine.zero_grad()
        backward(engine, 5)
        twin = copied(engine)  # between backward and step
        for each in (twin, engine):
            backward(each, 6)
            each.clip(0.1)
        third = copied(twin)
        reports = [each.step() for each in (engine, twin, third)]
        assert reports[0] == reports[1] == reports[2], (way, flat)
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
    twin = through_torch(engine)
    assert steps(engine, 1) == steps(twin, 1)
    assert alike(engine, twin)
    assert engine.fp32_model()["0.weight"].abs().max() < 0.03, "the clamp, and one step of 0.01"


SGD, PLAIN = (partial(torch.optim.SGD, lr=lr) for lr in (0.125, 1.0))


def step(engine: Engine, inputs: Tensor) -> None:
    engine.zero_grad()
    with engine.forward():
        loss = engine(inputs).sum()
    engine.backward(loss)
    engine.step()


def one_weight(recipe: str = "O2", make: MakeOptimizer = PLAIN) -> Engine:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    return Engine(layer, make, RECIPES[recipe])


def test_worked_example_of_a_step_with_a_static_scale():
    # y = w x with w = 1 and x = 0.25: the gradient is x, 2^10 times as large on its way and
    # unscaled in the step.
    engine = one_weight("FP16 static", SGD)
    events = list[StepEvent]()
    seen = {}

    def look(event: StepEvent) -> None:
        events.append(event)
        seen[event.moment] = [
            (gradient.dtype, gradient.item()) for gradient in event.gradients.values()
        ]

    with engine.listen(look):
        step(engine, torch.tensor([[0.25]]))
    assert [event.moment for event in events] == list(Moment)
    forward, _, _, stepped = events
    assert (forward.loss.item(), forward.scale, forward.report) == (0.25, 2.0**10, None)
    unscaled = [(torch.float32, 0.25)]
    assert list(seen.values()) == [[], [(torch.float16, 2.0**8)], unscaled, unscaled]
    assert stepped.report.stepped
    assert engine.model.weight.item() == 1 - 0.125 * 0.25


def test_skipped_steps_and_each_backward_are_events(monkeypatch):
    engine = one_weight("FP16 static too high")
    events = list[StepEvent]()
    with engine.listen(events.append):
        step(engine, torch.tensor([[1.0]]))  # 2^26 is beyond FP16
    assert [event.moment for event in events] == list(Moment)
    assert not events[-1].report.stepped
    engine = one_weight("FP32")
    moments = list[Moment]()
    with suppress(KeyError), engine.listen(lambda event: moments.append(event.moment)):
        for _ in range(2):
            engine.backward(engine(torch.ones(1, 1)).sum())
        engine.step()
        raise KeyError
    monkeypatch.setattr(engine.weights, "by_name", None)  # calling it would raise
    step(engine, torch.ones(1, 1))  # which nobody listens to any more
    assert moments == [Moment.FORWARD, Moment.SCALED] * 2 + [Moment.UNSCALED, Moment.STEPPED]


def test_a_run_that_is_listened_to_is_equal_bit_for_bit():
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
            for _ in range(3):
                with region(engine):
                    step(engine, inputs)
            weights.append([p.detach().clone() for p in engine.model.parameters()])
        assert all(map(torch.equal, *weights)), recipe


def test_equal_to_torch_s_own_average_of_the_masters() -> None:
    torch.manual_seed(0)
    engine = Engine(nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5)), PLAIN, RECIPES["O2"])
    masters = list(engine.weights.named_masters().values())
    theirs = [m.clone() for m in masters]
    rule = torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    ema = Ema(engine, decay=0.99)
    for _ in range(10):
        engine.weights.step([torch.randn_like(m) for m in masters])
        # which is not followed
        ema.update(StepReport(stepped=False, found_inf=True, scale=1.0, why="skipped"))
        ema.update(StepReport(stepped=True, found_inf=False, scale=1.0, why="taken"))
        rule(theirs, masters, torch.tensor(1))
    assert all(torch.equal(a, b) for a, b in zip(ema.averages.values(), theirs, strict=True))


def test_evaluating_with_the_average_leaves_the_training_alone() -> None:
    for recipe, flat in itertools.product(("FP32", "O2"), (False, True)):
        torch.manual_seed(0)
        looked, plain = (
            Engine(nn.Linear(2, 2), PLAIN, RECIPES[recipe], flat=flat) for _ in range(2)
        )
        plain.load_model(looked.fp32_model())
        ema = Ema(looked, decay=0.5)
        update = [torch.ones_like(m) for m in looked.weights.optimizer_weights]
        for _ in range(2):
            looked.weights.step(update)
            plain.weights.step(update)
            ema.update()
            with ema.in_model():
                assert torch.equal(
                    looked.model.weight, ema.averages["weight"].to(looked.model.weight.dtype)
                )
                assert not torch.equal(looked.model.weight, plain.model.weight), (recipe, flat)
                for call in (
                    looked.weights.named_masters,
                    looked.state_dict,
                    partial(looked.weights.step, update),
                ):
                    with pytest.raises(
                        RuntimeError, match="the model's weights temporarily hold other values"
                    ):
                        call()
            assert torch.equal(looked.model.weight, plain.model.weight), (recipe, flat)


def test_a_plain_model_takes_the_average_ties_and_buffers_included() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    engine = Engine(model, PLAIN, RECIPES["O2"])
    ema = Ema(engine, decay=0.5)
    engine.weights.step([torch.ones_like(m) for m in engine.weights.master_weights])
    ema.update()
    engine.model[1].running_mean.fill_(3.0)
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    plain.load_state_dict(ema.model())
    assert torch.equal(plain[0].weight, ema.averages["0.weight"])
    assert torch.equal(plain[2].weight, ema.averages["0.weight"])
    assert (plain[1].running_mean == 3).all()


def test_what_does_not_fit_is_refused() -> None:
    for decay in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="expected 0 <= decay < 1"):
            Ema(one_weight(), decay)
    with pytest.raises(ValueError, match="of another network"):
        Ema(one_weight()).load_state_dict(
            Ema(Engine(nn.Linear(2, 2), PLAIN, RECIPES["O2"])).state_dict()
        )
