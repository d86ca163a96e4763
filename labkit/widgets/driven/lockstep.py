"""How do runs train side by side while a hand drives them? Buttons between the steps, and steps that are taken in turn.

Idea: every live widget is the same machine. It knows no thread, no clock, no browser and no torch: somebody calls
`handle(command)` and, while `due`, `tick()`: in the widget a thread, in a test the test. In each step the run beside
goes first, then the learner's.

Invariant: a command takes effect between two steps; an error becomes the phase FAILED and words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from labkit.widgets.driven.state import Button, Phase, press


class Lockstep(ABC):
    """Runs that are driven together; who derives from it says what a step is.

    notice  what the last command met, in words; "" after one that was simply carried out
    error   what ended the training, in words
    """

    buttons: ClassVar[frozenset[Button]] = frozenset(Button)  # others mean nothing

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.notice = self.error = ""
        self._single_steps = 0  # asked for by the step button and not done yet

    @abstractmethod
    def carry_out(self, command: Any) -> None:
        """Do what a command asks that is no button.

        Raises:
            ValueError, TypeError: it cannot be done; the message becomes the notice.
        """

    @abstractmethod
    def begin_again(self) -> None:
        """Forget the runs that Reset shall forget."""

    @property
    @abstractmethod
    def built(self) -> bool:
        """Whether all runs are made."""

    @abstractmethod
    def make(self) -> None:
        """Make the runs that are not there yet."""

    @abstractmethod
    def lead(self) -> bool:
        """Let the run beside do the step that is due, if it has not; return whether it had to."""

    @abstractmethod
    def follow(self) -> None:
        """Let the learner's runs do the step that is due."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the last step is done."""

    # --- commands -----------------------------------------------------------------------------------------------

    def handle(self, command: Any) -> None:
        """Carry out a command; one that cannot be leaves a notice and nothing else."""
        self.notice = ""
        try:
            if isinstance(command, Button):
                self._press(command)
            else:
                self.carry_out(command)
        except (ValueError, TypeError) as error:
            self.notice = f"Not done: {error}"

    def _press(self, button: Button) -> None:
        if button not in self.buttons:
            return
        before, self.phase = self.phase, press(self.phase, button)
        over = before in (Phase.FINISHED, Phase.FAILED)
        if button is Button.RESET or (button is Button.START and over):
            self.begin_again()
            self.error = ""
        single = button is Button.STEP and self.phase is Phase.PAUSED
        self._single_steps = self._single_steps + 1 if single else 0

    def stand(self, phase: Phase) -> None:
        """Enter a phase in which nothing trains."""
        self.phase, self._single_steps = phase, 0

    # --- steps --------------------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether there is a step to do now."""
        return self.phase is Phase.RUNNING or self._single_steps > 0

    @property
    def building(self) -> bool:
        """Whether the next tick begins with making runs, which can take a second or two."""
        return self.due and not self.built

    def build(self) -> None:
        """Make the runs that are not there yet."""
        self._guard(self.make)

    def tick_other(self) -> bool:
        """Bring the run beside to the step that is due; return whether there was anything to do."""
        if self.building:
            self.build()
        return self.due and bool(self._guard(self.lead))

    def tick(self) -> None:
        """Do the step that is due, in all runs; does nothing when none is."""
        self.tick_other()
        if self.due:
            self._guard(self._step)

    def _step(self) -> None:
        self.follow()
        self._single_steps = max(0, self._single_steps - 1)
        if self.complete:
            self.stand(Phase.FINISHED)

    def _guard(self, work: Callable[[], object]) -> object:
        try:
            return work()
        except Exception as error:  # whatever went wrong in the learner's task, the figure has to say it
            self.fail(error)
        return None

    def fail(self, error: Exception) -> None:
        """End the training with an error that the sentence names."""
        self.stand(Phase.FAILED)
        self.error = f"{type(error).__name__}: {error}".rstrip().rstrip(".:") + "."
