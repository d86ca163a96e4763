"""How does torch.amp write down a loss scaler?

Idea: torch's GradScaler keeps knobs and state in one dict; here they are two values. Translating both ways lets a run
begin in one and go on in the other. `TorchState` is the half of our GradScaler that only keeps, tells and stores.

Invariant: going there and back keeps the scale, the tracker, the factors and the interval.

Source: torch.amp.GradScaler, 2.13 (keys, names, messages).
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState  # torch's own, since libraries compare stages with `is`

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


class Readings:
    """The numbers in small tensors, each read again only after somebody wrote to it: a reading makes the host wait."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Tensor, int, float]] = {}  # holds the tensor, so that its id stays its own

    def read(self, tensor: Tensor) -> float:
        """Return the number in a 1-element tensor.

        >>> readings, scale = Readings(), torch.tensor(8.0)
        >>> readings.read(scale), readings.read(scale.mul_(2))
        (8.0, 16.0)
        """
        known = self._seen.get(id(tensor))
        if known is None or known[1] != tensor._version:
            known = self._seen[id(tensor)] = (tensor, tensor._version, float(tensor))
        return known[2]

    def write(self, tensor: Tensor, value: float) -> None:
        """Fill a tensor with a number that its dtype holds exactly, and remember it without reading."""
        tensor.fill_(value)
        self._seen[id(tensor)] = (tensor, tensor._version, value)

    def clear(self) -> None:
        """Let all tensors go."""
        self._seen.clear()


def untouched() -> dict[str, Any]:
    """Return the record of an optimizer that was not met since the last update."""
    return {"stage": OptState.READY, "found_inf_per_device": {}}


def gradients_of(optimizer: torch.optim.Optimizer, allow_fp16: bool) -> Iterator[Tensor]:
    """Yield the tensors in which an optimizer's gradients lie; of sparse ones, the values."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise AttributeError(f"{type(optimizer).__name__} has no param_groups: step and unscale_ take the optimizer.")
    for parameter in (parameter for group in groups for parameter in group["params"]):
        if not isinstance(parameter, Tensor):
            raise AssertionError(f"expected param to be torch.Tensor, got {type(parameter).__name__}")
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.dtype == torch.float16 and not allow_fp16:
            raise ValueError(
                "Attempting to unscale FP16 gradients. Divided by the scale, small ones would underflow in FP16: keep "
                "the weights in FP32 and let autocast cast them, or step FP32 master weights (labkit.amp.Weights)."
            )
        if gradient.is_sparse and gradient.dtype == torch.float16:
            gradient = parameter.grad = gradient.coalesce()  # adds up duplicates, which may overflow: look after that
        yield gradient._values() if gradient.is_sparse else gradient


def _available(device: str) -> bool:
    """Whether there is such a device; warn in torch's words where CUDA is asked for and not there."""
    if device != "cuda" or not torch.cuda.amp.common.amp_definitely_not_available():
        return True
    warnings.warn(
        'torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling. On a CPU, say GradScaler("cpu").',
        stacklevel=3,
    )
    return False


class TorchState:
    """Knobs, scale and tracker of a GradScaler, under torch's names: told, set, stored, loaded, pickled."""

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = device
        self._enabled = enabled and _available(device)
        if self._enabled and growth_factor <= 1.0:
            raise AssertionError(f"The growth factor must be > 1.0. It was given {growth_factor}; 2 is usual.")
        if self._enabled and backoff_factor >= 1.0:
            raise AssertionError(f"The backoff factor must be < 1.0. It was given {backoff_factor}; 0.5 is usual.")
        self._init_scale = init_scale
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._init_growth_tracker = 0
        self._scale: Tensor | None = None  # made by the first call of scale(), on the device of its argument
        self._growth_tracker: Tensor | None = None
        self._per_optimizer_states: dict[int, dict[str, Any]] = defaultdict(untouched)
        self._readings = Readings()
        if self._enabled:
            self._config()

    def _config(self) -> ScalerConfig:
        """Return the knobs as a value, which refuses what is out of range."""
        return ScalerConfig(self._init_scale, self._growth_factor, self._backoff_factor, self._growth_interval)

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        if self._growth_tracker is not None:
            raise AssertionError("_growth_tracker initialized before _scale")
        self._scale = torch.full((), self._init_scale, dtype=torch.float32, device=dev)
        self._growth_tracker = torch.full((), self._init_growth_tracker, dtype=torch.int32, device=dev)

    def _set(self, **knob: Any) -> None:
        ScalerConfig(**knob)
        self.__dict__.update({f"_{name}": value for name, value in knob.items()})

    def is_enabled(self) -> bool:
        """Return whether this scaler scales."""
        return self._enabled

    def get_scale(self) -> float:
        """Return the scale as a number, 1.0 if scaling is disabled."""
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else self._readings.read(self._scale)

    def _get_scale_async(self) -> Tensor | None:
        return self._scale

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        tracker = self._growth_tracker
        return self._init_growth_tracker if tracker is None else int(self._readings.read(tracker))

    def get_growth_factor(self) -> float:
        """Return what the scale is multiplied by when it grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by when it grows; more than 1."""
        self._set(growth_factor=new_factor)

    def get_backoff_factor(self) -> float:
        """Return what the scale is multiplied by after inf or NaN."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set what the scale is multiplied by after inf or NaN; between 0 and 1."""
        self._set(backoff_factor=new_factor)

    def get_growth_interval(self) -> int:
        """Return the number of clean steps in a row after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of clean steps in a row after which the scale grows; 1 or more.

        If more are counted already, the next clean step grows the scale; torch's would never grow again.
        """
        self._set(growth_interval=new_interval)

    def state_dict(self) -> dict[str, Any]:
        """Return scale, factors, interval and tracker under torch's keys; an empty dict if scaling is disabled."""
        if not self._enabled:
            return {}
        return state_dict(ScalerState(self.get_scale(), self._get_growth_tracker()), self._config())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state_dict, of this class or of torch's.

        Raises:
            RuntimeError: it is empty, as that of a disabled scaler.
            ValueError: keys are missing, or a value is out of range; then nothing is loaded.
        """
        if not self._enabled:
            return
        if len(state_dict) == 0:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler. "
                "Load one that was saved with scaling enabled, or begin with a new GradScaler."
            )
        state, config = from_state_dict(state_dict)
        self._init_scale, self._init_growth_tracker = state.scale, state.growth_tracker
        self._growth_factor, self._backoff_factor = config.growth_factor, config.backoff_factor
        self._growth_interval = config.growth_interval
        if self._scale is not None:
            self._scale.fill_(state.scale)
        if self._growth_tracker is not None:
            self._growth_tracker.fill_(state.growth_tracker)

    def __getstate__(self) -> dict[str, Any]:
        if self._enabled and self._per_optimizer_states:
            raise AssertionError(
                "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end after "
                "scaler.update()."
            )
        numbers = {"_init_scale": self.get_scale(), "_init_growth_tracker": self._get_growth_tracker()}
        made_anew = {"_scale": None, "_growth_tracker": None, "_readings": Readings()}
        return {**self.__dict__, **(numbers if self._enabled else {}), **made_anew}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
