"""What does each knob of a loss scaler do? Four sliders, and its saw-tooth on gradients that were really there.

Idea: the trace of a real training says at which scale each step overflows and below which it loses gradients; that is
the window behind the picture. Wherever the sliders stand, `advance` runs through the steps in a millisecond, and the
browser draws what comes back. While the hand rests, that is done ahead for every place where one slider can go.

Invariant: `replay` and `sentence` always belong to the present `config`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import traitlets

from labkit.amp import ScalerConfig
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still
from labkit.widgets.base.number_words import power, short
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.scaler_timeline.figure import WHY_STATIC, static_timeline
from labkit.widgets.scaler_timeline.replay import packed, replay, sentence, source, window
from labkit.widgets.scaler_timeline.trace import Trace, recorded_trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = 400  # of the recorded trace: what a picture has room for
LOG2_SCALES = tuple(range(33))
GROWTH_FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
BACKOFF_FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 7 / 8)
KNOBS = ("init_log2_scale", "growth_factor", "backoff_factor", "growth_interval")
INTERVALS = (1, 2, 3, 5, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 500, 1000, 2000)


class ScalerTimeline(LabWidget):
    """The loss scale, step by step, as a scaler with these four knobs would have moved it on a recorded training.

    Args:
        trace: what the scaler meets; None takes the one that travels with the lab (`measure_trace` makes others).
        steps: how many of its steps; fewer where the trace is shorter.
        init_log2_scale, growth_factor, backoff_factor, growth_interval: where the sliders stand first.

    What can be read and set: the four knobs. What can be read: `config`, `replay`, `sentence`.

    Raises:
        TraitError: a knob is out of its range; the message names the range.
        ValueError: steps is less than 1.

    >>> timeline = ScalerTimeline(growth_interval=10)
    >>> timeline.config.growth_interval, len(timeline.replay)
    (10, 400)
    """

    _esm = script("scaler_timeline")
    _css = style("scaler_timeline")

    init_log2_scale = traitlets.Int(16).tag(sync=True)
    growth_factor = traitlets.Float(2.0).tag(sync=True)
    backoff_factor = traitlets.Float(0.5).tag(sync=True)
    growth_interval = traitlets.Int(20).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _kind = traitlets.Unicode("timeline").tag(sync=True)
    _buffer = traitlets.Bytes().tag(sync=True)  # float32, see `packed`
    _now = traitlets.Dict().tag(sync=True)  # the knobs that _buffer belongs to
    _window = traitlets.Bytes().tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        trace: Trace | None = None,
        *,
        steps: int = STEPS,
        init_log2_scale: int = 16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 20,
    ) -> None:
        if steps < 1:
            raise ValueError(f"steps is 1 or more; it was given {steps}")
        self.trace = recorded_trace() if trace is None else trace
        self.steps = min(steps, len(self.trace))
        super().__init__(
            init_log2_scale=init_log2_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            _window=window(self.trace, self.steps),
            _about={"steps": self.steps, "source": source(self.trace), "places": _places()},
        )
        self._follow()
        self.on_msg(self._look_ahead)

    @property
    def config(self) -> ScalerConfig:
        """The scaler that the sliders make."""
        return _config(**self._knobs)

    @property
    def _knobs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in KNOBS}

    @traitlets.validate(*KNOBS)
    def _valid_knob(self, proposal: dict[str, Any]) -> Any:
        try:
            _config(**{**self._knobs, proposal["trait"].name: proposal["value"]})
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from error
        return proposal["value"]

    @traitlets.observe(*KNOBS)
    def _follow(self, _change: object = None) -> None:
        self.replay = replay(self.config, self.trace, self.steps)
        with self.hold_sync():
            self._buffer = packed(self.replay)
            self.sentence = sentence(self.replay)
            self._now = {**self._knobs, "sentence": self.sentence}

    def _look_ahead(self, _widget: object, content: Any, _buffers: object) -> None:
        """Send what is drawn at every place that one slider can go to while the others stay: {"ahead": knobs}."""
        knobs = content.get("ahead") if isinstance(content, dict) else None
        if not isinstance(knobs, dict) or sorted(knobs) != sorted(KNOBS):
            return
        places = [{**knobs, name: value} for name, axis in self._about["places"].items() for value in axis["values"]]
        found = [replay(_config(**place), self.trace, self.steps) for place in places]
        said = [{**place, "sentence": sentence(what)} for place, what in zip(places, found, strict=True)]
        self.send({"kind": "ahead", "places": said}, [packed(what) for what in found])

    def figure(self) -> Figure:
        """Return a picture that stands still, for reports and for hosts without widgets."""
        return static_timeline({"": self.replay}, self.trace, why="")

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
        return still(self.sentence, WHY_STATIC, static_timeline({"": self.replay}, self.trace))


def _config(init_log2_scale: int, growth_factor: float, backoff_factor: float, growth_interval: int) -> ScalerConfig:
    if init_log2_scale not in LOG2_SCALES:
        raise ValueError(f"init_log2_scale goes from 0 to {LOG2_SCALES[-1]}; it was given {init_log2_scale!r}")
    return ScalerConfig(2.0**init_log2_scale, growth_factor, backoff_factor, growth_interval)


def _places() -> dict[str, dict[str, list[Any]]]:
    """Return where each slider can stand, and what it says there."""
    return {
        "init_log2_scale": {"values": list(LOG2_SCALES), "texts": [power(2.0**k) for k in LOG2_SCALES]},
        "growth_factor": {"values": list(GROWTH_FACTORS), "texts": [f"× {short(f)}" for f in GROWTH_FACTORS]},
        "backoff_factor": {"values": list(BACKOFF_FACTORS), "texts": [f"× {short(f)}" for f in BACKOFF_FACTORS]},
        "growth_interval": {"values": list(INTERVALS), "texts": [_clean_steps(n) for n in INTERVALS]},
    }


def _clean_steps(count: int) -> str:
    return "1 clean step" if count == 1 else f"{count:,} clean steps"
