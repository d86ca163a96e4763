"""What follows an engine: listeners at the moments of a step, and an average of the master weights."""

import itertools
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Ema, Engine, Moment, StepEvent, StepReport

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


def test_skipped_steps_and_each_backward_are_events():
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


def test_no_event_follows_the_block_even_after_an_error(monkeypatch):
    engine, events = Engine(linear(), SGD, RECIPES["FP16 static"]), list[StepEvent]()
    with pytest.raises(KeyError), engine.listen(events.append):
        raise KeyError
    monkeypatch.setattr(engine.weights, "by_name", None)  # calling it would raise
    step(engine, torch.ones(1, 1))
    assert events == []


PLAIN = partial(torch.optim.SGD, lr=1.0)


def one_weight(value: float) -> Engine:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, value)
    return Engine(layer, PLAIN, RECIPES["O2"])


def test_equal_to_torch_s_own_average_of_the_masters() -> None:
    torch.manual_seed(0)
    engine = Engine(nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5)), PLAIN, RECIPES["O2"])
    masters = list(engine.weights.named_masters().values())
    theirs = [m.clone() for m in masters]
    rule = torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    ema = Ema(engine, decay=0.99)
    for _ in range(10):
        engine.weights.step([torch.randn_like(m) for m in masters])
        ema.update()
        rule(theirs, masters, torch.tensor(1))
    assert all(torch.equal(a, b) for a, b in zip(ema.averages.values(), theirs, strict=True))


def test_a_step_that_did_not_happen_is_not_followed() -> None:
    engine = one_weight(1.0)
    ema = Ema(engine, decay=0.5)
    engine.weights.step([torch.tensor([[-1.0]])])
    ema.update(StepReport(stepped=False, found_inf=True, scale=1.0, why="skipped"))
    assert ema.averages["weight"].item() == 1.0
    ema.update(StepReport(stepped=True, found_inf=False, scale=1.0, why="taken"))
    assert ema.averages["weight"].item() == 1.5


def test_evaluating_with_the_average_leaves_the_training_alone() -> None:
    for recipe, flat in itertools.product(("FP32", "O2"), (False, True)):
        torch.manual_seed(0)
        looked, plain = (Engine(nn.Linear(2, 2), PLAIN, RECIPES[recipe], flat=flat) for _ in range(2))
        plain.load_model(looked.fp32_model())
        ema = Ema(looked, decay=0.5)
        update = [torch.ones_like(m) for m in looked.weights.optimizer_weights]
        for _ in range(2):
            looked.weights.step(update)
            plain.weights.step(update)
            ema.update()
            with ema.in_model():
                assert torch.equal(looked.model.weight, ema.averages["weight"].to(looked.model.weight.dtype))
                assert not torch.equal(looked.model.weight, plain.model.weight), (recipe, flat)
            assert torch.equal(looked.model.weight, plain.model.weight), (recipe, flat)


def test_a_plain_model_takes_the_average_ties_and_buffers_included() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    engine = Engine(model, PLAIN, RECIPES["O2"])
    ema = Ema(engine, decay=0.5)
    engine.weights.step([torch.ones_like(m) for m in engine.weights.master_weights])
    ema.update()
    engine.model[1].running_mean.fill_(3.0)  # type: ignore[index, operator]
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    plain.load_state_dict(ema.model())
    assert torch.equal(plain[0].weight, ema.averages["0.weight"])
    assert torch.equal(plain[2].weight, ema.averages["0.weight"])
    assert (plain[1].running_mean == 3).all()


def test_what_does_not_fit_is_refused() -> None:
    engine = one_weight(1.0)
    for decay in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="expected 0 <= decay < 1"):
            Ema(engine, decay)
    ema, other = Ema(engine), Ema(Engine(nn.Linear(2, 2), PLAIN, RECIPES["O2"]))
    with pytest.raises(ValueError, match="of another network"):
        ema.load_state_dict(other.state_dict())
