"""The real Lightning: with one plugin, it trains in FP16 on a CPU as the lab does."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

lightning = pytest.importorskip("lightning.pytorch")

from labkit.frameworks.lightning import FP16Mixed, Watch  # noqa: E402
from tests.hosts.training import (  # noqa: E402
    BATCH,
    DECAY,
    OVERFLOWS,
    RATE,
    assert_same,
    network,
    own_loop,
    points,
)

pytestmark = [pytest.mark.filterwarnings("ignore")]  # Lightning's, about logging and workers


class Network(lightning.LightningModule):
    def __init__(self, interval="step", fused=False):
        super().__init__()
        self.network = network()
        self.interval = interval
        self.losses = []
        self.dtypes = set()
        self.fused = fused

    def training_step(self, batch, index):
        output = self.network(batch[0])
        self.dtypes.add(output.dtype)
        loss = mse_loss(output, batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=RATE, fused=self.fused)
        schedule = StepLR(optimizer, step_size=1, gamma=DECAY)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": self.interval},
        }


def fit(module, folder, epochs=1, checkpoint=None, **options):
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        **options,
    )
    trainer.fit(module, DataLoader(points(), batch_size=BATCH), ckpt_path=checkpoint)
    return trainer


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_training_equals_our_own_loop_bit_for_bit(tmp_path, clip):
    module = Network()
    fit(module, tmp_path, epochs=2, plugins=FP16Mixed(), gradient_clip_val=clip)
    losses, weights, *_ = own_loop(schedule=True, epochs=2, clip=clip)
    assert losses[11] < losses[0] / 2
    assert module.losses == losses
    assert_same(module.network, weights)


def test_the_network_computes_in_fp16(tmp_path):
    module = Network()
    fit(module, tmp_path, plugins=FP16Mixed())
    assert module.dtypes == {torch.float16}


def test_the_scale_falls_at_each_skipped_step(tmp_path):
    plugin = FP16Mixed()
    fit(Network(), tmp_path, epochs=2, plugins=plugin)
    _, _, scale, skipped, _ = own_loop(schedule=True, epochs=2)
    assert skipped == [OVERFLOWS, 12 + OVERFLOWS]
    assert plugin.scaler.get_scale() == scale == 2.0**14


def test_a_schedule_of_steps_waits_where_a_step_was_skipped(tmp_path):
    trainer = fit(Network(), tmp_path, epochs=2, plugins=FP16Mixed())
    *_, rate = own_loop(schedule=True, epochs=2)
    assert trainer.optimizers[0].param_groups[0]["lr"] == rate


def test_a_schedule_of_epochs_counts_epochs(tmp_path):
    trainer = fit(Network(interval="epoch"), tmp_path, epochs=2, plugins=FP16Mixed())
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(RATE * DECAY**2)


def test_two_schedules_of_one_optimizer_both_advance(tmp_path):
    """One of twelve steps is skipped."""

    class TwoSchedules(Network):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=RATE)
            schedules = [StepLR(optimizer, step_size=1, gamma=gamma) for gamma in (0.9, 0.8)]
            return [optimizer], [{"scheduler": each, "interval": "step"} for each in schedules]

    trainer = fit(TwoSchedules(), tmp_path, plugins=FP16Mixed())
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    assert rate == pytest.approx(RATE * (0.9 * 0.8) ** 11)


def test_a_schedule_of_steps_waits_with_a_fused_optimizer(tmp_path):
    """One of twelve steps is skipped."""
    trainer = fit(Network(fused=True), tmp_path, plugins=FP16Mixed())
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(RATE * DECAY**11)


def test_checkpoint_continues_bit_for_bit(tmp_path):
    whole = Network()
    half = Network()
    rest = Network()
    plugin = FP16Mixed()
    after = FP16Mixed()
    fit(whole, tmp_path, epochs=2, plugins=plugin)
    fit(half, tmp_path, epochs=1, plugins=FP16Mixed()).save_checkpoint(tmp_path / "half.ckpt")
    fit(rest, tmp_path, epochs=2, plugins=after, checkpoint=tmp_path / "half.ckpt")
    assert half.losses + rest.losses == whole.losses
    assert_same(rest, dict(whole.named_parameters()))
    assert after.scaler.state_dict() == plugin.scaler.state_dict()


class Failing(Network):
    def training_step(self, batch, index):
        if index == 3:
            raise RuntimeError("no fourth batch")
        return super().training_step(batch, index)


def test_watch_sees_skipped_steps(tmp_path):
    watch = Watch(every=4)
    fit(Network(), tmp_path, plugins=FP16Mixed(), callbacks=[watch])
    report = watch.report()
    assert report.steps == 12
    assert [step.step for step in report.watched] == [0, 4, 8]
    assert [(skip.step, skip.scale) for skip in report.skips] == [(OVERFLOWS, 2.0**16)]
    assert not watch.is_open


def test_a_training_that_raises_closes_its_watch(tmp_path):
    watch = Watch(every=4)
    with pytest.raises(RuntimeError, match="no fourth batch"):
        fit(Failing(), tmp_path, plugins=FP16Mixed(), callbacks=[watch])
    assert (watch.is_open, watch.report().steps) == (False, 3)
    assert not nn.modules.module._global_forward_hooks
