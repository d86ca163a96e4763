"""The stream of events: hooks and taps are open while a listener observes their event, and each listener is alone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

from labkit.instrument import register_source, stream
from labkit.instrument.stream import STREAM

Autocast = torch.amp.autocast_mode.autocast
PLACES = [
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (nn.utils, "clip_grad_norm_"),
    (LRScheduler, "step"),
    (Autocast, "__enter__"),
    (Autocast, "__exit__"),
    (torch.amp.GradScaler, "step"),
]


def tapped() -> list[bool]:
    """Return which of the places differ from what they are without a listener."""
    return [hasattr(vars(owner)[name], "arounds") for owner, name in PLACES]


def recorder(*events: str) -> tuple[SimpleNamespace, list[str]]:
    """Return a listener that observes these events, and the list of those that it got."""
    got: list[str] = []
    listener = SimpleNamespace(
        failed=lambda where, error: got.append(f"{where}: {error}"), observes_optimizer=bool
    )
    for event in events:
        setattr(listener, event, lambda *_, event=event, **__: got.append(event))
    return listener, got


def train() -> None:
    model = nn.Linear(2, 1)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    schedule = ConstantLR(optimizer)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.ones(3, 2)).sum()
    torch.autograd.grad(loss, model.weight, retain_graph=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()


def test_the_events_of_a_step_in_their_order() -> None:
    listener, got = recorder(
        *stream.HOOKS, *stream.TAPPED, "after_grad", "scaled_by", "before_unscale"
    )
    with STREAM.subscribed(listener):
        assert tapped() == [True] * len(PLACES)
        train()
    assert tapped() == [False] * len(PLACES)
    assert got == [
        "parameter_registered",
        "parameter_registered",
        "before_schedule",
        "autocast_begins",
        "before_module",
        "after_module",
        "autocast_ends",
        "before_grad",
        "after_grad",
        "scaled_by",
        "before_backward",
        "before_unscale",
        "before_clip",
        "scaled_by",
        "before_optimizer",
        "after_optimizer",
        "before_schedule",
    ]


def test_a_tap_is_open_while_a_listener_observes_its_event_in_whatever_order_they_leave() -> None:
    (one, first), (two, second) = (
        recorder("before_backward"),
        recorder("before_backward", "autocast_begins"),
    )
    stacks = ExitStack(), ExitStack()
    for stack, listener in zip(stacks, (one, two), strict=True):
        stack.enter_context(STREAM.subscribed(listener))
    assert tapped() == [True, False, False, False, True, False, True]
    stacks[0].close()
    train()
    assert (first, second) == ([], ["autocast_begins", "before_backward"])
    assert tapped() == [True, False, False, False, True, False, True]
    stacks[1].close()
    assert tapped() == [False] * len(PLACES)


def test_a_failure_is_reported_to_its_listener_and_the_others_get_the_event() -> None:
    (one, first), (two, second) = recorder(), recorder("before_backward", "before_optimizer")

    def fails(*_: Any, **__: Any) -> None:
        raise ValueError("planted")

    one.before_backward = one.observes_optimizer = one.before_optimizer = fails
    with STREAM.subscribed(one), STREAM.subscribed(two):
        train()
    assert second == ["before_backward", "before_optimizer"]
    assert first == ["fails: planted", *["observes_optimizer: planted"] * 2, "fails: planted"]


def test_a_source_sends_events_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    @contextmanager
    def source(listeners: Any) -> Iterator[None]:
        seen.append(listeners)
        yield
        seen.append("closed")
        raise ValueError("planted")

    monkeypatch.setattr(stream, "_SOURCES", list(stream._SOURCES))
    listener, got = recorder("scaled_by", "skipped")
    with STREAM.subscribed(listener):
        register_source(source)
        with STREAM.subscribed(recorder()[0]):
            seen[0].scaled_by(lambda: 2.0)
            # of an optimizer that it does not observe
            seen[0].those("observes_optimizer", None).skipped(None, {})
            with pytest.raises(
                AttributeError, match=r"expected one of the events scaled_by, .*; got 'skip'"
            ):
                seen[0].skip(None)
        assert seen[1:] == []
    assert seen[1:] == ["closed"]
    assert got == ["scaled_by", "source: planted"], "a failure at the end is reported, too"
