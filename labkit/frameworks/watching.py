"""Base class of callbacks that watch a training from its beginning to its end.

The callbacks of Lightning, fastai and the Hugging Face Trainer derive from `Watching`, each in its
own file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from labkit.instrument import Report, Watch, watch
from labkit.instrument.events import OptimizerBegins, OptimizerEnded, StandInStepped
from labkit.instrument.sources import Emitter, Source
from labkit.instrument.stream import STREAM, Listener
from labkit.instrument.taps import tap


class Watching:
    """A `labkit.instrument.watch` on the model of a training, with the options of the constructor.

    If a training ends by an error that its framework reports to no callback, `close()` removes the
    hooks, as does the start of the next training.

    Attributes:
        sources: sources of events that only the framework has.
    """

    sources: ClassVar[tuple[Source, ...]] = ()

    def __init__(self, every: int = 50, **options: Any) -> None:
        super().__init__()
        self.every = every
        self.options = options
        self.seen: Watch | None = None
        self.is_open = False
        self._opened = ExitStack()

    def open(self, model: Any) -> None:
        """Start watching a model."""
        self.close()
        self.seen = watch(model, self.every, **self.options)
        self._opened.enter_context(self.seen)
        self.is_open = True
        self._opened.enter_context(STREAM.subscribed(Listener(self.seen.failed), *self.sources))

    def close(self) -> None:
        """Remove the hooks; the results remain."""
        self.is_open = False
        self._opened.close()

    def report(self) -> Report:
        """Return the results so far.

        Raises:
            RuntimeError: no training has begun.
        """
        if self.seen is None:
            raise RuntimeError(
                "nothing was watched yet: give this callback to a trainer, and train"
            )
        return self.seen.report()


def optimizer_source(optimizer: type, stand_in: type) -> Source:
    """Return the source for optimizers that are not torch's, such as fastai's.

    Args:
        optimizer: a class with `param_groups`, `state` and `step`.
        stand_in: a class whose objects a scaler steps in an optimizer's place; the optimizer itself
            steps afterwards.
    """

    @contextmanager
    def opened(stream: Emitter) -> Iterator[None]:
        def around_step(step: Any, stepped: Any, *args: Any, **kwargs: Any) -> Any:
            stream.emit(OptimizerBegins(stepped))
            result = step(stepped, *args, **kwargs)
            stream.emit(OptimizerEnded(stepped))
            return result

        def around_stand_in(step: Any, stepped: Any, *args: Any, **kwargs: Any) -> Any:
            stream.emit(StandInStepped(stepped))
            return step(stepped, *args, **kwargs)

        with (
            tap(optimizer, "step", around_step, stream.failed),
            tap(stand_in, "step", around_stand_in, stream.failed),
        ):
            yield

    return Source((OptimizerBegins, OptimizerEnded, StandInStepped), opened)
