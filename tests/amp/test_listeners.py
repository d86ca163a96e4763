"""Listeners of an engine: the events of a step, which change no bit of a training."""

from contextlib import nullcontext, suppress
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine, Moment, ScalerState, StepEvent, autocast
from labkit.amp.masters.weights import MakeOptimizer

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


def test_a_listener_that_is_no_function_is_refused() -> None:
    with (
        pytest.raises(TypeError, match="listener: expected a function StepEvent -> None, got 3"),
        one_weight().listen(3),
    ):
        pass


def test_a_listener_of_casts_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="listen: expected a function CastEvent -> None, got 3"):
        autocast(listen=3)
