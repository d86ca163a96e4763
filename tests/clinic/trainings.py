"""Healthy and broken trainings for the tests of the diagnosis.

They are written as practitioners write them, most of them before the diagnosis existed. Each
returns the arguments of `diagnose`: a step, its batches, the model, the optimizer and the scaler.
"""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Case:
    """A training, as the arguments of `diagnose`.

    Attributes:
        step: trains on one batch.
        batches: the batches.
        model: the model.
        optimizer: its optimizer.
        scaler: its loss scaler, or None.
    """

    step: Callable[[Any], Any]
    batches: Iterable[Any]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: Any = None


def fp16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.float16)


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def usual(
    net: nn.Module,
    opt: torch.optim.Optimizer,
    loss_of: Callable[[Any], Tensor],
    batches: Iterable[Any],
    clip: float = 0.0,
    unscale: bool = True,
    then: Callable[[], object] = lambda: None,
    scaler_class: Any = torch.amp.GradScaler,
    **knobs: Any,
) -> Case:
    """Return a training by the loop of torch's own examples, with autocast and a scaler.

    Args:
        net: the model.
        opt: its optimizer.
        loss_of: a batch -> the loss, called under autocast in FP16.
        batches: the batches.
        clip: the norm at which gradients are clipped; 0 for no clipping.
        unscale: whether gradients are unscaled before they are clipped.
        then: called after each update of the scaler.
        scaler_class: the class of the scaler.
        knobs: the arguments of the scaler.
    """
    scaler = scaler_class("cpu", **knobs)

    def train_step(batch: Any) -> float:
        opt.zero_grad(set_to_none=True)
        with fp16():
            loss = loss_of(batch)
        scaler.scale(loss).backward()
        if clip and unscale:
            scaler.unscale_(opt)
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        scaler.step(opt)
        scaler.update()
        then()
        return loss.item()

    return Case(train_step, batches, net, opt, scaler)


def unscaled(
    net: nn.Module,
    opt: torch.optim.Optimizer,
    loss_of: Callable[[Any], Tensor],
    batches: Iterable[Any],
    before_step: Callable[[], object] = lambda: None,
) -> Case:
    """Return a training by a loop without a scaler.

    Args:
        net: the model.
        opt: its optimizer.
        loss_of: a batch -> the loss.
        batches: the batches.
        before_step: called between backward and the optimizer's step.
    """

    def train_step(batch: Any) -> float:
        opt.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        before_step()
        opt.step()
        return loss.item()

    return Case(train_step, batches, net, opt)


def classify(net: nn.Module, factor: float = 1.0) -> Callable[[Any], Tensor]:
    return lambda batch: F.cross_entropy(net(factor * batch[0]).float(), batch[1])


def blobs(
    steps: int = 30, size: int = 32, width: int = 20, classes: int = 5
) -> list[tuple[Tensor, Tensor]]:
    """Return batches of points around as many centres as there are classes."""
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, width, generator=g)
    labels = torch.randint(classes, (steps, size), generator=g)
    return [(centres[y] + 0.5 * torch.randn(size, width, generator=g), y) for y in labels]


def text(steps: int = 25, size: int = 8, length: int = 17, vocab: int = 30) -> list[Tensor]:
    g = torch.Generator().manual_seed(2)
    start = torch.randint(1, vocab, (steps, size, 1), generator=g)
    return list((start + 3 * torch.arange(length)) % (vocab - 1) + 1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))


def pictures(steps: int = 25, size: int = 8, side: int = 16) -> list[tuple[Tensor, Tensor]]:
    """Return batches of discs in noise, [size, 1, side, side] in 0..1, and their masks."""
    g = torch.Generator().manual_seed(1)
    rows = torch.arange(side).float()
    batches = []
    for _ in range(steps):
        x, y = (torch.rand(size, 1, 1, 1, generator=g) * side for _ in range(2))
        masks = ((rows[:, None] - x) ** 2 + (rows - y) ** 2 < 20).float()
        images = 0.7 * masks + 0.3 * torch.rand(masks.shape, generator=g)
        batches.append((images, masks))
    return batches


# --- healthy trainings ---


def mlp_one_cycle() -> Case:
    net = nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 5)
    )
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-8)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=60)
    return usual(net, opt, classify(net), blobs(), clip=1.0, then=lambda: sched.step())


def cnn_sgd() -> Case:
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 2),
    ).to(memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def loss_of(batch: Any) -> Tensor:
        images, masks = batch
        images = (images - 0.3) / 0.25
        if torch.rand(()) < 0.5:
            images = images.flip(-1)
        labels = (masks.mean((1, 2, 3)) > 0.2).long()
        return F.cross_entropy(net(images.to(memory_format=torch.channels_last)), labels)

    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 50)
    return usual(net, opt, loss_of, pictures(), then=lambda: schedule.step(), init_scale=2.0**13)


def segmentation_dice() -> Case:
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(4, 8),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.LeakyReLU(0.1),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(16, 1, 1),
    )
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3, weight_decay=1e-8, momentum=0.9)
    bce = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0))

    def loss_of(batch: Any, eps: float = 1e-6) -> Tensor:
        logits = net(batch[0])
        target = batch[1].flatten(1)
        p = logits.float().sigmoid().flatten(1)
        dice = (2 * (p * target).sum(1) + eps) / (p.sum(1) + target.sum(1) + eps)
        return bce(logits, batch[1]) + 1 - dice.mean()

    return usual(net, opt, loss_of, pictures(size=4), clip=1.0, growth_interval=100)


class CharLSTM(nn.Module):
    def __init__(self, vocab: int = 30, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        inputs = self.embed(tokens)
        with torch.autocast("cpu", torch.bfloat16, enabled=has_half_lstm()):
            out, state = self.lstm(inputs, state)
        return self.head(out), state


@cache
def has_half_lstm() -> bool:
    """Return whether torch computes an LSTM in BF16 here; oneDNN does on few processors only."""
    try:
        with bf16():
            nn.LSTM(2, 2)(torch.ones(1, 1, 2))
    # oneDNN could not create a primitive descriptor
    except RuntimeError:
        return False
    return True


def lstm_tbptt() -> Case:
    net = CharLSTM()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3, betas=(0.9, 0.99))
    memory: dict[str, Any] = {"state": None}

    def loss_of(tokens: Tensor) -> Tensor:
        with bf16():
            logits, state = net(tokens[:, :-1], memory["state"])
        memory["state"] = tuple(s.detach().float() for s in state)
        return F.cross_entropy(
            logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), ignore_index=0
        )

    return unscaled(
        net, opt, loss_of, text(), lambda: nn.utils.clip_grad_value_(net.parameters(), 0.5)
    )


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q * (w // self.heads) ** -0.5) @ k.transpose(-1, -2)
        scores = scores.masked_fill(~keep[:, None], float("-inf"))
        attention = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
        return self.out((attention @ v).transpose(1, 2).reshape(b, t, w))


class TinyGPT(nn.Module):
    def __init__(self, vocab: int = 30, width: int = 32, length: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(length, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width, eps=1e-6) for _ in range(3))
        self.attention = Attention(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.head = nn.Linear(width, vocab, bias=False)
        # tied weights
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool, device=ids.device).tril()
        # a padding token attends to itself, so that no row is masked whole
        keep = causal & (ids != 0)[:, None, :] | torch.eye(t, dtype=torch.bool)
        x = self.tokens(ids) + self.positions(torch.arange(t, device=ids.device))
        x = x + self.attention(self.norm1(x), keep)
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm3(x))


def next_token(net: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda tokens: F.cross_entropy(
        net(tokens[:, :-1]).float().transpose(1, 2), tokens[:, 1:]
    )


def transformer_masked() -> Case:
    net = TinyGPT()
    decay, rest = (
        [p for p in net.parameters() if (p.dim() >= 2) is wide] for wide in (True, False)
    )
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), eps=1e-8)
    warmup = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
    data = text()
    for tokens in data:
        # half of the rows end in padding
        tokens[: len(tokens) // 2, -4:] = 0

    def loss_of(tokens: Tensor) -> Tensor:
        logits = net(tokens[:, :-1])
        targets = tokens[:, 1:]
        return F.cross_entropy(
            logits.transpose(1, 2), targets, ignore_index=0, label_smoothing=0.05
        )

    return usual(net, opt, loss_of, data, clip=1.0, then=lambda: warmup.step())


def gan(shared: bool = False) -> Case:
    g_net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 20))
    d_net = nn.Sequential(nn.Linear(20, 32), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(32, 1))
    g_opt = torch.optim.Adam(g_net.parameters(), lr=2e-4, betas=(0.5, 0.999))
    d_opt = torch.optim.Adam(d_net.parameters(), lr=2e-4, betas=(0.5, 0.999))
    d_scaler = torch.amp.GradScaler("cpu")
    g_scaler = d_scaler if shared else torch.amp.GradScaler("cpu")
    criterion = nn.BCEWithLogitsLoss()

    def train_step(batch: Any) -> tuple[float, float]:
        real, _ = batch
        with fp16():
            fake = g_net(torch.randn(len(real), 8))
            on_real = d_net(real)
            on_fake = d_net(fake.detach())
            d_loss = criterion(on_real, torch.full_like(on_real, 0.9)) + criterion(
                on_fake, torch.zeros_like(on_fake)
            )
        d_opt.zero_grad(set_to_none=True)
        d_scaler.scale(d_loss).backward()
        d_scaler.step(d_opt)
        if not shared:
            d_scaler.update()
        d_net.requires_grad_(False)
        with fp16():
            verdict = d_net(fake)
            g_loss = criterion(verdict, torch.ones_like(verdict))
        g_opt.zero_grad(set_to_none=True)
        g_scaler.scale(g_loss).backward()
        g_scaler.step(g_opt)
        g_scaler.update()
        d_net.requires_grad_(True)
        return d_loss.item(), g_loss.item()

    return Case(train_step, blobs(), nn.ModuleDict({"g": g_net, "d": d_net}), d_opt, d_scaler)


def gan_of_one_scaler() -> Case:
    return gan(shared=True)


def averaged_model() -> Case:
    net = mlp()
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    return usual(net, opt, classify(net), blobs(), then=lambda: average.update_parameters(net))


def accumulation() -> Case:
    net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5))
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    count = {"batches": 0}

    def train_step(batch: Any) -> float:
        x, y = batch
        with fp16():
            loss = F.cross_entropy(net(x), y) / 4
        scaler.scale(loss).backward()
        count["batches"] += 1
        if count["batches"] % 4 == 0:
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)
        return 4 * loss.item()

    return Case(train_step, blobs(40), net, opt, scaler)


class LoRA(nn.Module):
    def __init__(
        self, base: nn.Linear, rank: int = 4, alpha: float = 8.0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(
            torch.randn(rank, base.in_features, dtype=dtype) / math.sqrt(base.in_features)
        )
        self.b = nn.Parameter(torch.zeros(base.out_features, rank, dtype=dtype))
        self.scaling = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b) * self.scaling


def lora(trainable: torch.dtype = torch.float32) -> Case:
    frozen = [nn.Linear(20, 64).half(), nn.Linear(64, 5).half()]
    net = nn.Sequential(
        LoRA(frozen[0], dtype=trainable), nn.ReLU(), LoRA(frozen[1], dtype=trainable)
    )
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=5e-3)
    return usual(net, opt, classify(net), blobs(), clip=1.0)


def gradient_penalty() -> Case:
    critic = nn.Sequential(nn.Linear(20, 48), nn.SiLU(), nn.Linear(48, 1))
    opt = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.0, 0.9))
    scaler = torch.amp.GradScaler("cpu")

    def train_step(batch: Any) -> float:
        real, _ = batch
        fake = torch.randn_like(real)
        between = torch.lerp(fake, real, torch.rand(len(real), 1)).requires_grad_(True)
        opt.zero_grad(set_to_none=True)
        with fp16():
            loss = critic(fake).mean() - critic(real).mean()
            out = critic(between)
        (scaled,) = torch.autograd.grad(scaler.scale(out.float().sum()), between, create_graph=True)
        grads = scaled * (1.0 / scaler.get_scale())
        with fp16():
            penalty = (grads.float().norm(dim=1) - 1).square().mean()
            total = loss + 10 * penalty
        scaler.scale(total).backward()
        scaler.step(opt)
        scaler.update()
        return total.item()

    return Case(train_step, blobs(), critic, opt, scaler)


def two_backward_passes() -> Case:
    net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 6))
    scaler = torch.amp.GradScaler("cpu")
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)

    def train_step(batch: Any) -> None:
        opt.zero_grad()
        with fp16():
            # logits of five classes, and a size
            outputs = net(batch[0])
            first = F.cross_entropy(outputs[:, :5], batch[1])
            second = 0.1 * F.smooth_l1_loss(outputs[:, 5], batch[0].mean(1))
        scaler.scale(first).backward(retain_graph=True)
        scaler.scale(second).backward()
        scaler.step(opt)
        scaler.update()

    return Case(train_step, blobs(), net, opt, scaler)


def trajectory_balance() -> Case:
    """A GFlowNet's loss: squares of large numbers, so most scaled gradients are whole numbers."""

    class Flow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(), nn.Linear(32, 2))
            self.log_z = nn.Parameter(torch.zeros(()))

        def forward(self, bits: Tensor) -> Tensor:
            state = torch.zeros(bits.shape[0], 8)
            log_probability = torch.zeros(bits.shape[0])
            for place in range(8):
                scores = self.net(state).log_softmax(-1)
                log_probability = log_probability + scores.gather(1, bits[:, place, None])[:, 0]
                state = state.clone()
                state[:, place] = bits[:, place] * 2.0 - 1
            return self.log_z + log_probability

    net = Flow()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, 2, (32, 8), generator=generator) for _ in range(20)]

    def loss_of(bits: Tensor) -> Tensor:
        return (net(bits) - (2.0 * bits.sum(1) - 5)).square().mean()

    return usual(net, opt, loss_of, batches)


HEALTHY: dict[str, Callable[[], Case]] = {
    case.__name__: case
    for case in (
        mlp_one_cycle,
        cnn_sgd,
        segmentation_dice,
        lstm_tbptt,
        transformer_masked,
        gan,
        gan_of_one_scaler,
        averaged_model,
        accumulation,
        lora,
        gradient_penalty,
        two_backward_passes,
        trajectory_balance,
    )
}


# --- broken trainings, each with a fault of labkit.faults ---


def lora_in_half() -> Case:
    return lora(torch.float16)


def clipped_then_unscaled() -> Case:
    net = TinyGPT()
    opt = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
    return usual(net, opt, next_token(net), text(), clip=1.0, unscale=False)


def entropy_by_hand() -> Case:
    net = mlp()

    def loss_of(batch: Any) -> Tensor:
        x, y = batch
        p = net(4 * x).softmax(-1)
        return -torch.log(p + 1e-8)[torch.arange(len(y)), y].mean()

    return usual(net, torch.optim.Adam(net.parameters(), lr=2e-2), loss_of, blobs(60))


def attention_mask_constant() -> Case:
    class Masked(nn.Module):
        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            return (x @ x.transpose(-1, -2)).masked_fill(~keep, -1e9).softmax(-1) @ x

    net = TinyGPT()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    net.attention = Masked()
    return unscaled(net.half(), opt, next_token(net), text())


def norm_overflows() -> Case:
    class HandRMSNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()

    net = nn.Sequential(nn.Linear(20, 64), HandRMSNorm(), nn.Linear(64, 5))
    return usual(
        net, torch.optim.SGD(net.parameters(), lr=0.05), classify(net, factor=800.0), blobs()
    )


def row_is_empty() -> Case:
    net = TinyGPT()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = text()
    # a sample that consists of padding only
    data[6][0] = 0

    def loss_of(tokens: Tensor) -> Tensor:
        with bf16():
            x = net.norm1(net.tokens(tokens))
            scores = (x @ x.transpose(-1, -2)).masked_fill((tokens == 0)[:, None, :], float("-inf"))
            h = x + scores.softmax(-1).to(x.dtype) @ x
            return F.cross_entropy(net.head(net.norm3(h)).transpose(1, 2).float(), tokens)

    return unscaled(net, opt, loss_of, data)


def adam_on_half() -> Case:
    net = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
    ).half()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    return unscaled(
        net, opt, lambda batch: F.cross_entropy(net(batch[0].half()).float(), batch[1]), blobs()
    )


def schedule_runs_ahead() -> Case:
    net = mlp()
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.0, total_iters=30)
    return usual(net, opt, classify(net), blobs(), then=lambda: sched.step(), init_scale=2.0**40)


def one_region_for_all() -> Case:
    net = mlp()
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    region = bf16()

    def train_step(batch: Any) -> None:
        x, y = batch
        if not torch.is_autocast_enabled("cpu"):
            # it stays open until the last batch
            region.__enter__()
        opt.zero_grad()
        F.cross_entropy(net(x), y).backward()
        opt.step()
        if x is data[-1][0]:
            region.__exit__(None, None, None)

    data = blobs(20)
    return Case(train_step, data, net, opt)


def optimizer_of_another() -> Case:
    net = mlp()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    # as a wrapper or a conversion copies a model
    net = copy.deepcopy(net)
    return usual(net, opt, classify(net), blobs(), enabled=False)


# Name of a broken training -> the training, and its fault.
BROKEN: dict[str, tuple[Callable[[], Case], str]] = {
    case.__name__: (case, fault)
    for case, fault in (
        (lora_in_half, "half_weights_unscaled"),
        (clipped_then_unscaled, "clip_before_unscale"),
        (entropy_by_hand, "log_of_epsilon"),
        (attention_mask_constant, "mask_constant"),
        (norm_overflows, "forward_overflow"),
        (row_is_empty, "row_all_masked"),
        (adam_on_half, "adam_in_half"),
        (schedule_runs_ahead, "schedule_counts_skips"),
        (one_region_for_all, "stale_cast"),
        (optimizer_of_another, "optimizer_made_before"),
    )
}
