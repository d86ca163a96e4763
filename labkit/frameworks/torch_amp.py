"""How does torch.amp write down a loss scaler?

Idea: torch's GradScaler keeps knobs and state in one dict; here they are two values. Translating both ways lets a run
begin in one and go on in the other.

Invariant: going there and back keeps the scale, the tracker, the factors and the interval.

Source: torch.amp.GradScaler.state_dict (keys).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.amp import ScalerConfig, ScalerState

_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


def state_dict(state: ScalerState, config: ScalerConfig) -> dict[str, Any]:
    """Return what `torch.amp.GradScaler.load_state_dict` takes to go on from here.

    Raises:
        ValueError: the scaler is static; torch has no word for that.

    >>> state_dict(ScalerState(1024.0, 7), ScalerConfig(growth_interval=100))["_growth_tracker"]
    7
    """
    if not config.dynamic:
        raise ValueError(f"torch.amp.GradScaler is always dynamic; this scaler is static at {config.init_scale:g}")
    knobs = {key: getattr(config, key) for key in _KEYS[1:4]}
    return {"scale": state.scale, **knobs, "_growth_tracker": state.growth_tracker}


def from_state_dict(stored: Mapping[str, Any]) -> tuple[ScalerState, ScalerConfig]:
    """Return state and knobs from a `torch.amp.GradScaler.state_dict()`; the current scale becomes init_scale.

    Raises:
        ValueError: keys are missing, as in the empty dict of a GradScaler that is not enabled; or a value is none that
            `ScalerConfig` takes, as the scale of 0 that torch's reaches after 166 overflows in a row.
    """
    missing = [key for key in _KEYS if key not in stored]
    if missing:
        raise ValueError(f"a GradScaler state_dict has {list(_KEYS)}; missing here: {missing}")
    config = ScalerConfig(float(stored["scale"]), *(stored[key] for key in _KEYS[1:4]))
    return ScalerState(float(stored["scale"]), int(stored["_growth_tracker"])), config
