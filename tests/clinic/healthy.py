"""Fifteen healthy trainings, as people write them: model, optimizer, scaler, a step, and a few batches."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Training = tuple[Callable[[Any], Any], nn.Module, torch.optim.Optimizer, Any, list[Any]]
FP16, BF16 = torch.float16, torch.bfloat16


def pictures(channels: int = 1, size: int = 16, batch: int = 16, number: int = 8) -> list:
    return [(torch.rand(batch, channels, size, size), torch.randint(10, (batch,))) for _ in range(number)]


def usual(model, loss_of, batches, dtype=FP16, optimizer=None, clip=1.0) -> Training:
    """The loop of torch's own examples, with a scaler where the dtype is FP16."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is FP16)

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype):
            loss = loss_of(model, *batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step, model, optimizer, scaler, batches


def classify(model, inputs, targets):
    return F.cross_entropy(model(inputs), targets)


def mlp() -> Training:
    model = nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 10))
    return usual(model, classify, pictures())


def cnn() -> Training:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    )  # fmt: skip
    return usual(model, classify, pictures(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return F.relu(x + self.convs(x))


def resnet() -> Training:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, total_iters=5)
    step, *rest, batches = usual(model, classify, pictures(3), BF16, optimizer)

    def with_schedule(batch):
        loss = step(batch)
        warm_up.step()
        return loss

    return with_schedule, *rest, batches


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 1, 1)
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x):
        high = F.relu(self.down(x))
        low = F.relu(self.norm(self.middle(F.max_pool2d(high, 2))))
        return self.out(torch.cat([high, self.up(low)], dim=1))


def unet() -> Training:
    def dice_and_bce(model, inputs, _):
        masks = (inputs > 0.5).float()
        logits = model(inputs).float()
        chance = logits.sigmoid()
        dice = (2 * (chance * masks).sum() + 1) / (chance.sum() + masks.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, masks) + 1 - dice

    return usual(UNet(), dice_and_bce, pictures())


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(50, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 50)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


def next_token(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def texts() -> list:
    return [(torch.randint(50, (8, 20)),) for _ in range(8)]


def lstm() -> Training:
    return usual(Recurrent(), next_token, texts(), BF16)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(50, 32), nn.Embedding(64, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True, dropout=0.1)
        self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 50)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(64))

    def forward(self, tokens):
        long = tokens.shape[1]
        hidden = self.embed(tokens) + self.position(torch.arange(long))
        return self.head(self.body(hidden, mask=self.mask[:long, :long]))


def transformer() -> Training:
    return usual(Transformer(), next_token, texts(), FP16)


def autoencoder() -> Training:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(256, 16), nn.Tanh(), nn.Linear(16, 256), nn.Sigmoid(), nn.Unflatten(1, (1, 16, 16))
    )
    return usual(model, lambda model, inputs, _: F.mse_loss(model(inputs), inputs), pictures())


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = nn.Linear(256, 2 * 8), nn.Linear(8, 256)

    def forward(self, x):
        mean, log_var = self.encode(x.flatten(1)).chunk(2, dim=1)
        latent = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decode(latent), mean, log_var


def vae() -> Training:
    def evidence(model, inputs, _):
        logits, mean, log_var = model(inputs)
        divergence = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).float().sum(1).mean()
        return F.binary_cross_entropy_with_logits(logits, inputs.flatten(1)) + 1e-3 * divergence

    return usual(VAE(), evidence, pictures())


def gan() -> Training:
    make = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
    judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    made, judged = (torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999)) for m in (make, judge))
    scaler = torch.amp.GradScaler("cpu")
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)

    def step(real):
        judged.zero_grad()
        with torch.autocast("cpu", FP16):
            fake = make(torch.randn(32, 4))
            loss = F.binary_cross_entropy_with_logits(judge(real), ones)
            loss = loss + F.binary_cross_entropy_with_logits(judge(fake.detach()), zeros)
        scaler.scale(loss).backward()
        scaler.step(judged)
        made.zero_grad()
        with torch.autocast("cpu", FP16):
            loss = F.binary_cross_entropy_with_logits(judge(fake), ones)
        scaler.scale(loss).backward()
        scaler.step(made)
        scaler.update()

    return step, make, made, scaler, [torch.randn(32, 2) for _ in range(8)]


def diffusion() -> Training:
    model = nn.Sequential(nn.Linear(2 + 16, 64), nn.SiLU(), nn.Linear(64, 2))
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    waves = 10000 ** (-torch.arange(8) / 8)

    def noise(model, points):
        time = torch.randint(1000, (len(points),))
        angle = time[:, None] * waves
        wanted = torch.randn_like(points)
        mixed = alphas[time, None].sqrt() * points + (1 - alphas[time, None]).sqrt() * wanted
        return F.mse_loss(model(torch.cat([mixed, angle.sin(), angle.cos()], dim=1)), wanted)

    return usual(model, noise, [(torch.randn(64, 2),) for _ in range(8)], FP16)


def several_losses() -> Training:
    body, head, other = nn.Linear(256, 32), nn.Linear(32, 10), nn.Linear(32, 1)
    model = nn.ModuleDict({"body": body, "head": head, "other": other})
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu")

    def step(batch):
        inputs, targets = batch
        optimizer.zero_grad()
        with torch.autocast("cpu", FP16):
            hidden = body(inputs.flatten(1)).relu()
            first = F.cross_entropy(head(hidden), targets)
            second = 0.1 * F.smooth_l1_loss(other(hidden).squeeze(1), inputs.mean((1, 2, 3)))
        scaler.scale(first).backward(retain_graph=True)
        scaler.scale(second).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, model, optimizer, scaler, pictures()


def averaged() -> Training:
    step, model, *rest = mlp()
    average = copy.deepcopy(model).requires_grad_(False)

    def with_average(batch):
        step(batch)
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(parameter, 0.001)

    return with_average, model, *rest


def accumulated() -> Training:
    _, model, optimizer, scaler, batches = mlp()
    state = {"number": 0}

    def step(batch):
        inputs, targets = batch
        with torch.autocast("cpu", FP16):
            loss = F.cross_entropy(model(inputs), targets) / 4
        scaler.scale(loss).backward()
        state["number"] += 1
        if state["number"] % 4 == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return step, model, optimizer, scaler, [*batches, *batches]


class LowRank(nn.Module):
    def __init__(self, frozen, rank=4):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, frozen.in_features) / frozen.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x):
        return self.frozen(x) + F.linear(F.linear(x, self.down), self.up)


def lora() -> Training:
    layers = LowRank(nn.Linear(256, 64).to(BF16)), nn.ReLU(), LowRank(nn.Linear(64, 10).to(BF16))
    model = nn.Sequential(nn.Flatten(), *layers)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return usual(model, classify, pictures(), BF16, torch.optim.AdamW(trained, lr=1e-3))


def gradient_penalty() -> Training:
    model = nn.Sequential(nn.Linear(2, 32), nn.Softplus(), nn.Linear(32, 1))
    optimizer, scaler = torch.optim.Adam(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu")

    def step(real):
        optimizer.zero_grad()
        inputs = real.clone().requires_grad_()
        with torch.autocast("cpu", FP16):
            loss = model(torch.randn_like(real)).mean() - model(inputs).mean()
        (scaled,) = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)
        with torch.autocast("cpu", FP16):
            penalty = ((len(real) * scaled / scaler.get_scale()).norm(dim=1) - 1).pow(2).mean()
        scaler.scale(loss + 10 * penalty).backward()
        scaler.step(optimizer)
        scaler.update()

    return step, model, optimizer, scaler, [torch.randn(32, 2) for _ in range(8)]


HEALTHY = (mlp, cnn, resnet, unet, lstm, transformer, autoencoder, vae, gan, diffusion, several_losses, averaged,
           accumulated, lora, gradient_penalty)  # fmt: skip
