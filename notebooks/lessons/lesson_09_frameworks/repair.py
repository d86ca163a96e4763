"""Can you repair a script of apex's that runs, and learns nothing?

The point: what apex does, it does at the end of `scale_loss`'s block. In the block gradients are scaled, and of the
model; after it they are unscaled, and the masters'. Two of the three faults raise no error.

Oracle in the tests: numpy, with FP32 masters and a half model of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.frameworks.apex import amp
from labkit.grading.draws import Batches
from labkit.grading.exercise import Exercise, mistake, wrong

from .translate import CHECKS, LEARNING_RATE, Trained, a_layer


def reference(weight: Tensor, batches: Batches, max_norm: float) -> Trained:
    """Return the master weight after a step for each batch, and the scale.

    >>> reference(torch.ones(1, 1), [(torch.ones(1, 1), torch.full((1, 1), 0.75))], 1000.0)
    (tensor([[0.9375]]), 65536.0)
    """
    return _train(weight, batches, max_norm)


def _train(weight: Tensor, batches: Batches, max_norm: float, *, does: str = "masters step") -> Trained:
    """Train under O2; `does`: what is clipped, where the step stands, and other faults."""
    model = a_layer(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            (loss if "unscaled" in does else scaled_loss).backward()
            if "in the block" in does:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            if "early" in does:
                optimizer.step()
        if "masters" in does:
            nn.utils.clip_grad_norm_(amp.master_params(optimizer), max_norm)
        if "early" not in does:
            optimizer.step()
    (master,) = amp.master_params(optimizer)
    trained = model.weight if "model's weight" in does else master
    return trained.detach(), amp.state_dict()["loss_scaler0"]["loss_scale"]


@mistake
def takes_another_level(weight: Tensor, batches: Batches, max_norm: float) -> Trained:
    """This is O0: all in FP32. The script says O2, a half model with FP32 masters."""
    model = a_layer(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for x, y in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return model.weight.detach(), 1.0


# fmt: off
MISTAKES = (
    wrong("steps in the block", "this still steps in the block. There the masters have no gradients yet: nothing is "
          "learnt, and no error says so.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, does="masters early")),
    wrong("clips in the block", "this still clips in the block, where gradients are scaled, and so 65,536 times too "
          "long.", lambda weight, batches, max_norm: _train(weight, batches, max_norm, does="in the block")),
    wrong("clips the models gradients", "this clips `model.parameters()`. Under O2 the optimizer steps FP32 masters, "
          "and those have been unscaled already: clip `amp.master_params(optimizer)`.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, does="nothing")),
    wrong("never scales", "this calls `loss.backward()`; what the block yields is `scaled_loss`, and that is what it "
          "unscales.", lambda weight, batches, max_norm: _train(weight, batches, max_norm, does="unscaled masters")),
    wrong("gives the models weight", "this is the model's weight, in FP16. The master weight was asked for.",
          lambda weight, batches, max_norm: _train(weight, batches, max_norm, does="masters, model's weight")),
    takes_another_level,
)
# fmt: on

EXERCISE = Exercise(
    id="frameworks.repair",
    title="Repair an old apex script",
    entry="my_repaired_training",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=CHECKS,
    mistakes=MISTAKES,
    provides={"torch": torch},
)
