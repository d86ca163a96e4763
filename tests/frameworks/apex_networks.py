"""A small network for the tests of `labkit.frameworks.apex`, its batch, and its training."""

import torch
import torch.nn.functional as F
from torch import nn

from labkit.frameworks.apex import amp

HALF = torch.float16
FLOAT = torch.float32
LEVELS = ("O0", "O1", "O2", "O3")
# Four rows of positive numbers.
BATCH = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).abs()


def small():
    """Return a network of four inputs and two outputs, with a norm."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def started(level="O1", lr=0.1, momentum=0.0, **options):
    """Return a model and an optimizer that amp has initialized."""
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return amp.initialize(model, optimizer, opt_level=level, verbosity=0, **options)


def trained(level, steps=3, **options):
    """Return a model and an optimizer after some steps in mixed precision."""
    model, optimizer = started(level, momentum=0.9, **options)
    train_on(model, optimizer, steps)
    return model, optimizer


def train_on(model, optimizer, steps):
    """Train as scripts with apex do; return the last loss."""
    torch.manual_seed(1)
    for _ in range(steps):
        x = torch.randn(16, 4)
        y = torch.randint(2, (16,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        torch.nn.utils.clip_grad_norm_(amp.master_params(optimizer), 1.0)
        optimizer.step()
    return loss.item()


def scale_backward(model, optimizer, loss=None, **options):
    """Enter and leave a block of `scale_loss`."""
    if loss is None:
        loss = model(torch.ones(4, 4)).sum()
    with amp.scale_loss(loss, optimizer, **options):
        pass
