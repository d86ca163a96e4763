"""Loss scalers replayed on a recorded training: one with four sliders, and those of six frameworks.

A trace has for each step the scale from which it overflows, and the scale below which it loses
gradients; the window between them is drawn behind the scale. The page replays the scaler whenever a
slider moves (replay.js). The presets are replayed twice: with the settings of their frameworks, and
with the same start and interval, so that only the rule differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from labkit.amp import PRESETS, ScalerConfig
from labkit.formats.arguments import require_kind
from labkit.widgets.base.figures import (
    FORMAT_COLOURS,
    Curve,
    Panel,
    on_any_page,
    steps_figure,
    still,
    why_still,
)
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.scaler_timeline.trace import (
    OVERFLOWS_FROM,
    Replay,
    Trace,
    config_state,
    recorded_trace,
    replay,
    source,
    trace_state,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WHY_STATIC = why_still(
    "to turn its knobs, or set them in code (growth_interval, ...; alike) and display it again"
)
# The number of steps of the recorded trace that a picture has room for.
STEPS = 400
LOG2_SCALES = range(33)
KNOBS = ("init_log2_scale", "growth_factor", "backoff_factor", "growth_interval")
# The number of steps, the first scale and the growth interval of presets that start alike.
ALIKE_STEPS = 400
ALIKE_SCALE = 2.0**22
ALIKE_INTERVAL = 20


@on_any_page
def static_timeline(
    replays: Mapping[str, Replay], trace: Trace, *, why: str = WHY_STATIC
) -> Figure:
    """Draw the scales of one or more scalers on a trace, one under another.

    Args:
        replays: Name -> replay; a single replay may have the name "".
        trace: The trace.
        why: The text below the picture.
    """
    steps = max(map(len, replays.values()))
    # The log2 of 0 is -inf: gradients that are all 0 overflow at no scale.
    with np.errstate(divide="ignore"):
        overflows = np.log2(OVERFLOWS_FROM) - np.log2(trace.largest[:steps])
    window = (overflows, trace.keeps_from[:steps])
    panels = []
    for name, run in replays.items():
        crosses = [int(step) for step in np.flatnonzero(run.skipped) + 1]
        title = f"{name}: {run.skips} skipped" if name else f"Loss scale, {run.skips} skipped ×"
        scales = np.log2(run.scale).tolist()
        curve = Curve(scales, FORMAT_COLOURS["FP16"], crosses=crosses)
        panels.append(Panel(title, "scale", [curve], window))
    return steps_figure(panels, steps, source(trace), why)


class ScalerTimeline(LabWidget, folder="scaler_timeline"):
    """Loss scale at each step of a recorded training, under a scaler with these four knobs.

    Args:
        trace: The recorded training; None for that of `recorded_trace`. `measure_trace` records
            others.
        steps: The number of its steps to replay; all if the trace is shorter.
        init_log2_scale: The exponent of the first scale, 0 to 32.
        growth_factor: The factor by which the scale grows.
        backoff_factor: The factor by which the scale falls after a step that overflows.
        growth_interval: The number of clean steps in a row after which the scale grows.

    The last four are traits, which can be read and set. `config`, `replay` and `sentence` can be
    read; the page sets `sentence` when it shows the widget.

    Raises:
        TraitError: A knob is out of its range; the message names the range.
        TypeError: `steps` is not an int.
        ValueError: `steps` is less than 1.

    >>> timeline = ScalerTimeline(growth_interval=10)
    >>> timeline.config.growth_interval, len(timeline.replay)
    (10, 400)
    """

    init_log2_scale = traitlets.Int(16).tag(sync=True)
    growth_factor = traitlets.Float(2.0).tag(sync=True)
    backoff_factor = traitlets.Float(0.5).tag(sync=True)
    growth_interval = traitlets.Int(20).tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _kind = traitlets.Unicode("timeline").tag(sync=True)
    _trace = traitlets.Dict().tag(sync=True)
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
        require_kind(steps, int, "steps")
        if steps < 1:
            raise ValueError(f"steps: expected 1 or more, got {steps}")
        self.trace = recorded_trace() if trace is None else trace
        self.steps = min(steps, len(self.trace))
        super().__init__(
            init_log2_scale=init_log2_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=growth_interval,
            _trace=trace_state(self.trace, self.steps),
            _about={
                "steps": self.steps,
                "source": source(self.trace),
                "config": config_state(ScalerConfig()),
            },
        )

    @property
    def config(self) -> ScalerConfig:
        """The scaler with the values of the knobs."""
        return _config(**self._knobs)

    @property
    def _knobs(self) -> dict[str, Any]:
        """The values of the knobs by name."""
        return {name: getattr(self, name) for name in KNOBS}

    @traitlets.validate(*KNOBS)
    def _valid_knob(self, proposal: dict[str, Any]) -> Any:
        try:
            _config(**{**self._knobs, proposal["trait"].name: proposal["value"]})
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from error
        return proposal["value"]

    @property
    def replay(self) -> Replay:
        """What the scaler does on the trace."""
        return replay(self.config, self.trace, self.steps)

    def figure(self) -> Figure:
        """Return a still picture, for reports and for hosts without widgets."""
        return static_timeline({"": self.replay}, self.trace, why="")

    def still(self) -> dict[str, Any]:
        run = self.replay
        words = (
            f"{run.skips} of {len(run)} steps are skipped, {int(run.lossy.sum())} lose gradients."
        )
        return still(words, WHY_STATIC, static_timeline({"": run}, self.trace))


def _config(
    init_log2_scale: int, growth_factor: float, backoff_factor: float, growth_interval: int
) -> ScalerConfig:
    """Return the scaler with the values of the knobs.

    Raises:
        ValueError: A knob is out of its range.
    """
    if init_log2_scale not in LOG2_SCALES:
        raise ValueError(
            f"init_log2_scale: expected 0 to {LOG2_SCALES[-1]}, got {init_log2_scale!r}"
        )
    return ScalerConfig(2.0**init_log2_scale, growth_factor, backoff_factor, growth_interval)


class ScalerPresets(LabWidget, folder="scaler_timeline"):
    """The scalers of several frameworks on one recorded training.

    Args:
        trace: The recorded training; None for that of `recorded_trace`.
        presets: Name -> scaler; None for the six of `labkit.amp.PRESETS`.

    The traits `alike` and `selected` can be read and set: with `alike`, all scalers start at 2^22
    and grow after 20 clean steps; `selected` is the name of the preset in the lens. `replays` and
    `sentence` can be read; the page sets `sentence` when it shows the widget.

    Raises:
        TraitError: `selected` is set to a name that is not one of the presets.
        ValueError: `presets` is empty.

    >>> presets = ScalerPresets()
    >>> presets.replays["torch"].skips < presets.replays["DeepSpeed"].skips
    True
    """

    alike = traitlets.Bool(True).tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _kind = traitlets.Unicode("presets").tag(sync=True)
    _trace = traitlets.Dict().tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)

    def __init__(
        self, trace: Trace | None = None, presets: Mapping[str, ScalerConfig] | None = None
    ) -> None:
        self.presets = dict(PRESETS if presets is None else presets)
        if not self.presets:
            raise ValueError(
                "there is no preset to show; leave presets out for those of labkit.amp.PRESETS"
            )
        self.trace = recorded_trace() if trace is None else trace
        self._steps = {"alike": min(ALIKE_STEPS, len(self.trace)), "shipped": len(self.trace)}
        self._configs = {
            "alike": {name: alike(row) for name, row in self.presets.items()},
            "shipped": self.presets,
        }
        configs = {
            mode: {name: config_state(row) for name, row in rows.items()}
            for mode, rows in self._configs.items()
        }
        super().__init__(
            selected=next(iter(self.presets)),
            _trace=trace_state(self.trace),
            _about={"source": source(self.trace), "steps": self._steps, "configs": configs},
        )

    @property
    def replays(self) -> dict[str, Replay]:
        """Name -> what the scaler does on the trace, in the mode that is shown."""
        mode = "alike" if self.alike else "shipped"
        return {
            name: replay(row, self.trace, self._steps[mode])
            for name, row in self._configs[mode].items()
        }

    @traitlets.validate("selected")
    def _valid_selected(self, proposal: dict[str, Any]) -> Any:
        name = proposal["value"]
        if name not in self.presets:
            raise traitlets.TraitError(
                f"selected: expected one of {', '.join(self.presets)}, got {name!r}"
            )
        return name

    def still(self) -> dict[str, Any]:
        replays = self.replays
        counts = ", ".join(f"{name} {run.skips}" for name, run in replays.items())
        figure = static_timeline(replays, self.trace)
        return still(f"Skipped steps: {counts}.", WHY_STATIC, figure)


def alike(config: ScalerConfig) -> ScalerConfig:
    """Return a scaler with its own rule, but the start and the interval that all share.

    >>> alike(ScalerConfig(init_scale=2.0**32, growth_interval=1000, hysteresis=2)).hysteresis
    2
    """
    return replace(config, init_scale=ALIKE_SCALE, growth_interval=ALIKE_INTERVAL)
