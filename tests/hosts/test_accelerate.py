"""The real Accelerate: with one changed import, it trains in FP16 on a CPU as the lab does."""

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

pytest.importorskip("accelerate")

from accelerate.state import AcceleratorState
from accelerate.utils import AutocastKwargs, GradScalerKwargs

from labkit.frameworks.accelerate import Accelerator
from labkit.instrument import watch
from tests.hosts.training import (
    BATCH,
    BATCHES,
    DECAY,
    OVERFLOWS,
    RATE,
    assert_same,
    network,
    own_loop,
    points,
)


@pytest.fixture(autouse=True)
def own_state():
    """Clear Accelerate's state of the process, which keeps the precision of the first object."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def train(accelerator, epochs=1, clip=None):
    """Train by a user's loop, as Accelerate's tutorial writes it.

    Returns:
        The model, losses, numbers of skipped steps, and the learning rate.
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    schedule = StepLR(optimizer, step_size=1, gamma=DECAY)
    loader = DataLoader(points(), batch_size=BATCH)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses = []
    skipped = []
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if clip is not None:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            schedule.step()
            if optimizer.step_was_skipped:
                skipped.append(len(losses))
            losses.append(loss.item())
    return model, losses, skipped, schedule.get_last_lr()[0]


@pytest.mark.parametrize("clip", [None, 0.5])
def test_it_equals_our_own_loop_bit_for_bit(clip):
    accelerator = Accelerator(cpu=True)
    model, losses, skipped, rate = train(accelerator, epochs=2, clip=clip)
    own, weights, scale, own_skipped, own_rate = own_loop(schedule=True, epochs=2, clip=clip)
    assert losses == own
    assert_same(model, weights)
    assert skipped == own_skipped
    assert accelerator.scaler.get_scale() == scale
    assert rate == own_rate


def test_a_step_that_overflows_is_skipped_and_halves_the_scale():
    accelerator = Accelerator(cpu=True)
    _, _, skipped, _ = train(accelerator, epochs=2)
    assert skipped == [OVERFLOWS, BATCHES + OVERFLOWS]
    assert accelerator.scaler.get_scale() == 2.0**14


def test_the_schedule_waits_where_a_step_was_skipped():
    _, _, skipped, rate = train(Accelerator(cpu=True), epochs=2)
    assert rate == pytest.approx(RATE * DECAY ** (2 * BATCHES - len(skipped)))


def test_the_loss_halves_in_an_epoch():
    _, losses, _, _ = train(Accelerator(cpu=True))
    assert losses[-1] < losses[0] / 2


def test_unwrapped_model_is_what_it_was():
    accelerator = Accelerator(cpu=True)
    seen = []
    model = network()
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    prepared = accelerator.prepare(model)
    assert prepared(torch.ones(1, 4)).dtype is torch.float32
    accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)(torch.ones(1, 4))
    with accelerator.autocast():
        model(torch.ones(1, 4))
    assert seen == [torch.float16, torch.float32, torch.float16]


def test_its_scaler_has_the_settings_of_accelerate():
    accelerator = Accelerator(
        cpu=True, kwargs_handlers=[GradScalerKwargs(init_scale=8.0, growth_interval=2)]
    )
    train(accelerator)
    assert accelerator.scaler.get_scale() > 8


def test_autocast_has_the_settings_of_accelerate():
    accelerator = Accelerator(cpu=True, kwargs_handlers=[AutocastKwargs(enabled=False)])
    model = network()
    with accelerator.autocast():
        assert model(torch.ones(1, 4)).dtype is torch.float32


def test_forward_that_was_set_on_the_model_is_cast():
    model = network()
    seen = []

    def forward(inputs):
        seen.append(model[0](inputs).dtype)
        return inputs

    model.forward = forward
    prepared = Accelerator(cpu=True).prepare(model)
    prepared(torch.ones(1, 4))
    assert seen == [torch.float16]


def test_mixed_precision_in_bf16_is_refused():
    with pytest.raises(ValueError, match=r"got mixed_precision='bf16'"):
        Accelerator(cpu=True, mixed_precision="bf16")


def test_watch_sees_its_steps_and_which_were_skipped():
    class Watched(Accelerator):
        def prepare_model(self, model, *args, **kwargs):
            self.watch = watch(model, every=1).__enter__()
            return super().prepare_model(model, *args, **kwargs)

    accelerator = Watched(cpu=True)
    train(accelerator)
    accelerator.watch.__exit__(None, None, None)
    report = accelerator.watch.report()
    assert report.steps == BATCHES
    assert [(skip.step, skip.scale) for skip in report.skips] == [(OVERFLOWS, 2.0**16)]
