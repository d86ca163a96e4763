"""What a listener is told of a training step: four moments, in order, whatever the recipe; and nothing changes."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine, Moment, StepEvent

SGD = partial(torch.optim.SGD, lr=0.125)


def step(engine: Engine, inputs: Tensor) -> None:
    engine.zero_grad()
    with engine.forward():
        loss = engine(inputs).sum()
    engine.backward(loss)
    engine.step()


def linear(weight: float = 1.0) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def test_worked_example_of_a_step_with_a_static_scale():
    # y = w x with w = 1 and x = 0.25: the gradient is x, 2^10 times as large on its way and unscaled in the step.
    engine, events, seen = Engine(linear(), SGD, RECIPES["FP16 static"]), list[StepEvent](), {}

    def look(event: StepEvent) -> None:
        events.append(event)
        seen[event.moment] = [(gradient.dtype, gradient.item()) for gradient in event.gradients.values()]

    with engine.listen(look):
        step(engine, torch.tensor([[0.25]]))
    assert [event.moment for event in events] == list(Moment)
    forward, _, _, stepped = events
    assert (forward.loss.item(), forward.scale, forward.report) == (0.25, 2.0**10, None)
    unscaled = [(torch.float32, 0.25)]
    assert list(seen.values()) == [[], [(torch.float16, 2.0**8)], unscaled, unscaled]
    assert stepped.report.stepped
    assert engine.model.weight.item() == 1 - 0.125 * 0.25


def test_a_skipped_step_is_told_too_and_each_backward():
    engine, events = Engine(linear(), SGD, RECIPES["FP16 static too high"]), list[StepEvent]()
    with engine.listen(events.append):
        step(engine, torch.tensor([[1.0]]))  # 2^26 is beyond FP16
    assert [event.moment for event in events] == list(Moment)
    assert not events[-1].report.stepped
    engine, moments = Engine(linear(), SGD, RECIPES["FP32"]), list[Moment]()
    with engine.listen(lambda event: moments.append(event.moment)):
        for _ in range(2):
            engine.backward(engine(torch.ones(1, 1)).sum())
        engine.step()
    assert moments == [Moment.FORWARD, Moment.SCALED] * 2 + [Moment.UNSCALED, Moment.STEPPED]


def test_a_run_that_is_listened_to_is_equal_bit_for_bit():
    inputs = torch.linspace(-1, 1, 12).reshape(4, 3)
    for recipe in ("FP32", "O1", "O2", "O3", "BF16", "FP8", "FP16 no master"):
        weights = []
        for region in (lambda _: nullcontext(), lambda engine: engine.listen(lambda event: dict(event.gradients))):
            torch.manual_seed(0)
            engine = Engine(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), SGD, RECIPES[recipe])
            for _ in range(3):
                with region(engine):
                    step(engine, inputs)
            weights.append([p.detach().clone() for p in engine.model.parameters()])
        assert all(map(torch.equal, *weights)), recipe


def test_nobody_is_told_after_the_block_even_if_it_fails_and_nothing_is_collected_then(monkeypatch):
    engine, events = Engine(linear(), SGD, RECIPES["FP16 static"]), list[StepEvent]()
    with pytest.raises(KeyError), engine.listen(events.append):
        raise KeyError
    monkeypatch.setattr(engine.weights, "by_name", None)  # calling it would raise
    step(engine, torch.ones(1, 1))
    assert events == []
