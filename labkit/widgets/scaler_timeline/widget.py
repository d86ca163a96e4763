"""Loss scalers replayed on a recorded training: one with four sliders, and those of six frameworks.

Idea: a trace says at which scale each step overflows and below which it loses gradients; that is the window behind the
picture. Wherever the sliders stand, a replay takes a millisecond, and while the hand rests it is done ahead for every
place where one slider can go. The presets are replayed twice: as they ship, and with the same start and interval, so
that only the rule is left to differ.

Invariant: `replay` and `sentence` belong to the present `config`, `replays` to the present `alike`; all panels of the
still picture have the same axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets

from labkit.amp import PRESETS, ScalerConfig
from labkit.widgets.base.figures import (
    FATE_COLOURS,
    FORMAT_COLOURS,
    INK,
    QUIET,
    captioned,
    new_figure,
    on_any_page,
    panel,
    power_ticks,
    still,
    why_still,
)
from labkit.widgets.base.number_words import percent, power, short
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.scaler_timeline.trace import (
    OVERFLOWS_FROM,
    Replay,
    Trace,
    packed,
    recorded_trace,
    replay,
    sentence,
    source,
    window,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WHY_STATIC = why_still("to turn its knobs, or set them in code (growth_interval, ...; alike) and display it again")
STEPS = 400  # of the recorded trace: what a picture has room for
LOG2_SCALES = tuple(range(33))
GROWTH_FACTORS = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0)
BACKOFF_FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 3 / 4, 7 / 8)
KNOBS = ("init_log2_scale", "growth_factor", "backoff_factor", "growth_interval")
INTERVALS = (1, 2, 3, 5, 8, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 500, 1000, 2000)
ALIKE_STEPS = 400
ALIKE_SCALE = 2.0**22
ALIKE_INTERVAL = 20


@on_any_page
def static_timeline(replays: Mapping[str, Replay], trace: Trace, *, why: str = WHY_STATIC) -> Figure:
    """Draw one or more scalers on a trace, name -> replay, one under another."""
    figure = new_figure(9, 1.9 + (2.6 if len(replays) == 1 else 1.3 * len(replays)))
    panels = figure.subplots(len(replays), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    bottom = 1.45 / float(figure.get_figheight())
    figure.subplots_adjust(left=0.09, right=0.97, top=1 - 0.24 * bottom, bottom=bottom, hspace=0.45)
    for axes, (name, what) in zip(panels, replays.items(), strict=True):
        _draw(axes, what, trace)
        skips = f"{what.skips} skipped"
        panel(axes, f"{name}: {skips}" if name else f"Loss scale, {skips} ×")
    panels[-1].set_xlabel("step", fontsize=9, color=QUIET)
    first = next(iter(replays.values()))
    words = f"{sentence(first)} {source(trace)}" if len(replays) == 1 else source(trace)
    return captioned(figure, (0.09, 0.62 * bottom), words, why)


def _draw(axes: Axes, what: Replay, trace: Trace) -> None:
    steps = np.arange(1, len(what) + 1)
    top = np.log2(OVERFLOWS_FROM / np.array(trace.largest[: len(what)]))
    low = np.array(trace.keeps_from[: len(what)], np.float64)
    scale = np.log2(what.scale)
    high = max(float(top.max()), float(scale.max())) + 2
    axes.fill_between(steps, top, high, color=FATE_COLOURS["overflowed"], alpha=0.25, linewidth=0)
    axes.fill_between(steps, 0, low, color=FATE_COLOURS["underflowed"], alpha=0.2, linewidth=0)
    axes.step(steps, scale, where="mid", color=FORMAT_COLOURS["FP16"], linewidth=1.6)
    bad = what.skipped == 1
    axes.plot(steps[bad], scale[bad], "x", color=INK, markersize=5)
    axes.set_ylim(min(0.0, float(scale.min())), high)
    axes.set_xlim(1, len(what))
    power_ticks(axes.set_yticks, range(0, int(high) + 1, 8))


class ScalerTimeline(LabWidget, folders=("scaler_timeline",)):
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
        return still(self.sentence, WHY_STATIC, static_timeline({"": self.replay}, self.trace))


def _config(init_log2_scale: int, growth_factor: float, backoff_factor: float, growth_interval: int) -> ScalerConfig:
    if init_log2_scale not in LOG2_SCALES:
        raise ValueError(f"init_log2_scale goes from 0 to {LOG2_SCALES[-1]}; it was given {init_log2_scale!r}")
    return ScalerConfig(2.0**init_log2_scale, growth_factor, backoff_factor, growth_interval)


def _places() -> dict[str, dict[str, list[Any]]]:
    """Return where each slider can stand, and what it says there."""
    clean_steps = [f"{n:,} clean step{'s' * (n > 1)}" for n in INTERVALS]
    return {
        "init_log2_scale": {"values": list(LOG2_SCALES), "texts": [power(2.0**k) for k in LOG2_SCALES]},
        "growth_factor": {"values": list(GROWTH_FACTORS), "texts": [f"× {short(f)}" for f in GROWTH_FACTORS]},
        "backoff_factor": {"values": list(BACKOFF_FACTORS), "texts": [f"× {short(f)}" for f in BACKOFF_FACTORS]},
        "growth_interval": {"values": list(INTERVALS), "texts": clean_steps},
    }


class ScalerPresets(LabWidget, folders=("scaler_timeline",)):
    """The scalers of several frameworks on one recorded training.

    Args:
        trace: what they meet; None takes the one that travels with the lab.
        presets: name -> scaler; the six of `labkit.amp.PRESETS` unless said otherwise.

    What can be read and set: `alike` (True: all start at 2^22 and wait for 20 clean steps), `selected` (a name). What
    can be read: `replays` (name -> Replay), `sentence`.

    Raises:
        ValueError: there is no preset.

    >>> presets = ScalerPresets()
    >>> presets.replays["torch"].skips < presets.replays["DeepSpeed"].skips
    True
    """

    alike = traitlets.Bool(True).tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _kind = traitlets.Unicode("presets").tag(sync=True)
    _modes = traitlets.Dict().tag(sync=True)  # "alike" and "shipped": the words; each has its buffers below
    _alike = traitlets.List(traitlets.Bytes()).tag(sync=True)  # for each preset, see `packed`
    _shipped = traitlets.List(traitlets.Bytes()).tag(sync=True)
    _window = traitlets.Bytes().tag(sync=True)
    _about = traitlets.Dict().tag(sync=True)

    def __init__(self, trace: Trace | None = None, presets: Mapping[str, ScalerConfig] | None = None) -> None:
        self.presets = dict(PRESETS if presets is None else presets)
        if not self.presets:
            raise ValueError("there is no preset to show; leave presets out for those of labkit.amp.PRESETS")
        self.trace = recorded_trace() if trace is None else trace
        steps = {"alike": min(ALIKE_STEPS, len(self.trace)), "shipped": len(self.trace)}
        configs = {"alike": {name: alike(config) for name, config in self.presets.items()}, "shipped": self.presets}
        self._replays = {
            mode: {name: replay(config, self.trace, steps[mode]) for name, config in rows.items()}
            for mode, rows in configs.items()
        }
        buffers = {f"_{mode}": [packed(what) for what in rows.values()] for mode, rows in self._replays.items()}
        super().__init__(
            selected=next(iter(self.presets)),
            _modes={mode: self._described(mode, rows) for mode, rows in configs.items()},
            **buffers,
            _window=window(self.trace),
            _about={"source": source(self.trace), "steps": steps},
        )
        self._follow()

    @property
    def replays(self) -> dict[str, Replay]:
        """What each scaler did, as `alike` says."""
        return self._replays["alike" if self.alike else "shipped"]

    @traitlets.validate("selected")
    def _valid_selected(self, proposal: dict[str, Any]) -> Any:
        if (name := proposal["value"]) not in self.presets:
            raise traitlets.TraitError(f"there is no preset {name!r}; there are {', '.join(self.presets)}")
        return name

    @traitlets.observe("alike", "selected")
    def _follow(self, _change: object = None) -> None:
        mode = self._modes.get("alike" if self.alike else "shipped")
        if mode:
            self.sentence = next(row["sentence"] for row in mode["rows"] if row["name"] == self.selected)

    def _described(self, mode: str, configs: Mapping[str, ScalerConfig]) -> dict[str, Any]:
        rows = []
        for (name, config), what in zip(configs.items(), self._replays[mode].values(), strict=True):
            fared = {"skips": str(what.skips), "lossy": percent(float(what.lossy.mean()))}
            rows.append({"name": name, **knobs(config), **fared, "sentence": preset_sentence(name, config, what)})
        return {"steps": len(what), "rows": rows}

    def still(self) -> dict[str, Any]:
        return still(self.sentence, WHY_STATIC, static_timeline(self.replays, self.trace))


def alike(config: ScalerConfig) -> ScalerConfig:
    """Return a scaler with its own rule, but the start and the interval that all share.

    >>> alike(ScalerConfig(init_scale=2.0**32, growth_interval=1000, hysteresis=2)).hysteresis
    2
    """
    return replace(config, init_scale=ALIKE_SCALE, growth_interval=ALIKE_INTERVAL)


def knobs(config: ScalerConfig) -> dict[str, str]:
    """Return a scaler's knobs as the table shows them.

    >>> knobs(ScalerConfig(hysteresis=2, cap=2.0**24))
    {'start': '2^16', 'interval': '2,000', 'hysteresis': '2', 'limits': 'up to 2^24'}
    """
    floor = f"from {power(config.floor)}" if config.floor > 2.0**-126 else ""
    cap = f"up to {power(config.cap)}" if config.cap <= 2.0**64 else ""
    return {
        "start": power(config.init_scale),
        "interval": f"{config.growth_interval:,}",
        "hysteresis": short(config.hysteresis),
        "limits": " ".join(part for part in (floor, cap) if part) or "none",
    }


def preset_sentence(name: str, config: ScalerConfig, what: Replay) -> str:
    """Say how a preset fared, and which of its rules made the difference.

    >>> what = replay(ScalerConfig(), Trace("task", "recipe", 0, (2.0**-10,) * 4, (3,) * 4, "cpu", {}, ""))
    >>> preset_sentence("torch", ScalerConfig(), what)
    'torch: no step of 4 is skipped, and the scale stays at 2^16.'
    """
    low, high = float(what.scale.min()), float(what.scale.max())
    moves = f"stays at {power(low)}" if low == high else f"moves between {power(low)} and {power(high)}"
    skips = "no step" if not what.skips else "1 step" if what.skips == 1 else f"{what.skips} steps"
    said = f"{name}: {skips} of {len(what):,} {'are' if what.skips > 1 else 'is'} skipped, and the scale {moves}."
    held = int(what.held.sum())
    if held:
        count = "in a row" if config.consecutive_hysteresis else "since it last grew"
        said += (
            f" {held} of the skips leave{'s' if held == 1 else ''} the scale where it is: with hysteresis "
            f"{config.hysteresis}, it backs off from overflow number {config.hysteresis} on, counted {count}."
        )
    if high == config.cap and not what.skips:
        said += " Its cap keeps it below every overflow."
    return said
