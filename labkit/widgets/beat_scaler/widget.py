"""Can a hand choose the loss scale better than a scaler can? A minute to find out.

Idea: this widget is a wire, like the live training, whose thread, phases and outbox it uses. The state is in `Duel`,
the words in `words`, and the drawing in `view.js`.

Invariant: every command of the browser is answered by a frame that names the command's number.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labkit.train import TASKS, Task
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import png
from labkit.widgets.beat_scaler.controller import LOG2_RANGE, Duel, Move, Show, Side
from labkit.widgets.beat_scaler.figure import WHY_STATIC, static_duel
from labkit.widgets.beat_scaler.runs import TASK, MakeRun, make_run
from labkit.widgets.driven.thread import Driver
from labkit.widgets.driven.widget import DrivenWidget
from labkit.widgets.live.outbox import Send, Sender, pack
from labkit.widgets.live.state import Button, Phase, enabled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BeatTheScaler(DrivenWidget):
    """A game: keep the loss scale of a real training in its window, beside a dynamic scaler that does the same.

    Args:
        task: what both train; a name in `TASKS`, or a Task.
        seed: decides first weights, batches, and how the loss's weight wanders.
        steps: how long the game is; at 8 steps a second, 480 are a minute.
        pace: steps a second at most.

    Everything the learner can press is here for code too: `press("start")`, `move(12)`, `show(True)`.

    Raises:
        ValueError: an unknown task, steps less than 1, or a pace that is not positive.

    >>> game = BeatTheScaler(seed=1, steps=20)
    >>> game.phase, game.duel.log2_scale
    (<Phase.IDLE: 'idle'>, 16)
    >>> game.close()
    """

    _esm = script("beat_scaler")
    _css = style("beat_scaler")

    def __init__(
        self,
        task: Task | str = TASK,
        seed: int = 0,
        *,
        steps: int = 480,
        pace: float = 8.0,
        make_run: MakeRun = make_run,
    ) -> None:
        if not isinstance(task, Task) and task not in TASKS:
            raise ValueError(f"task is one of {', '.join(map(repr, TASKS))}; it was given {task!r}")
        chosen = task if isinstance(task, Task) else TASKS[task]
        self.duel = Duel(chosen, seed, steps=steps, pace=pace, make_run=make_run)
        self.outbox = DuelOutbox(self.duel, self._send_frame)
        self.driver = Driver(self.duel, self.outbox)
        super().__init__()
        self.on_msg(self._hear)
        atexit.register(self.driver.close)

    @property
    def phase(self) -> Phase:
        """What the game does now."""
        return self.duel.phase

    @property
    def sentence(self) -> str:
        """How the game stands, in words."""
        return self.duel.sentence()

    def press(self, button: str) -> None:
        """Press "start", "pause", "stop" or "reset"; returns at once."""
        self.driver.command(Button(button))

    def move(self, log2_scale: int) -> None:
        """Put your scale to 2^log2_scale from the next step on; returns at once."""
        self.driver.command(Move(log2_scale))

    def show(self, window: bool = True) -> None:
        """Show the window of good scales during the game, or hide it; returns at once."""
        self.driver.command(Show(window))

    def figure(self) -> Figure:
        """Return a picture of the game so far that stands still."""
        return static_duel(self.duel, why="")

    def close(self) -> None:
        """End the game's thread and take the widget down."""
        if hasattr(self, "driver"):  # ipywidgets closes a widget too whose arguments were refused
            atexit.unregister(self.driver.close)
            self.driver.close()
        super().close()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        data = {**data, "text/plain": f"{self.sentence}\n{WHY_STATIC}"}
        if self.duel.steps_done:
            data["image/png"] = png(static_duel(self.duel))
        return data, metadata

    def _command(self, content: dict[str, Any]) -> Button | Move | Show:
        return command_of(content)


def command_of(content: dict[str, Any]) -> Button | Move | Show:
    """Return the command in a browser's message.

    Raises:
        ValueError: it holds none.

    >>> command_of({"do": "move", "log2_scale": 12, "number": 3})
    Move(log2_scale=12)
    """
    if content.get("do") == "press":
        return Button(content["button"])
    if content.get("do") == "move":
        return Move(int(content["log2_scale"]))
    if content.get("do") == "show":
        return Show(bool(content["window"]))
    raise ValueError(f'a message says {{"do": "press", "move", "show", "hello" or "drawn"}}; it was given {content!r}')


class DuelOutbox(Sender):
    """What the browser was told of a game already, and what it must be told next."""

    def __init__(self, duel: Duel, send: Send, **clock: Callable[[], float]) -> None:
        self.duel = duel
        super().__init__(send, **clock)

    def forget(self) -> None:
        """Tell everything from the start with the next frame."""
        self._side: Side | None = None
        self._told = 0

    def contents(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the steps since the last frame, yours and the scaler's, and the state beside them."""
        duel = self.duel
        whole = self._side is not duel.yours or self._side is None
        if whole:
            self._side, self._told = duel.yours, 0
        new = slice(self._told, duel.steps_done)
        self._told = duel.steps_done
        buffers = [_columns(side, new) for side in (duel.yours, duel.scalers)]
        return {"whole": whole, **state(duel)}, buffers


def _columns(side: Side | None, new: slice) -> bytes:
    steps = side.steps[new] if side else []
    return pack([(s.loss, s.scale, s.skipped, s.keeps_from, s.overflows_at) for s in steps])


def state(duel: Duel) -> dict[str, Any]:
    """Return what the browser shows beside the curves, as JSON."""
    yours, scaler = duel.tallies()
    return {
        "title": "Beat the scaler",
        "about": f"{duel.task.name.replace('_', ' ')}, seed {duel.seed}",
        "phase": duel.phase.value,
        "enabled": sorted(enabled(duel.phase) - {Button.STEP}),
        "building": duel.building,
        "step": duel.steps_done,
        "total": duel.total,
        "range": list(LOG2_RANGE),
        "log2_scale": duel.log2_scale,
        "in_sight": duel.in_sight,
        "told": duel.told,
        "skipped": [yours.skipped, scaler.skipped],
        "useful": [yours.useful, scaler.useful] if duel.told else None,
        "sentence": duel.sentence(),
        "notice": duel.notice,
    }
