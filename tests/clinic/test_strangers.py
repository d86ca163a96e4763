"""Scripts in the style of strangers: healthy ones are left alone, and a silent fault is found."""

import torch
from torch import nn

from labkit.clinic import diagnose
from labkit.instrument import watch
from labkit.machine import Status


class Weighted(nn.Module):
    """Multiplies by weights, three in a thousand of which are tiny: so are the gradients behind it."""

    def __init__(self) -> None:
        super().__init__()
        weights = torch.full((1000,), 1e-3)
        weights[:3] = 2.0**-32
        self.register_buffer("weights", weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float() * self.weights


def test_a_layer_just_below_its_window_is_a_note_and_no_fault() -> None:
    """As in small GPTs, where the query of the first position has gradients of rounding noise."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 1000), Weighted())
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**6)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = net(x).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    batches = [torch.randn(8, 4) for _ in range(6)]
    report = diagnose(step, net, optimizer, scaler, batches=batches, steps=6)
    assert [f for f in report.findings if f.status is not Status.OK] == []
    [note] = [f for f in report.findings if f.name == "scale too low"]
    assert note.what.startswith("0.15% of its activation gradients underflow in FP16 at a scale")
    assert (note.layer, note.remedy, note.faults) == ("0", "", ())


class Wrapper(nn.Module):
    """A model whose own forward is not called, as in a module of Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 1))

    def loss(self, x: torch.Tensor, size: float) -> torch.Tensor:
        return ((self.net(x).squeeze(-1) - x[:, 0]) * size).square().mean()


def zero_gradients(size: float) -> list[str]:
    torch.manual_seed(0)
    wrapper = Wrapper()
    optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = wrapper.loss(x, size)
        loss.backward()
        optimizer.step()

    batches = [torch.randn(32, 32) for _ in range(5)]
    report = diagnose(step, wrapper, optimizer, batches=batches, steps=5)
    return [f.name for f in report.findings if f.status is Status.BAD]


def test_gradients_that_are_all_zero_are_a_fault_whichever_method_was_called() -> None:
    assert zero_gradients(1e-4) == ["all gradients are zero"]


def test_gradients_that_arrive_are_none() -> None:
    assert zero_gradients(1.0) == []


def test_a_decay_that_is_added_to_the_gradient_is_not_lost() -> None:
    """RMSprop and SGD add the decay to the gradient; a decay of 1e-9 is lost beside a BF16 weight."""
    for make, dtype, lost in (
        (torch.optim.RMSprop, torch.float32, False),
        (torch.optim.SGD, torch.bfloat16, False),
        (torch.optim.AdamW, torch.float32, False),
        (torch.optim.AdamW, torch.bfloat16, True),
    ):
        torch.manual_seed(0)
        net = nn.Linear(8, 8).to(dtype)
        optimizer = make(net.parameters(), lr=1e-5, weight_decay=1e-4)
        with watch(net) as watching:
            for _ in range(3):
                optimizer.zero_grad()
                net(torch.randn(4, 8, dtype=dtype)).square().mean().backward()
                optimizer.step()
        names = [f.name for f in watching.report().findings]
        assert ("weight decay lost" in names) is lost, (make, dtype, names)
