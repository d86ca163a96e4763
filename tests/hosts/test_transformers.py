"""The Hugging Face Trainer: with one callback, `watch` observes its training."""

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

transformers = pytest.importorskip("transformers")

from labkit.frameworks.transformers import Watch  # noqa: E402
from tests.hosts.training import BATCH, RATE, network, points  # noqa: E402


class Network(nn.Module):
    """A model as the Trainer wants it: keywords in, a dict with the loss out.

    It may fail at a step.
    """

    def __init__(self, fails_at=None):
        super().__init__()
        self.network = network()
        self.losses = []
        self.fails_at = fails_at

    def forward(self, inputs, labels):
        if len(self.losses) == self.fails_at:
            raise RuntimeError("no such batch")
        output = self.network(inputs)
        loss = mse_loss(output, labels)
        self.losses.append(loss.item())
        return {"loss": loss, "logits": output}


def fit(model, folder, *callbacks):
    rows = [{"inputs": x, "labels": y} for x, y in points(overflow=False)]
    given = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        learning_rate=RATE,
        max_grad_norm=0,
        seed=0,
    )
    optimizers = torch.optim.SGD(model.parameters(), lr=RATE), None
    transformers.Trainer(
        model, given, train_dataset=rows, callbacks=list(callbacks), optimizers=optimizers
    ).train()


def test_watching_changes_no_loss(tmp_path):
    alone = Network()
    watched = Network()
    fit(alone, tmp_path)
    fit(watched, tmp_path, Watch(every=6))
    assert watched.losses == alone.losses
    assert watched.losses[-1] < watched.losses[0] / 2


def test_the_report_has_all_steps(tmp_path):
    watch = Watch(every=6)
    fit(Network(), tmp_path, watch)
    report = watch.report()
    assert report.steps == 24
    assert [step.step for step in report.watched] == [0, 6, 12, 18]
    assert "network.0.weight" in report.histograms("weight gradients")
    assert not watch.is_open


def test_close_ends_a_watch_whose_training_failed(tmp_path):
    watch = Watch(every=1)
    with pytest.raises(RuntimeError, match="no such batch"):
        fit(Network(fails_at=3), tmp_path, watch)
    watch.close()
    assert watch.report().steps == 3
    assert not nn.modules.module._global_forward_hooks
