"""torch.amp.GradScaler with the lab's rule for the scale.

Idea: the rule is `labkit.amp.advance`, a function of numbers. The rest is the behaviour of torch's
class that libraries rely on. The order of calls is scale, unscale_, step, update. Tensors stay on
their device, and each optimizer has one record. torch's single state dict is converted from and to
the lab's configuration and state. Private names that libraries use exist, too (`_scale`,
`_per_optimizer_states`, `_unscale_grads_` ...).

Invariant: in every correct use, scale, tracker and parameters are equal to torch.amp.GradScaler's,
bit for bit. Silent faults of torch's are fixed:

- The scale never falls to 0, and a growth_interval below the tracker does not stop growth
  (`advance`).
- A closure raises an error however it is passed, as do scales and factors out of range.
- An optimizer without gradients steps.
- A scale below 1 that turns a finite gradient into inf skips the step. Only then may a fused
  optimizer's last bit differ: its gradients are multiplied by the reciprocal, not divided.

Source: torch.amp.GradScaler, 2.13 (signatures, order, keys, names, messages);
torch.distributed.fsdp.sharded_grad_scaler, 2.13 (arguments and their order, FP16 gradients and
losses).
"""

from __future__ import annotations

import inspect
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

# torch's own, since libraries compare stages with `is`
from torch.amp.grad_scaler import OptState

from labkit.amp import ScalerConfig, ScalerState, advance
from labkit.amp.distributed.group import raising_rank_lost
from labkit.amp.loss_scaling.readings import Readings
from labkit.instrument.events import LossScaled, UnscaleBegins
from labkit.instrument.sources import reported_step
from labkit.instrument.stream import STREAM

_KNOBS = ("growth_factor", "backoff_factor", "growth_interval")
_KEYS = ("scale", *_KNOBS, "_growth_tracker")


def state_dict(state: ScalerState, config: ScalerConfig) -> dict[str, Any]:
    """Return a state dict for `torch.amp.GradScaler.load_state_dict`.

    Raises:
        ValueError: the scaler is static, which torch does not support.

    >>> state_dict(ScalerState(1024.0, 7), ScalerConfig(growth_interval=100))["_growth_tracker"]
    7
    """
    if not config.dynamic:
        raise ValueError(
            "torch.amp.GradScaler is always dynamic; this scaler is static at "
            f"{config.init_scale:g}"
        )
    knobs = {knob: getattr(config, knob) for knob in _KNOBS}
    return {"scale": state.scale, **knobs, "_growth_tracker": state.growth_tracker}


def from_state_dict(stored: Mapping[str, Any]) -> tuple[ScalerState, ScalerConfig]:
    """Return state and configuration from a `torch.amp.GradScaler.state_dict()`.

    The current scale becomes init_scale.

    Raises:
        ValueError: keys are missing, as in the empty dict of a disabled GradScaler; or a value is
            out of the range of `ScalerConfig`, as the scale of 0 that torch's reaches after 166
            overflows in a row.
    """
    missing = [key for key in _KEYS if key not in stored]
    if missing:
        raise ValueError(
            f"expected a GradScaler state_dict with {list(_KEYS)}, got one without {missing}"
        )
    scale = float(stored["scale"])
    knobs = {knob: stored[knob] for knob in _KNOBS}
    config = ScalerConfig(init_scale=scale, **knobs)
    return ScalerState(scale, int(stored["_growth_tracker"])), config


def _new_record() -> dict[str, Any]:
    """Return the record of an optimizer that has not been used since the last update."""
    return {"stage": OptState.READY, "found_inf_per_device": {}}


def gradients_of(optimizer: torch.optim.Optimizer, allow_fp16: bool) -> Iterator[Tensor]:
    """Yield an optimizer's gradients; of sparse ones, the values."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise AttributeError(
            f"{type(optimizer).__name__} has no param_groups: step and unscale_ take the optimizer."
        )
    parameters = [parameter for group in groups for parameter in group["params"]]
    for parameter in parameters:
        if not isinstance(parameter, Tensor):
            raise AssertionError(
                f"expected param to be torch.Tensor, got {type(parameter).__name__}"
            )
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.dtype == torch.float16 and not allow_fp16:
            raise ValueError(
                "Attempting to unscale FP16 gradients. Divided by the scale, small ones would "
                "underflow in FP16: keep the weights in FP32 and let autocast cast them, or step "
                "FP32 master weights (labkit.amp.Weights)."
            )
        if gradient.is_sparse and gradient.dtype == torch.float16:
            # coalesce adds up values of the same index; the sum may overflow, so it is what is
            # checked
            gradient = gradient.coalesce()
            parameter.grad = gradient
        yield gradient._values() if gradient.is_sparse else gradient


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    groups = getattr(optimizer, "param_groups", [])
    return any(parameter.grad is not None for group in groups for parameter in group["params"])


def _available(device: str) -> bool:
    """Return whether the device exists; warn in torch's words if CUDA is missing."""
    if device != "cuda" or not torch.cuda.amp.common.amp_definitely_not_available():
        return True
    warnings.warn(
        "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling. On a CPU, "
        'use GradScaler("cpu").',
        stacklevel=3,
    )
    return False


class GradScaler(torch.amp.GradScaler):
    """Scale losses, unscale gradients and skip steps with inf or NaN.

    It has the methods and arguments of torch.amp.GradScaler.

    Args:
        device: the type of the device of losses, "cuda" or "cpu".
        init_scale: the first scale.
        growth_factor: the factor by which the scale grows; more than 1.
        backoff_factor: the factor of the scale after inf or NaN; between 0 and 1.
        growth_interval: the number of clean steps in a row after which the scale grows.
        enabled: if False, `step` only steps the optimizer, and the other methods do nothing.

    Raises:
        AssertionError: growth_factor is not above 1, or backoff_factor not below 1.
        ValueError: another value is out of its range; torch itself accepts -1, 0 and NaN.

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> optimizer, scaler = torch.optim.SGD([weight], lr=0.5), GradScaler("cpu", init_scale=1024.0)
    >>> scaler.scale(weight.sum()).backward()
    >>> weight.grad
    tensor([1024.])
    >>> scaler.step(optimizer)
    >>> scaler.update()
    >>> weight.item(), scaler.state_dict()["_growth_tracker"]
    (0.5, 1)
    """

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
            raise AssertionError(
                f"The growth factor must be > 1.0. Got {growth_factor}; 2 is usual."
            )
        if self._enabled and backoff_factor >= 1.0:
            raise AssertionError(
                f"The backoff factor must be < 1.0. Got {backoff_factor}; 0.5 is usual."
            )
        self._init_scale = init_scale
        self._init_growth_tracker = 0
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        # made by the first call of scale(), on the device of its argument
        self._scale: Tensor | None = None
        self._growth_tracker: Tensor | None = None
        self._per_optimizer_states: dict[int, dict[str, Any]] = defaultdict(_new_record)
        self._readings = Readings()
        if self._enabled:
            # raises an error for values out of range
            self._config()

    def _config(self) -> ScalerConfig:
        return ScalerConfig(
            self._init_scale, self._growth_factor, self._backoff_factor, self._growth_interval
        )

    def _set(self, **knobs: Any) -> None:
        """Set factors or the interval, if all of them are in their range."""
        # raises an error for values out of range
        ScalerConfig(**knobs)
        for name, value in knobs.items():
            setattr(self, f"_{name}", value)

    def get_scale(self) -> float:
        """Return the scale as a number, 1.0 if scaling is disabled."""
        if not self._enabled:
            return 1.0
        if self._scale is None:
            return self._init_scale
        return self._readings.read(self._scale)

    def _get_growth_tracker(self) -> int:
        if self._growth_tracker is None:
            return self._init_growth_tracker
        return int(self._readings.read(self._growth_tracker))

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows; more than 1."""
        self._set(growth_factor=new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor of the scale after inf or NaN; between 0 and 1."""
        self._set(backoff_factor=new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of clean steps in a row after which the scale grows; 1 or more.

        If the tracker is above it already, the next clean step grows the scale; torch's would never
        grow again.
        """
        self._set(growth_interval=new_interval)

    def state_dict(self) -> dict[str, Any]:
        """Return scale, factors, interval and tracker by torch's keys.

        The dict is empty if scaling is disabled.
        """
        if not self._enabled:
            return {}
        return state_dict(ScalerState(self.get_scale(), self._get_growth_tracker()), self._config())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state_dict of this class or of torch's.

        Raises:
            RuntimeError: the dict is empty, as that of a disabled scaler is.
            ValueError: keys are missing, or a value is out of range; nothing is loaded then.
        """
        if not self._enabled:
            return
        if len(state_dict) == 0:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled "
                "instance of GradScaler. Load one that was saved with scaling enabled, or begin "
                "with a new GradScaler."
            )
        state, config = from_state_dict(state_dict)
        self._init_scale = state.scale
        self._init_growth_tracker = state.growth_tracker
        self._set(**{knob: getattr(config, knob) for knob in _KNOBS})
        if self._scale is not None:
            self._scale.fill_(state.scale)
        if self._growth_tracker is not None:
            self._growth_tracker.fill_(state.growth_tracker)

    def __getstate__(self) -> dict[str, Any]:
        if self._enabled and self._per_optimizer_states:
            raise AssertionError(
                "A GradScaler instance may only be pickled at the beginning of an iteration, or at "
                "the end after scaler.update()."
            )
        state = dict(self.__dict__)
        if self._enabled:
            state["_init_scale"] = self.get_scale()
            state["_init_growth_tracker"] = self._get_growth_tracker()
        # the tensors are made again at the first scale(), with these numbers
        state["_scale"] = None
        state["_growth_tracker"] = None
        state["_readings"] = Readings()
        return state

    def scale(self, outputs: torch.Tensor | Iterable[torch.Tensor]) -> Any:
        """Multiply a tensor, or every tensor in nested lists and tuples, by the scale.

        Other iterables become an iterator of scaled tensors.

        Raises:
            ValueError: outputs is none of these, for instance a dict.
        """
        if not self._enabled:
            return outputs
        STREAM.emit(LossScaled(self.get_scale))
        if isinstance(outputs, Tensor):
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(outputs.device)
            scale, _ = self._check_scale_growth_tracker("scale")
            return outputs * scale.to(device=outputs.device, non_blocking=True)
        if isinstance(outputs, Iterable) and not isinstance(outputs, str | bytes | Mapping):
            scaled = map(self.scale, outputs)
            if isinstance(outputs, list | tuple):
                return type(outputs)(scaled)
            return scaled
        raise ValueError(
            f"outputs must be a Tensor or an iterable of Tensors; got a {type(outputs).__name__}. "
            "Scale the loss alone, or a list of losses."
        )

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        """Multiply an optimizer's gradients in place.

        Args:
            optimizer: the optimizer.
            inv_scale: the factor.
            found_inf: a tensor of 0, in the dtype of the result.
            allow_fp16: accept FP16 gradients rather than raise an error.

        Returns:
            For each device, 1 if any gradient was inf or NaN before, else 0.
        """
        groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        found: dict[torch.device, Tensor] = {}
        with torch.no_grad():
            for gradient in gradients_of(optimizer, allow_fp16):
                groups[gradient.device, gradient.dtype].append(gradient)
            for (device, _), gradients in groups.items():
                if device not in found:
                    found[device] = found_inf.to(device=device, non_blocking=True, copy=True)
                torch._amp_foreach_non_finite_check_and_unscale_(
                    gradients, found[device], inv_scale.to(device=device, non_blocking=True)
                )
        if not found:
            # without gradients, nothing overflowed
            found[found_inf.device] = found_inf.clone()
        return found

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide an optimizer's gradients by the scale, in place, before clipping them.

        Raises:
            RuntimeError: they are unscaled already, or the optimizer has stepped.
            ValueError: gradients are FP16.
        """
        if not self._enabled:
            return
        STREAM.emit(UnscaleBegins(optimizer))
        scale, _ = self._check_scale_growth_tracker("unscale_")
        record = self._per_optimizer_states[id(optimizer)]
        if record["stage"] is OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update(). A "
                "second call would divide by the scale twice: call it once, then step() and "
                "update()."
            )
        if record["stage"] is OptState.STEPPED:
            raise RuntimeError(
                "unscale_() is being called after step(). Call it before step(), or update() first."
            )
        # the reciprocal is computed in FP64, and rounded once to FP32
        inverse = torch.full_like(scale, 1.0 / self.get_scale())
        found = self._unscale_grads_(optimizer, inverse, torch.zeros_like(scale), False)
        # The kernel checks each gradient before it multiplies. With a scale below 1 the factor is
        # above 1, and the product may overflow, so the products are checked as well.
        if self.get_scale() < 1:
            again = self._unscale_grads_(
                optimizer, torch.ones_like(scale), torch.zeros_like(scale), False
            )
            found = {device: torch.maximum(found[device], again[device]) for device in found}
        record["found_inf_per_device"] = found
        record["without_gradients"] = not _has_gradients(optimizer)
        record["stage"] = OptState.UNSCALED

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscale an optimizer's gradients, unless done, and step it if all of them are finite.

        Args:
            optimizer: the optimizer.
            args: arguments of its step.
            kwargs: keyword arguments of its step.

        Returns:
            The result of optimizer.step(*args, **kwargs), or None if the step was skipped.

        Raises:
            RuntimeError: a closure is passed; the optimizer stepped since the last update(); or
                gradients were computed after an unscale_() without gradients.
        """
        if not self._enabled:
            return cast("float | None", optimizer.step(*args, **kwargs))
        with reported_step(STREAM, optimizer, self.get_scale):
            return self._step(optimizer, args, kwargs)

    def _step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float | None:
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError(
                "Closure use is not currently supported if GradScaler is enabled. A closure "
                "computes new gradients inside the step, too late to unscale them: run it before, "
                "then call step(optimizer)."
            )
        self._check_scale_growth_tracker("step")
        record = self._per_optimizer_states[id(optimizer)]
        if record["stage"] is OptState.STEPPED:
            raise RuntimeError(
                "step() has already been called since the last update(). Call update() once at the "
                "end of each iteration, after every optimizer has stepped."
            )
        if record.get("without_gradients") and _has_gradients(optimizer):
            raise RuntimeError(
                "expected gradients before unscale_(), got them after it: they are still "
                "multiplied by the scale. Call scaler.scale(loss).backward(), then unscale_(), "
                "then step()."
            )
        result: float | None
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            result = self._step_fused(optimizer, record, args, kwargs)
        else:
            if record["stage"] is OptState.READY:
                self.unscale_(optimizer)
            result = self._maybe_opt_step(optimizer, record, *args, **kwargs)
        record["stage"] = OptState.STEPPED
        return result

    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> float | None:
        found_inf = any(map(self._readings.read, optimizer_state["found_inf_per_device"].values()))
        if found_inf:
            return None
        return cast("float | None", optimizer.step(*args, **kwargs))

    def _step_fused(
        self, optimizer: Any, record: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> float | None:
        """Step an optimizer that unscales and skips in its own kernel, as torch's fused ones do."""
        if "grad_scaler" in inspect.signature(optimizer.step).parameters:
            warnings.warn(
                "GradScaler is going to stop passing itself as a keyword argument to the passed "
                "optimizer. In the near future GradScaler registers `grad_scale: Tensor` and "
                "`found_inf: Tensor` to the passed optimizer and let the optimizer use them "
                "directly.",
                FutureWarning,
                stacklevel=3,
            )
            return cast("float | None", optimizer.step(*args, **{**kwargs, "grad_scaler": self}))
        scale, _ = self._check_scale_growth_tracker("step")
        if record["stage"] is OptState.READY and self.get_scale() < 1:
            # the optimizer's kernel does not check its products, which may overflow (see unscale_)
            self.unscale_(optimizer)
        if record["stage"] is OptState.READY:
            self._check_inf_per_device(optimizer)
        found = [
            found_inf.to(scale.device, non_blocking=True)
            for found_inf in record["found_inf_per_device"].values()
        ]
        # the user may have set a factor
        preset = getattr(optimizer, "grad_scale", None)
        if record["stage"] is OptState.READY:
            preset = scale if preset is None else scale * preset
        optimizer.grad_scale = preset
        optimizer.found_inf = torch.stack(found).amax(0)
        try:
            return cast("float | None", optimizer.step(*args, **kwargs))
        finally:
            # left behind by an error, they would apply to the next step as well
            del optimizer.grad_scale, optimizer.found_inf

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Update the scale after an iteration from found_inf of its steps, or set it to new_scale.

        Raises:
            AssertionError: nothing was scaled or no optimizer was unscaled or stepped before; or
                new_scale is a tensor on another device, of several elements or with requires_grad.
            ValueError: new_scale is outside the range of normal FP32 numbers.
        """
        if not self._enabled:
            return
        scale, tracker = self._check_scale_growth_tracker("update")
        if new_scale is not None:
            scale.fill_(self._read_new_scale(new_scale))
            self._readings.clear()
        else:
            records = self._per_optimizer_states.values()
            found = [
                found_inf
                for record in records
                for found_inf in record["found_inf_per_device"].values()
            ]
            if not found:
                raise AssertionError(
                    "No inf checks were recorded prior to update. Call step(optimizer) before it."
                )
            state = ScalerState(self.get_scale(), self._get_growth_tracker())
            state = advance(state, any(map(self._readings.read, found)), self._config())
            self._readings.clear()
            self._readings.write(scale, state.scale)
            self._readings.write(tracker, state.growth_tracker)
        self._per_optimizer_states = defaultdict(_new_record)

    def _read_new_scale(self, new_scale: float | Tensor) -> float:
        """Return a new scale as a number, or raise an error that says what was got instead."""
        got = ""
        if isinstance(new_scale, Tensor):
            if (
                new_scale.device.type != self._device
                or new_scale.numel() != 1
                or new_scale.requires_grad
            ):
                got = (
                    f"{new_scale.numel()} elements on {new_scale.device}, "
                    f"requires_grad={new_scale.requires_grad}; this scaler is for {self._device}"
                )
        elif not isinstance(new_scale, int | float):
            got = f"a {type(new_scale).__name__}"
        if got:
            raise AssertionError(
                "new_scale should be a float or a 1-element torch.cuda.FloatTensor or "
                f"torch.FloatTensor with requires_grad=False. Got {got}."
            )
        return ScalerState(float(new_scale)).scale


class ShardedGradScaler(GradScaler):
    """A GradScaler whose processes agree on found_inf.

    Construct it after torch.distributed.init_process_group. After each check for inf and NaN, the
    ranks take the maximum of found_inf, so all of them step, or all skip. Scale and tracker stay
    equal without being sent. A fused optimizer, which skips in its kernel, gets the maximum, too.

    The order of the arguments is that of torch's ShardedGradScaler: backoff_factor comes before
    growth_factor. All but the last are those of `GradScaler`.

    Args:
        process_group: the ranks that agree; None: all.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self.process_group = process_group

    def scale(self, outputs: Any) -> Any:
        """Multiply as `GradScaler.scale` does, but keep the dtype: a loss of FSDP may be FP16."""
        scaled = super().scale(outputs)
        return scaled.to(outputs.dtype) if isinstance(outputs, Tensor) else scaled

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, True)
        worst = torch.stack(
            [each.reshape(()).to(found_inf.device) for each in found.values()]
        ).amax()
        with raising_rank_lost("while it agreed with the others on found_inf", self.process_group):
            dist.all_reduce(worst, dist.ReduceOp.MAX, group=self.process_group)
        return {device: worst.to(device) for device in found}
