"""A mixture of experts that reads digits: each digit gets the 8 best of 64 experts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.formats import FP32, Format
from labkit.interop import round_tensor
from labkit.train import single_digits

EXPERTS = 64
# The number of experts for each digit.
CHOSEN = 8
# The numbers of features, and of those inside an expert.
WIDTH = 64
HIDDEN = 16
STEPS = 300
BATCH = 64
RATE = 2e-3


class Routed(NamedTuple):
    """What a mixture computed.

    Attributes:
        outputs: Logits of the classes, [n, 10].
        experts: Indices of the experts of each digit, sorted, [n, 8].
    """

    outputs: Tensor
    experts: Tensor


class Mixture(nn.Module):
    """Digits [n, 1, 8, 8] -> `Routed`.

    A score is the sigmoid of a linear function. The scores of the chosen experts, divided by their
    sum, weigh what these experts return.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.wide = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5)
        self.narrow = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5)
        self.last = nn.Linear(WIDTH, 10)

    def forward(self, digits: Tensor, score_format: Format = FP32) -> Routed:
        """Return outputs and experts, with the router's scores rounded to a format.

        Rounded scores pass no gradient on: the mixture is trained in FP32.
        """
        x = F.relu(self.first(digits.flatten(1)))
        scores = self.router(x).sigmoid()
        if score_format is not FP32:
            scores = round_tensor(scores.detach(), score_format)
        # A stable sort prefers the lower number of equal scores; topk does not promise that.
        best = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :CHOSEN]
        gates = scores.gather(1, best)
        gates = gates / gates.sum(dim=1, keepdim=True)
        hidden = F.relu(torch.einsum("nf,nkfh->nkh", x, self.wide[best]))
        each = torch.einsum("nkh,nkhf->nkf", hidden, self.narrow[best])
        mixed = x + (gates[:, :, None] * each).sum(dim=1)
        return Routed(self.last(mixed), best.sort(dim=1).values)


def trained_mixture(seed: int = 0) -> Mixture:
    """Return a mixture trained on the lab's digits in FP32, which takes about two seconds."""
    data = single_digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Mixture()
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
        for _ in range(STEPS):
            batch = torch.randint(len(data.train_inputs), (BATCH,))
            outputs = model(data.train_inputs[batch].float()).outputs
            optimizer.zero_grad()
            F.cross_entropy(outputs, data.train_targets[batch]).backward()
            optimizer.step()
    return model.eval()
