"""Base class of callbacks that watch a training from its beginning to its end.

The callbacks of Lightning, fastai and the Hugging Face Trainer derive from `Watching`, each in its own file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from labkit.instrument import Report, Watch, watch
from labkit.instrument.stream import Listeners, tap


class Watching:
    """A `labkit.instrument.watch` on the model of a training, with the options of the constructor.

    If a training ends by an error that its framework reports to no callback, `close()` removes the hooks, as does the
    start of the next training.
    """

    def __init__(self, every: int = 50, **options: Any) -> None:
        super().__init__()
        self.every, self.options = every, options
        self.seen: Watch | None = None
        self.is_open = False

    def open(self, model: Any) -> None:
        """Start watching a model."""
        self.close()
        self.seen = watch(model, self.every, **self.options).__enter__()
        self.is_open = True

    def close(self) -> None:
        """Remove the hooks; the results remain."""
        if self.is_open and self.seen is not None:
            self.is_open = False
            self.seen.__exit__(None, None, None)

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


@contextmanager
def optimizer_source(
    listeners: Listeners, stand_in: type, optimizer: type | None = None
) -> Iterator[None]:
    """Report optimizers that are not torch's, such as fastai's, and the objects that replace them before a scaler.

    stand_in   a class whose objects a scaler steps in an optimizer's place; the optimizer itself steps afterwards
    optimizer  a class with `param_groups`, `state` and `step`; None: torch's, which need no source
    """

    def around_step(step: Any, stepped: Any, *args: Any, **kwargs: Any) -> Any:
        listeners.before_optimizer(stepped, args, kwargs)
        result = step(stepped, *args, **kwargs)
        listeners.after_optimizer(stepped, args, kwargs)
        return result

    def around_stand_in(step: Any, stepped: Any, *args: Any, **kwargs: Any) -> Any:
        listeners.after_step(stepped, {}, {})
        return step(stepped, *args, **kwargs)

    failed = listeners.failed
    own = nullcontext() if optimizer is None else tap(optimizer, "step", around_step, failed)
    with own, tap(stand_in, "step", around_stand_in, failed):
        yield
