"""Sources of events for `labkit.instrument`: the steps of engines and the casts of autocast.

Idea: an engine steps masters, whose hooks do not refer to the model, and skips steps by itself. While a watch is open,
`backward` and `step` of engines are wrapped, and an engine that trains the watched model emits its events.

Invariant: engines of other models emit nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from labkit.amp.casting.casts import Cast
from labkit.amp.engine import Engine
from labkit.amp.step import Moment, StepEvent
from labkit.instrument.guard import Failed, guarded
from labkit.instrument.stream import Gradients, Listeners, tap


@contextmanager
def engine_source(listeners: Listeners) -> Iterator[None]:
    """Send the events of an engine to the listeners that observe its model."""

    def around_backward(
        backward: Any, engine: Engine, loss: Tensor, loss_id: int = 0, **kwargs: Any
    ) -> Any:
        engines = (engine, *kwargs.get("other_engines", ()))
        listeners.scaled_by(lambda: min(each.scalers[loss_id].scale for each in engines))
        return backward(engine, loss, loss_id, **kwargs)

    def around_step(step: Any, engine: Engine, *args: Any, **kwargs: Any) -> Any:
        observers = listeners.those("observes_model", engine.model)
        if not observers.listeners:
            return step(engine, *args, **kwargs)
        forward = guarded(partial(_forward, observers, engine, {}), observers.failed)
        with observers.step_by_engine(engine.optimizer), engine.listen(forward):
            return step(engine, *args, **kwargs)

    failed = listeners.failed
    with tap(Engine, "backward", around_backward, failed), tap(Engine, "step", around_step, failed):
        yield


def _forward(observers: Listeners, engine: Engine, gradients: Gradients, event: StepEvent) -> None:
    """Forward an event of a step to the observers; collect the gradients in `gradients`."""
    # a master is what the optimizer steps for a parameter, or a view of it
    weights = engine.weights
    masters = dict(zip(weights.stepped_names, weights.master_weights, strict=True))
    if event.moment is Moment.UNSCALED:
        gradients.update(event.gradients)
        observers.before_step(engine.optimizer, masters, gradients)
    elif event.report is not None and event.report.stepped:
        observers.after_step(engine.optimizer, masters, gradients)
    elif event.report is not None:
        observers.skipped(engine.optimizer, gradients, event.report.why)


@contextmanager
def cast_source(cast: Callable[[], AbstractContextManager[None]], failed: Failed) -> Iterator[None]:
    """Enter `cast()` around each cast of autocast, not around those of half_storage, which emulates FP16 on a CPU."""

    def around(call: Any, *args: Any) -> Any:
        with cast():
            return call(*args)

    with tap(Cast, "__call__", around, failed):
        yield
