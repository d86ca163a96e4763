"""The stream of events: torch is patched only while a listener needs it.

The tests compare torch's functions with the originals, and check the order of events and the
independence of listeners.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, LRScheduler

from labkit.instrument import register_source, scaler_source
from labkit.instrument.events import (
    AutocastBegins,
    BackwardBegins,
    Event,
    GradEnded,
    LossScaled,
    OptimizerBegins,
    ScalerStepEnded,
    StandInStepped,
)
from labkit.instrument.sources import SOURCES, Source, sources_of
from labkit.instrument.stream import STREAM, Listener
from labkit.instrument.taps import tap

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


ORIGINALS = [vars(owner)[name] for owner, name in PLACES]
OF_TORCH = [event for source in SOURCES for event in source.emits]


def tapped() -> list[bool]:
    """Return which functions of `PLACES` are patched."""
    return [
        vars(owner)[name] is not original
        for (owner, name), original in zip(PLACES, ORIGINALS, strict=True)
    ]


def recorder(*observed: type[Event]) -> tuple[Listener, list[str]]:
    """Return a listener of these events, and the list of the events that it received."""
    got: list[str] = []
    listener = Listener(lambda where, error: got.append(f"{where}: {error}"))
    for event in observed:
        listener.on(event, lambda happened: got.append(type(happened).__name__))
    return listener, got


def train() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
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
    listener, got = recorder(*OF_TORCH)
    with STREAM.subscribed(listener):
        assert tapped() == [True] * len(PLACES)
        train()
    assert tapped() == [False] * len(PLACES)
    assert got == [
        "ParameterRegistered",
        "ParameterRegistered",
        "ScheduleSteps",
        "AutocastBegins",
        "ModuleBegins",
        "ModuleEnded",
        "AutocastEnds",
        "GradBegins",
        "GradEnded",
        "LossScaled",
        "BackwardBegins",
        "BackwardEnded",
        "UnscaleBegins",
        "ClipBegins",
        "ScalerStepBegins",
        "OptimizerBegins",
        "OptimizerEnded",
        "ScalerStepEnded",
        "ScheduleSteps",
    ]


def test_tap_is_open_while_a_listener_needs_it() -> None:
    first, events_of_first = recorder(BackwardBegins)
    second, events_of_second = recorder(BackwardBegins, AutocastBegins, LossScaled)
    stacks = ExitStack(), ExitStack()
    for stack, listener in zip(stacks, (first, second), strict=True):
        stack.enter_context(STREAM.subscribed(listener))
    assert tapped() == [True, False, False, False, True, False, True]
    stacks[0].close()
    train()
    assert events_of_first == []
    assert events_of_second == ["AutocastBegins", "LossScaled", "BackwardBegins"]
    assert tapped() == [True, False, False, False, True, False, True]
    stacks[1].close()
    assert tapped() == [False] * len(PLACES)


def test_tap_that_cannot_open_leaves_nothing_behind() -> None:
    class Scaler:
        pass

    calls = []

    def around(name: str, call: Any, scaler: Scaler) -> str:
        calls.append(name)
        return call(scaler)

    with (
        pytest.raises(AttributeError, match="step"),
        tap(Scaler, "step", partial(around, "first")),
    ):
        pass
    Scaler.step = lambda self: "stepped"
    with tap(Scaler, "step", partial(around, "second")):
        assert Scaler().step() == "stepped"
    assert calls == ["second"]


def test_two_taps_with_one_function_end_one_by_one() -> None:
    class Counter:
        def step(self) -> int:
            return 0

    def plus_one(step: Any, counter: Counter) -> int:
        return step(counter) + 1

    with tap(Counter, "step", plus_one):
        with tap(Counter, "step", plus_one):
            assert Counter().step() == 2
        assert Counter().step() == 1
    assert Counter().step() == 0


class Speaker:
    """A class with a method that taps change."""

    def say(self) -> str:
        return "word"


def test_the_last_tap_is_outermost_and_stays_when_the_first_ends() -> None:
    stacks = ExitStack(), ExitStack()
    stacks[0].enter_context(tap(Speaker, "say", lambda say, speaker: f"({say(speaker)})"))
    stacks[1].enter_context(tap(Speaker, "say", lambda say, speaker: f"[{say(speaker)}]"))
    assert Speaker().say() == "[(word)]"
    stacks[0].close()
    assert Speaker().say() == "[word]"
    stacks[1].close()
    assert Speaker().say() == "word"


def test_a_tap_that_fails_is_reported_and_its_method_is_called() -> None:
    failures = []

    def fails(say: Any, speaker: Speaker) -> str:
        raise ValueError("planted")

    def report(where: str, error: Exception) -> None:
        failures.append(f"{where}: {error}")

    with tap(Speaker, "say", fails, report):
        assert Speaker().say() == "word"
    assert failures == ["fails: planted"]


def test_failure_of_a_listener_does_not_stop_others() -> None:
    failing, failures = recorder()
    other, events = recorder(BackwardBegins, OptimizerBegins)

    def fails(_: Event) -> None:
        raise ValueError("planted")

    failing.on(BackwardBegins, fails).on(OptimizerBegins, fails)
    with STREAM.subscribed(failing), STREAM.subscribed(other):
        train()
    assert events == ["BackwardBegins", "OptimizerBegins"]
    assert failures == ["fails: planted", "fails: planted"]


@pytest.mark.parametrize("event", OF_TORCH, ids=lambda event: event.__name__)
def test_a_listener_without_a_report_raises_in_the_training(event: type[Event]) -> None:
    def fail(_: Event) -> None:
        raise ArithmeticError("planted")

    other, got = recorder(event)
    with (
        pytest.raises(ArithmeticError, match="planted"),
        STREAM.subscribed(Listener().on(event, fail)),
        STREAM.subscribed(other),
    ):
        train()
    assert got == [event.__name__]
    assert not torch.is_autocast_enabled("cpu")


def test_a_step_that_refuses_its_closure_is_not_skipped() -> None:
    ended: list[bool] = []
    listener = Listener().on(ScalerStepEnded, lambda event: ended.append(event.raised))
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    scaler = torch.amp.GradScaler("cpu")
    with STREAM.subscribed(listener), pytest.raises(RuntimeError, match="Closure"):
        scaler.step(optimizer, closure=lambda: 1.0)
    assert ended == [True]


def test_gradients_of_a_dict_of_inputs_are_found() -> None:
    found: list[tuple[torch.Tensor | None, ...]] = []
    listener = Listener().on(GradEnded, lambda event: found.append(event.gradients))
    weight = torch.ones(1, requires_grad=True)
    with STREAM.subscribed(listener):
        torch.autograd.grad((2 * weight).sum(), {"weight": weight})
    assert [float(gradient) for gradient in found[0]] == [2.0]


def test_further_source_is_open_while_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    @contextmanager
    def opened(stream: Any) -> Iterator[None]:
        calls.append(stream)
        yield
        calls.append("closed")
        raise ValueError("planted")

    monkeypatch.setattr(STREAM, "sources", STREAM.sources)
    listener, got = recorder(StandInStepped)
    with STREAM.subscribed(listener):
        register_source(Source((StandInStepped,), opened))
        with STREAM.subscribed(recorder()[0]):
            calls[0].emit(StandInStepped(None))
        assert calls[1:] == []
    assert calls[1:] == ["closed"]
    # A failure while a source closes is reported, too.
    assert got == ["StandInStepped", "opened: planted"]


def test_source_that_cannot_open_ends_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(stream: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr(STREAM, "sources", (Source((StandInStepped,), fails), *STREAM.sources))
    listener, got = recorder(StandInStepped, BackwardBegins)
    with STREAM.subscribed(listener):
        train()
    assert got == ["fails: planted", "BackwardBegins"]


def test_a_registered_scaler_that_is_passed_has_each_event_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Scaler:
        def scale(self, loss: float) -> float:
            return 2 * loss

        def get_scale(self) -> float:
            return 2.0

        def is_enabled(self) -> bool:
            return True

        def unscale_(self, optimizer: object) -> None:
            pass

        def step(self, optimizer: object) -> None:
            pass

    monkeypatch.setattr(STREAM, "sources", STREAM.sources)
    register_source(scaler_source(Scaler))
    listener, got = recorder(LossScaled)
    scaler: Any = Scaler()
    with STREAM.subscribed(listener, *sources_of(scaler)):
        scaler.scale(1.0)
    assert got == ["LossScaled"]
    assert scaler_source() is scaler_source(torch.amp.GradScaler)


def test_source_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a Source, got function"):
        register_source(lambda stream: None)
