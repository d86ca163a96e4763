"""Histograms of a watch on difficult networks, against a program that stores every tensor.

The oracle `brute_force` stores all tensors of a step and counts exponents with numpy; it shares no
code with labkit. Each network takes two steps under both, and all counts must be equal.
"""

import copy
from collections import Counter, defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss, relu
from torch.utils.checkpoint import checkpoint

from labkit.instrument import watch
from labkit.train import networks

SCALE = 2.0**7


def x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


class Tied(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        self.embed = nn.Embedding(11, 6, sparse=sparse)
        self.out = nn.Linear(6, 11, bias=False)
        if not sparse:
            self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.embed(tokens).mean(1))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 3)

    def forward(self, rows):
        return self.second(checkpoint(lambda r: self.first(r).relu(), rows, use_reentrant=False))


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def cnn():
    layers = (
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4 * 36, 3),
    )
    return nn.Sequential(*layers)


def transformer():
    return nn.Sequential(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True), nn.Linear(8, 3)
    )


def gan():
    """A generator and its critic."""
    critic = nn.Sequential(nn.Linear(6, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))
    return nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.Tanh()), critic)


def shared():
    """A frozen layer, and one that is called twice."""
    twice = nn.Linear(6, 6)
    return nn.Sequential(
        nn.Linear(6, 6).requires_grad_(False), twice, nn.ReLU(), twice, nn.Linear(6, 3)
    )


def numbers(tensor):
    """Return all stored numbers of a tensor as a float64 array."""
    tensor = tensor.detach()
    tensor = tensor.coalesce().values() if tensor.is_sparse else tensor
    return tensor.to(torch.float64).numpy().ravel()


def counted(values):
    """Count the exponents of an array, its zeros, and its numbers that are not finite ("bad")."""
    finite = values[np.isfinite(values)]
    # frexp returns e with 0.5 <= |x| / 2^e < 1, which is one more than the exponent.
    _, exponents = np.frexp(np.abs(finite[finite != 0]))
    return Counter((exponents - 1).tolist()) + Counter(
        zero=int((finite == 0).sum()), bad=len(values) - len(finite)
    )


def tensors(output):
    if isinstance(output, torch.Tensor):
        return [output] if output.is_floating_point() else []
    return [t for item in output for t in tensors(item)] if isinstance(output, tuple | list) else []


def brute_force(model, step, scale):
    """Run a step, and return {kind of tensor: {layer: counts}} of all its tensors."""
    counts = defaultdict(lambda: defaultdict(Counter))
    handles = []
    running = []
    gradient_counts = counts["activation gradients"]

    def after(name):
        def hook(_module, _inputs, output):
            for tensor in tensors(output):
                # During backward, a forward pass is that of a checkpoint, and was counted before.
                if not running:
                    counts["activations"][name].update(counted(numbers(tensor)))
                if tensor.requires_grad:
                    tensor.register_hook(
                        lambda g: gradient_counts[name].update(counted(numbers(g) / scale))
                    )

        return hook

    for name, module in model.named_modules():
        if not list(module.children()):
            handles.append(module.register_forward_hook(after(name)))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = step(model, running)
    for name, p in model.named_parameters():
        counts["weights"][name] = counted(numbers(before[name]))
        if p.grad is not None:
            counts["weight gradients"][name] = counted(numbers(p.grad))
        if any(p is q for group in optimizer.param_groups for q in group["params"]):
            counts["updates"][name] = counted(numbers(p.detach().float() - before[name].float()))
    for handle in handles:
        handle.remove()
    return counts


ROWS = x(8, 6)
IMAGES = x(8, 1, 8, 8)
TOKENS = torch.arange(32).reshape(8, 4) % 11
CLASSES = torch.arange(8) % 3
NETWORKS = {
    "MLP": (mlp, ROWS, CLASSES),
    "CNN with batch norm": (cnn, IMAGES, CLASSES),
    "UNet": (partial(networks.Unet, 3, 4), x(4, 1, 16, 16), x(4, 3, 16, 16)),
    "LSTM": (partial(networks.CharLstm, 11, 6), TOKENS, x(8, 4, 11)),
    "transformer": (transformer, x(8, 4, 8), x(8, 4, 3)),
    "GAN step": (gan, x(8, 4), torch.zeros(8, 1)),
    "tied weights": (Tied, TOKENS, torch.arange(8)),
    "gradient checkpointing": (Checkpointed, ROWS, CLASSES),
    "accumulation": (mlp, ROWS, CLASSES),
    "sparse embedding": (partial(Tied, sparse=True), TOKENS, torch.arange(8)),
    "frozen and shared parameters": (shared, ROWS, CLASSES),
}


def step_of(name, optimizers):
    """Return the step of a loop that scales its loss.

    For the GAN it steps the generator only; for "accumulation" it runs two halves of a batch.
    """
    _, inputs, targets = NETWORKS[name]

    def step(model, running=None):
        trained = model[0] if name == "GAN step" else model
        sgd = optimizers.setdefault(id(model), torch.optim.SGD(trained.parameters(), lr=0.05))
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        model.zero_grad()
        halves = (slice(0, 4), slice(4, 8)) if name == "accumulation" else (slice(None),)
        for half in halves:
            output = model(inputs[half])
            target = targets[half]
            loss = (
                cross_entropy(output, target)
                if target.dim() == 1
                else mse_loss(relu(output), target)
            )
            scaled = scaler.scale(loss)
            if running is not None:
                running.append(True)
            scaled.backward()
            if running is not None:
                running.clear()
        scaler.unscale_(sgd)
        # The scaler unscales only the gradients of the optimizer's parameters.
        for p in model.parameters():
            if p.grad is not None and not any(
                p is q for group in sgd.param_groups for q in group["params"]
            ):
                p.grad /= SCALE
        scaler.step(sgd)
        return sgd

    return step


def plain(histogram):
    """Return a histogram as the counts of `counted`."""
    counts = {histogram.lo + i: int(n) for i, n in enumerate(histogram.counts) if n}
    extra = {"zero": histogram.zeros, "bad": histogram.non_finite}
    return counts | {key: n for key, n in extra.items() if n}


@pytest.mark.parametrize("name", NETWORKS)
def test_counts_equal_those_of_a_brute_force_program(name):
    make, _, _ = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    other = copy.deepcopy(model)
    optimizers = {}
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
def test_watched_compiled_model_trains_as_before():
    torch.manual_seed(0)
    model = mlp()
    other = copy.deepcopy(model)
    compiled, watched = (torch.compile(network, backend="eager") for network in (other, model))
    steps = [step_of("MLP", {}) for _ in range(2)]
    for _ in range(3):
        steps[0](compiled)
    with watch(watched, every=1) as w:
        for _ in range(3):
            steps[1](watched)
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))
    report = w.report()
    assert "is compiled" in report.unseen[0]
    assert [step.step for step in report.watched] == [0, 1, 2]
    assert set(report.watched[1].histograms) == {"weights", "weight gradients", "updates"}
    assert (
        report.watched[1].histograms["weight gradients"].keys()
        == dict(mlp().named_parameters()).keys()
    )
