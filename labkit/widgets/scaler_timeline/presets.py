"""In what do six frameworks' scalers differ, once they meet the same gradients? Six lines, one under another.

Idea: each preset is replayed on the same trace, twice: as it ships, and with the same start and interval for all, so
that only the rule is left to differ. Both are known before the first picture; the browser only chooses.

Invariant: `replays` belongs to the present `alike`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import traitlets

from labkit.amp import PRESETS, ScalerConfig
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still
from labkit.widgets.base.number_words import percent, power, short
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.scaler_timeline.figure import WHY_STATIC, static_timeline
from labkit.widgets.scaler_timeline.replay import Replay, packed, replay, source, window
from labkit.widgets.scaler_timeline.trace import Trace, recorded_trace

ALIKE_STEPS = 400
ALIKE_SCALE = 2.0**22
ALIKE_INTERVAL = 20


class ScalerPresets(LabWidget):
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

    _esm = script("scaler_timeline")
    _css = style("scaler_timeline")

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
        super().__init__(
            selected=next(iter(self.presets)),
            _modes={mode: self._described(mode, rows) for mode, rows in configs.items()},
            _alike=[packed(what) for what in self._replays["alike"].values()],
            _shipped=[packed(what) for what in self._replays["shipped"].values()],
            _window=window(self.trace),
            _about={"source": source(self.trace), "steps": steps},
        )
        self._follow()

    @property
    def replays(self) -> dict[str, Replay]:
        """What each scaler did, as `alike` says."""
        return self._replays["alike" if self.alike else "shipped"]

    @traitlets.validate("selected")
    def _valid_selected(self, proposal: dict[str, Any]) -> str:
        value: str = proposal["value"]
        if value not in self.presets:
            raise traitlets.TraitError(f"there is no preset {value!r}; there are {', '.join(self.presets)}")
        return value

    @traitlets.observe("alike", "selected")
    def _follow(self, _change: object = None) -> None:
        mode = self._modes.get("alike" if self.alike else "shipped")
        if mode:
            self.sentence = next(row["sentence"] for row in mode["rows"] if row["name"] == self.selected)

    def _described(self, mode: str, configs: Mapping[str, ScalerConfig]) -> dict[str, Any]:
        rows = [
            {"name": name, **knobs(config), **_fared(what), "sentence": preset_sentence(name, config, what)}
            for (name, config), what in zip(configs.items(), self._replays[mode].values(), strict=True)
        ]
        return {"steps": len(next(iter(self._replays[mode].values()))), "rows": rows}

    def still(self) -> dict[str, Any]:
        """Return what is shown where widgets do not run."""
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


def _fared(what: Replay) -> dict[str, str]:
    return {"skips": str(what.skips), "lossy": percent(float(what.lossy.mean()))}


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
