"""Does a watch count what a program counts that keeps everything? Fifteen networks, each with its own way to be hard.

The oracle (`brute_force`) shares no code with labkit. Each network takes two steps in each; every count must be equal.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, relu
from torch.utils.checkpoint import checkpoint

from labkit.instrument import watch
from tests.instrument.brute_force import brute_force

SCALE = 2.0**7


def x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)

    def forward(self, image):
        return self.act(image + self.norm(self.conv(image)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.pool, self.inner = nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Conv2d(8, 1, 1)

    def forward(self, image):
        left = self.down(image).relu()
        return self.out(torch.cat([left, self.up(self.inner(self.pool(left)).relu())], dim=1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, series):
        return self.out(self.lstm(series)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.out = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), nn.Linear(8, 3)

    def forward(self, tokens):
        return self.out(self.block(tokens).mean(1))


class Tied(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.embed, self.out = nn.Embedding(11, 6, sparse=sparse), nn.Linear(6, 11, bias=False)
        if not sparse:
            self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.embed(tokens).mean(1))


class Checkpointed(nn.Module):
    def __init__(self, running=None):
        super().__init__()
        self.first, self.second, self.running = nn.Linear(6, 6), nn.Linear(6, 3), running

    def forward(self, rows):
        return self.second(checkpoint(lambda r: self.first(r).relu(), rows, use_reentrant=False))


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        return rows.half().float()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.half().float()


class WithFunction(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, rows):
        return self.second(Rounded.apply(self.first(rows)))


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 6), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(6, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))

    def forward(self, noise):
        return self.critic(self.generator(noise))


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.twice, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.frozen.requires_grad_(False)

    def forward(self, rows):
        return self.out(self.twice(self.twice(self.frozen(rows)).relu()))


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def resnet():
    return nn.Sequential(nn.Conv2d(1, 4, 3), Residual(), Residual(), nn.Flatten(), nn.Linear(4 * 36, 3))


def autoencoder():
    return nn.Sequential(nn.Linear(6, 3), nn.Sigmoid(), nn.Linear(3, 6))


ROWS, IMAGES, TOKENS = x(8, 6), x(8, 1, 8, 8), torch.arange(32).reshape(8, 4) % 11
CLASSES = torch.arange(8) % 3
NETWORKS = {
    "MLP": (mlp, ROWS, CLASSES),
    "CNN with batch norm": (cnn, IMAGES, CLASSES),
    "ResNet": (resnet, IMAGES, CLASSES),
    "UNet": (UNet, IMAGES, IMAGES),
    "LSTM": (Recurrent, x(8, 4, 5), CLASSES),
    "transformer": (Transformer, x(8, 4, 8), CLASSES),
    "autoencoder": (autoencoder, ROWS, ROWS),
    "GAN step": (Gan, x(8, 4), torch.zeros(8, 1)),
    "tied weights": (Tied, TOKENS, torch.arange(8)),
    "gradient checkpointing": (Checkpointed, ROWS, CLASSES),
    "accumulation": (mlp, ROWS, CLASSES),
    "custom Function": (WithFunction, ROWS, CLASSES),
    "sparse embedding": (lambda: Tied(sparse=True), TOKENS, torch.arange(8)),
    "frozen and shared parameters": (Shared, ROWS, CLASSES),
}
FAST = ("MLP", "CNN with batch norm", "gradient checkpointing", "accumulation", "sparse embedding")


def step_of(name, optimizers):
    """The step of a loop that scales its loss: of a GAN the generator's; of two halves of a batch, or the plain one."""
    _, inputs, targets = NETWORKS[name]

    def step(model, running=None):
        held = model.generator if name == "GAN step" else model
        sgd = optimizers.setdefault(id(model), torch.optim.SGD(held.parameters(), lr=0.05))
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        model.zero_grad()
        halves = (slice(0, 4), slice(4, 8)) if name == "accumulation" else (slice(None),)
        for half in halves:
            output, target = model(inputs[half]), targets[half]
            loss = cross_entropy(output, target) if target.dim() == 1 else mse_loss(relu(output), target)
            scaled = scaler.scale(loss)
            if running is not None:
                running.append(True)
            scaled.backward()
            if running is not None:
                running.clear()
        scaler.unscale_(sgd)
        for p in model.parameters():  # the scaler knows the optimizer's alone
            if p.grad is not None and not any(p is q for group in sgd.param_groups for q in group["params"]):
                p.grad /= SCALE
        scaler.step(sgd)
        return sgd

    return step


def plain(histogram):
    """{exponent: count} of a histogram."""
    counts = {histogram.lo + i: int(n) for i, n in enumerate(histogram.counts) if n}
    extra = {"zero": histogram.zeros, "bad": histogram.non_finite}
    return counts | {key: n for key, n in extra.items() if n}


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in NETWORKS])
def test_each_count_is_that_of_a_program_that_keeps_everything(name):
    make, _, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    other, optimizers = copy.deepcopy(model), {}
    step = step_of(name, optimizers)
    torch.manual_seed(5)
    expected = [brute_force(other, step, SCALE) for _ in range(2)]
    torch.manual_seed(5)
    with watch(model, every=1, against_fp32_every=1) as w:
        for _ in range(2):
            step(model)
    report = w.report()
    assert len(report.watched) == 2
    for watched, brute in zip(report.watched, expected, strict=True):
        assert watched.histograms.keys() == brute.keys()
        for kind, layers in brute.items():
            here = {layer: plain(h) for layer, h in watched.histograms[kind].items()}
            assert here == {layer: dict(counts) for layer, counts in layers.items()}, kind
    for value, same in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(value, same)
    assert report.unseen == ()
    assert len(report.against_fp32) == 2
    for beside in report.against_fp32:
        for kind, layers in beside.lost.items():
            assert not any(lost for lost, _ in layers.values()), kind


@pytest.mark.slow
def test_a_compiled_model_trains_as_ever_and_says_what_cannot_be_seen():
    torch.manual_seed(0)
    model = mlp()
    other = copy.deepcopy(model)
    for network, watched in ((other, False), (model, True)):
        compiled = torch.compile(network, backend="eager")
        step = step_of("MLP", {})
        if watched:
            with watch(compiled, every=1) as w:
                for _ in range(3):
                    step(compiled)
        else:
            for _ in range(3):
                step(compiled)
    for value, same in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(value, same)
    report = w.report()
    assert "is compiled" in report.unseen[0]
    assert [step.step for step in report.watched] == [0, 1, 2]
    assert set(report.watched[1].histograms) == {"weights", "weight gradients", "updates"}
    assert report.watched[1].histograms["weight gradients"].keys() == dict(mlp().named_parameters()).keys()
