"""Faults of models: layers, buffers and features that training does not reach."""

from functools import partial

import torch
import torch.nn.functional as F

from labkit.faults.fault import Fault, Kind
from labkit.faults.loops import accuracy, batches, network, plain, scaled


@partial(Fault, kind=Kind.ERROR, limit=0.25, claims=("C61",))
def inference_tensors(fixed):
    """Features that were computed in inference_mode are trained on.

    Symptom: An error about inference tensors, in code where no_grad would have worked.
    Cause: inference_mode also drops the counters by which autograd notices changes; what comes out
        of it can never take part in a backward pass.
    Reading: The error names inference tensors.
    Repair: `torch.no_grad()` where something is trained afterwards, or clone the tensor outside the
        region.
    Error: Inference tensors cannot be saved for backward.
    Reported:
        https://docs.pytorch.org/docs/stable/generated/torch.autograd.grad_mode.inference_mode.html
    """
    body = network()
    head = torch.nn.Linear(10, 10)
    model = torch.nn.ModuleList([body, head])
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)

    def loss_of(inputs, targets):
        with torch.no_grad() if fixed else torch.inference_mode():
            features = body(inputs)
        return F.cross_entropy(head(features), targets)

    return plain(loss_of, model, optimizer, batches(200), lambda: accuracy(lambda x: head(body(x))))


@partial(Fault, limit=0.6, claims=("C58",))
def layer_made_in_forward(fixed):
    """A layer is made in forward.

    Symptom: The loss hardly falls, or a model that was made half meets weights in FP32.
    Cause: The layer is new in every step, and no list knows it: `.parameters()`, `.half()`, the
        optimizer, the checkpoint.
    Reading: Operations on weights that belong to no module.
    Repair: Make layers in `__init__`, use them in `forward`.
    Reported: https://docs.pytorch.org/docs/stable/notes/modules.html
    """

    class Classifier(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()
            if fixed:
                self.head = torch.nn.Linear(10, 10)

        def forward(self, inputs):
            head = self.head if fixed else torch.nn.Linear(10, 10)
            return head(self.body(inputs).relu())

    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(inputs, targets):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(inputs), targets)

    return plain(loss_of, model, optimizer, batches(300), lambda: accuracy(model))


@partial(Fault, kind=Kind.NOT_FINITE)
def nan_only_in_eval(fixed):
    """One overflow has spoilt the statistics of batch norm.

    Symptom: Training looks healthy, with one skipped step; in eval() every output is NaN.
    Cause: The scaler keeps the weights from a step with inf. It does not keep the running
        statistics, which the forward pass changed.
    Reading: Buffers that are not finite: running_mean and running_var.
    Repair: Clamp or refuse such inputs; put the buffers back after a skipped step; or estimate them
        again from some batches.
    Reported: pytorch/pytorch#58392, pytorch/pytorch#115500
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(number, batch):
        inputs, targets = batch
        # one batch of broken pictures is enough
        if number == 30:
            inputs = 3e6 * inputs
        if fixed:
            inputs = inputs.clamp(-10, 10)
        return F.cross_entropy(model(inputs), targets)

    def score():
        with torch.autocast("cpu", torch.float16):
            return accuracy(model.eval())

    return scaled(loss_of, model, optimizer, scaler, list(enumerate(batches(100))), score)
