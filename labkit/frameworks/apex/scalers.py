"""Where does the scale of each loss stand? Numbers in apex's words, moved by `labkit.amp.decide`.

Source: apex.amp.scaler, LossScaler (names, defaults; a static scale looks at no gradient), and apex.amp.frontend
(state_dict, load_state_dict).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from labkit.amp import PRESETS, ScalerConfig, ScalerState, decide, initial, static


class LossScaler:
    """The scale of one loss.

    Args:
        loss_scale: "dynamic", or a number that never moves.
        min_loss_scale: where backing off stops; None: nowhere.
        max_loss_scale: where growing stops.

    >>> scaler = LossScaler("dynamic")
    >>> scaler.must_skip(found_inf=True), scaler.loss_scale()
    (True, 32768.0)
    """

    def __init__(
        self, loss_scale: float | str, min_loss_scale: float | None = None, max_loss_scale: float = 2.0**24
    ) -> None:
        self.config = _config(loss_scale, min_loss_scale, max_loss_scale)
        self._loss_scale, self._unskipped = initial(self.config).scale, 0  # scripts set them, for lack of another way

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return self.config.dynamic

    def loss_scale(self) -> float:
        """Return what the loss is multiplied by now."""
        return self._loss_scale

    def must_skip(self, found_inf: bool) -> bool:
        """Move the scale after a backward pass; return whether its gradients must not reach the weights."""
        decision = decide(ScalerState(self._loss_scale, self._unskipped), found_inf, self.config)
        self._loss_scale, self._unskipped = decision.after.scale, decision.after.growth_tracker
        return decision.skip


def _config(loss_scale: float | str, least: float | None, most: float) -> ScalerConfig:
    try:
        if loss_scale != "dynamic":
            return static(float(loss_scale), skip_on_inf=False)
        apex = PRESETS["apex"]
        return replace(apex, init_scale=min(apex.init_scale, most), floor=least or apex.floor, cap=most)
    except ValueError as error:
        given = f"loss_scale={loss_scale!r}, min_loss_scale={least!r}, max_loss_scale={most!r}"
        raise ValueError(f"{given}: {error}") from None


def state_of(scalers: Sequence[LossScaler]) -> dict[str, dict[str, Any]]:
    """Return the scale of each loss, and its clean steps since the scale last moved.

    >>> state_of([LossScaler("dynamic")])
    {'loss_scaler0': {'loss_scale': 65536.0, 'unskipped': 0}}
    """
    return {
        f"loss_scaler{i}": {"loss_scale": scaler.loss_scale(), "unskipped": scaler._unskipped}
        for i, scaler in enumerate(scalers)
    }


def load(stored: Mapping[str, Any], scalers: Sequence[LossScaler]) -> None:
    """Go on from what `state_of` returned.

    Raises:
        RuntimeError: it holds something else; then nothing is loaded.

    Warns:
        UserWarning: it is of another number of losses; those that both have are loaded.
    """
    if not isinstance(stored, Mapping) or any("loss_scaler" not in key for key in stored):
        keys = ", ".join(map(repr, stored)) if isinstance(stored, Mapping) else repr(stored)
        raise RuntimeError(
            f"Error(s) in loading state_dict. Unexpected key(s) in state_dict: {keys}. "
            "This is no amp.state_dict(): that of the model or the optimizer is loaded by those."
        )
    if len(stored) != len(scalers):
        warnings.warn(
            f"state_dict contains {len(stored)} entries, while {len(scalers)} loss_scalers are used: give "
            f"amp.initialize num_losses={len(stored)} to go on with all of them.",
            stacklevel=3,
        )
    try:
        states = [ScalerState(float(each["loss_scale"]), int(each["unskipped"])) for each in stored.values()]
    except (KeyError, TypeError, ValueError) as error:
        wrong = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise RuntimeError(f"Error(s) in loading state_dict: {wrong}. Nothing was loaded.") from None
    for scaler, state in zip(scalers, states, strict=False):
        scaler._loss_scale, scaler._unskipped = state.scale, state.growth_tracker


def a_scaler_each(num_losses: int, *knobs: Any) -> list[LossScaler]:
    """Return a scaler with these knobs for each loss.

    Raises:
        ValueError: there are less than one, or a knob is out of its range.
    """
    if not isinstance(num_losses, int) or num_losses < 1:
        raise ValueError(f"num_losses is a whole number, 1 or more; it was given {num_losses!r}")
    return [LossScaler(*knobs) for _ in range(num_losses)]
