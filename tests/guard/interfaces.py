"""Trainings through the engine's options and events, and through each framework's calls.

Losses, scales and tensors are recorded to the last bit.

Every training but fastai's meets batches whose loss overflows FP16. Where a recipe computes in
FP16, steps are skipped, scales fall and clips meet inf.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.amp import RECIPES, Engine
from tests.guard.plain import digest, exact
from tests.guard.processes import Item
from tests.guard.recipes import tensors_of

STEPS = 20
# Step -> the factor of its loss. The gradients overflow once at step 4, and three times in a row
# from step 9.
FACTORS = {4: 1e5, 9: 1e12, 10: 1e12, 11: 1e12}
ENGINES: dict[str, dict[str, Any]] = {
    "clip": {},
    "accumulated": {"passes": 2},
    "two_losses": {"losses": 2},
    "flat": {"flat": True},
}


def items() -> Iterator[Item]:
    """Yield an item for each recipe and each form of its engine, and for each framework's forms."""
    for recipe in RECIPES:
        for form, options in ENGINES.items():
            yield Item(f"interfaces/engine/{recipe}.{form}", partial(engine, recipe, **options))
        yield Item(f"interfaces/engine/{recipe}.events", partial(events, recipe))
    for clips in (False, True):
        name = "torch_amp_clip" if clips else "torch_amp"
        yield Item(f"interfaces/{name}", partial(torch_amp, clips))
    for level in ("O0", "O1", "O2", "O3"):
        for losses in (1, 2):
            yield Item(f"interfaces/apex/{level}.losses{losses}", partial(apex, level, losses))
    for way in ("to_fp16", "to_non_native_fp16"):
        yield Item(f"interfaces/fastai/{way}", partial(fastai, way))
    for scaler in ("GradScaler", "StaticGradScaler"):
        yield Item(f"interfaces/oneflow/{scaler}", partial(oneflow, scaler))


def network() -> nn.Sequential:
    """Return a small network with a norm, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.LayerNorm(16),
        nn.ReLU(),
        nn.Linear(16, 16),
        nn.ReLU(),
        nn.Linear(16, 3),
    )


def batches(count: int = STEPS) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield inputs, targets and the factor of the loss, always the same."""
    generator = torch.Generator().manual_seed(1)
    for step in range(count):
        inputs = torch.randn(32, 8, generator=generator)
        yield inputs, torch.randint(3, (32,), generator=generator), FACTORS.get(step, 1.0)


MAKE_OPTIMIZER: Callable[..., torch.optim.Optimizer] = partial(torch.optim.AdamW, lr=1e-2)


def engine(recipe: str, passes: int = 1, losses: int = 1, flat: bool = False) -> str:
    """Return reports of steps that clip, and all tensors at the end."""
    trained = Engine(network(), MAKE_OPTIMIZER, recipe, losses=losses, flat=flat, seed=3)
    lines = []
    for inputs, targets, factor in batches():
        trained.zero_grad()
        for number in range(max(passes, losses)):
            with trained.forward():
                loss = cross_entropy(trained(inputs[number::2]), targets[number::2]) * factor
            trained.backward(loss, loss_id=number % losses)
        norm = trained.clip(0.5)
        report = trained.step()
        lines.append(f"loss {exact(loss)}, norm {exact(norm)}, {render(vars(report))}")
    lines += [f"scaler {scaler}" for scaler in trained.scalers]
    lines += tensors_of(trained.model, trained.optimizer)
    lines += [f"state {name}" for name in sorted(trained.state_dict())]
    return text_of(lines)


def events(recipe: str) -> str:
    """Return the events of an engine's steps, with digests of their gradients."""
    trained = Engine(network(), MAKE_OPTIMIZER, recipe, seed=3)
    lines = []

    def listen(event: Any) -> None:
        gradients = "; ".join(f"{name} {digest(g)}" for name, g in event.gradients.items())
        report = "" if event.report is None else f" {render(vars(event.report))}"
        lines.append(
            f"{event.moment.name} loss {exact(event.loss)} scale {exact(event.scale)}{report}: "
            f"{gradients}"
        )

    with trained.listen(listen):
        for inputs, targets, factor in batches(12):
            trained.zero_grad()
            with trained.forward():
                loss = cross_entropy(trained(inputs), targets) * factor
            trained.backward(loss)
            trained.step()
    return text_of(lines)


def torch_amp(clips: bool) -> str:
    """Return scales and tensors of a training by labkit's autocast and GradScaler.

    It has two optimizers.

    Args:
        clips: Whether each step unscales and clips the gradients.
    """
    from labkit.frameworks import GradScaler, autocast

    model = network()
    optimizers = [
        MAKE_OPTIMIZER(list(model[:3].parameters())),
        torch.optim.SGD(model[3:].parameters(), 0.1),
    ]
    scaler = GradScaler("cpu", growth_interval=3)
    lines = []
    for inputs, targets, factor in batches():
        for optimizer in optimizers:
            optimizer.zero_grad()
        with autocast("cpu", torch.float16):
            outputs = model(inputs)
        loss = cross_entropy(outputs.float(), targets) * factor
        scaler.scale(loss).backward()
        norm: Any = None
        if clips:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        lines.append(f"loss {exact(loss)}, norm {exact(norm)}, scale {exact(scaler.get_scale())}")
    lines.append(f"scaler {render(scaler.state_dict())}")
    for optimizer in optimizers:
        lines += tensors_of(model, optimizer)
    return text_of(lines)


def apex(level: str, losses: int) -> str:
    """Return scales and tensors of a training by apex's calls, with clipping of the masters."""
    from labkit.frameworks.apex import amp

    model = network()
    model, optimizer = amp.initialize(
        model, MAKE_OPTIMIZER(model.parameters()), opt_level=level, num_losses=losses, verbosity=0
    )
    lines = []
    for inputs, targets, factor in batches():
        optimizer.zero_grad()
        for number in range(losses):
            loss = cross_entropy(model(inputs[number::2]).float(), targets[number::2]) * factor
            with amp.scale_loss(loss, optimizer, loss_id=number) as scaled:
                scaled.backward()
        norm = nn.utils.clip_grad_norm_(list(amp.master_params(optimizer)), 0.5)
        optimizer.step()
        lines.append(f"loss {exact(loss)}, norm {exact(norm)}, {render(amp.state_dict())}")
    lines += tensors_of(model, optimizer)
    lines += [f"master {digest(master)}" for master in amp.master_params(optimizer)]
    return text_of(lines)


def fastai(way: str) -> str:
    """Return the recorded losses and the tensors of a learner in FP16."""
    from labkit.frameworks.fastai.test_utils import synth_learner

    torch.manual_seed(0)
    learner = synth_learner(lr=0.05)
    learner.model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    getattr(learner, way)()
    learner.fit(3)
    lines = [", ".join(map(exact, row)) for row in learner.recorder.values]
    return text_of([*lines, *(f"{n}: {digest(t)}" for n, t in learner.model.state_dict().items())])


def oneflow(scaler: str) -> str:
    """Return the tensors of a graph that accumulates under a GradScaler."""
    import labkit.frameworks.oneflow as flow

    model = network()
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1)
    if scaler == "StaticGradScaler":
        scaling = flow.amp.StaticGradScaler(2.0**10)
    else:
        scaling = flow.amp.GradScaler()

    class Graph(flow.nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)
            self.config.enable_amp(True)
            self.config.set_gradient_accumulation_steps(2)
            self.set_grad_scaler(scaling)

        def build(self, inputs: Tensor, targets: Tensor, factor: float) -> Tensor:
            loss = cross_entropy(self.model(inputs).float(), targets) * factor
            loss.backward()
            return loss

    graph = Graph()
    lines = [f"loss {digest(graph(*batch))}" for batch in batches()]
    return text_of([*lines, *tensors_of(model, optimizer)])


def render(values: Any) -> str:
    """Return "name value, name value, ...", with the numbers to the last bit."""
    pairs = []
    for name, value in values.items():
        text = render(value) if isinstance(value, dict) else exact(value)
        pairs.append(f"{name} {text}")
    return ", ".join(pairs)


def text_of(lines: list[str]) -> str:
    """Return lines as the text of an item."""
    return "".join(f"{line}\n" for line in lines)
