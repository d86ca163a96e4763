"""What is torch.amp.GradScaler, said again with our words inside?

Idea: the whole policy is `labkit.amp.advance`, a function of numbers. What is left is what torch's users and libraries
hold on to: the order of the calls (scale, unscale_, step, update), tensors that stay on their device, one record per
optimizer, and the names that others reach for (`_scale`, `_per_optimizer_states`, `_unscale_grads_` ...).

Invariant: for every use that torch.amp.GradScaler serves well, scale, tracker and parameters are equal to its own, bit
for bit. Where it does harm in silence, this one does not: the scale never falls to 0 (advance), a growth_interval below
the tracker does not stop growth (advance), a closure is refused however it is passed, scales and factors out of range
are refused, an optimizer without gradients just steps, and a scale below 1 that turns a finite gradient into inf skips
(there alone a fused optimizer's last bit may differ: its gradients are multiplied by the reciprocal, not divided).

Source: torch.amp.GradScaler, 2.13 (signatures, order, messages).
"""

from __future__ import annotations

import inspect
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState

from labkit.amp import ScalerState, advance
from labkit.frameworks.torch_state import TorchState, gradients_of, untouched

_NEW_SCALE = (
    "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with requires_grad=False."
)


class GradScaler(TorchState):
    """Scale losses, unscale gradients, skip steps with inf or NaN: torch.amp.GradScaler, call for call.

    Args: those of torch.amp.GradScaler. enabled=False makes every method a no-op, but for `step`, which steps.

    Raises:
        AssertionError: growth_factor is not above 1, or backoff_factor not below 1.
        ValueError: another value is out of its range; the message names the range. torch takes -1, 0 and NaN.

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

    def _check_scale_growth_tracker(self, funcname: str) -> tuple[Tensor, Tensor]:
        scale, tracker = self._scale, self._growth_tracker
        if scale is None or tracker is None:
            raise AssertionError(
                f"Attempted {funcname} but {'_scale' if scale is None else '_growth_tracker'} is None.  "
                "This may indicate your script did not use scaler.scale(loss or outputs) earlier in the iteration."
            )
        return scale, tracker

    @overload
    def scale(self, outputs: torch.Tensor) -> torch.Tensor: ...

    @overload
    def scale(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]: ...

    @overload
    def scale(self, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]: ...

    @overload
    def scale(self, outputs: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]: ...

    def scale(self, outputs: torch.Tensor | Iterable[torch.Tensor]) -> torch.Tensor | Iterable[torch.Tensor]:
        """Multiply a tensor, or every tensor in nested lists and tuples, by the scale.

        Raises:
            ValueError: something else is given, a dict for instance.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(outputs.device)
            scale, _ = self._check_scale_growth_tracker("scale")
            return outputs * scale.to(device=outputs.device, non_blocking=True)
        if isinstance(outputs, Iterable) and not isinstance(outputs, str | bytes | Mapping):
            scaled = map(self.scale, outputs)
            return type(outputs)(scaled) if isinstance(outputs, list | tuple) else scaled
        raise ValueError(
            f"outputs must be a Tensor or an iterable of Tensors; it was given a {type(outputs).__name__}. "
            "Scale the loss alone, or a list of losses."
        )

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Multiply an optimizer's gradients in place; return, per device, 1 if any was inf or NaN before, else 0."""
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        found: dict[torch.device, Tensor] = {}
        with torch.no_grad():
            for gradient in gradients_of(optimizer, allow_fp16):
                alike[gradient.device, gradient.dtype].append(gradient)
            for (device, _), gradients in alike.items():
                if device not in found:
                    found[device] = found_inf.to(device=device, non_blocking=True, copy=True)
                torch._amp_foreach_non_finite_check_and_unscale_(
                    gradients, found[device], inv_scale.to(device=device, non_blocking=True)
                )
        return found or {found_inf.device: found_inf.clone()}  # without gradients, nothing overflowed

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide an optimizer's gradients by the scale, in place: before they are clipped, or looked at.

        Raises:
            RuntimeError: they are unscaled already, or the step was taken.
            ValueError: gradients are FP16.
        """
        if not self._enabled:
            return
        scale, _ = self._check_scale_growth_tracker("unscale_")
        record = self._per_optimizer_states[id(optimizer)]
        if record["stage"] is OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update(). "
                "A second call would divide by the scale twice: call it once, then step() and update()."
            )
        if record["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step(). Call it before step(), or update() first.")
        inverse = torch.full_like(scale, 1.0 / self.get_scale())  # an FP64 reciprocal, rounded once
        found = self._unscale_grads_(optimizer, inverse, torch.zeros_like(scale), False)
        if self.get_scale() < 1:  # the kernel looks before it multiplies; by more than 1, that may overflow
            again = self._unscale_grads_(optimizer, torch.ones_like(scale), torch.zeros_like(scale), False)
            found = {device: torch.maximum(found[device], again[device]) for device in found}
        record["found_inf_per_device"] = found
        record["stage"] = OptState.UNSCALED

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[torch.device, Tensor]:
        """Look for inf and NaN in an optimizer's gradients, FP16 ones too, and leave them scaled."""
        scale, _ = self._check_scale_growth_tracker("_check_inf_per_device")
        found = self._unscale_grads_(optimizer, torch.ones_like(scale), torch.zeros_like(scale), True)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found
        return found

    def _found_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[torch.device, Tensor]:
        found: dict[torch.device, Tensor] = self._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        return found

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Unscale an optimizer's gradients, unless that is done, and step it if all of them are finite.

        Returns what optimizer.step(*args, **kwargs) returns, or None where the step was skipped.

        Raises:
            RuntimeError: a closure is passed, by keyword or not, or the optimizer stepped since the last update().
        """
        result: float | None
        if not self._enabled:
            result = optimizer.step(*args, **kwargs)
            return result
        if "closure" in kwargs or any(map(callable, args)):
            raise RuntimeError(
                "Closure use is not currently supported if GradScaler is enabled. A closure computes gradients anew "
                "inside the step, where nobody unscales them: run it before, then call step(optimizer)."
            )
        self._check_scale_growth_tracker("step")
        record = self._per_optimizer_states[id(optimizer)]
        if record["stage"] is OptState.STEPPED:
            raise RuntimeError(
                "step() has already been called since the last update(). Call update() once at the end of each "
                "iteration, after every optimizer has stepped."
            )
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            result = self._step_of_its_own(optimizer, record, args, kwargs)
        else:
            if record["stage"] is OptState.READY:
                self.unscale_(optimizer)
            result = self._maybe_opt_step(optimizer, record, *args, **kwargs)
        record["stage"] = OptState.STEPPED
        return result

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        found_inf = any(map(self._readings.read, optimizer_state["found_inf_per_device"].values()))
        result: float | None = None if found_inf else optimizer.step(*args, **kwargs)
        return result

    def _step_of_its_own(
        self, optimizer: Any, record: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> float | None:
        """Step an optimizer that unscales and skips in its own kernel, as torch's fused ones do."""
        if "grad_scaler" in inspect.signature(optimizer.step).parameters:
            warnings.warn(
                "GradScaler is going to stop passing itself as a keyword argument to the passed optimizer. In the near "
                "future GradScaler registers `grad_scale: Tensor` and `found_inf: Tensor` to the passed optimizer and "
                "let the optimizer use them directly.",
                FutureWarning,
                stacklevel=3,
            )
            result: float | None = optimizer.step(*args, **{**kwargs, "grad_scaler": self})
            return result
        scale, _ = self._check_scale_growth_tracker("step")
        if record["stage"] is OptState.READY and self.get_scale() < 1:
            self.unscale_(optimizer)  # the optimizer's kernel would not see what its division makes infinite
        if record["stage"] is OptState.READY:
            self._check_inf_per_device(optimizer)
        found = [found_inf.to(scale.device, non_blocking=True) for found_inf in record["found_inf_per_device"].values()]
        preset = getattr(optimizer, "grad_scale", None)  # a factor of the user's own
        if record["stage"] is OptState.READY:
            preset = scale if preset is None else scale * preset
        optimizer.grad_scale, optimizer.found_inf = preset, torch.stack(found).amax(0)
        try:
            result = optimizer.step(*args, **kwargs)
        finally:  # left behind after an error, they would scale the next step once more
            del optimizer.grad_scale, optimizer.found_inf
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Move the scale after an iteration by what its steps found, or set it to new_scale.

        Raises:
            AssertionError: nothing was scaled or no optimizer was unscaled or stepped before; or new_scale is a tensor
                on another device, of several elements or with requires_grad.
            ValueError: new_scale is out of FP32's normal range.
        """
        if not self._enabled:
            return
        scale, tracker = self._check_scale_growth_tracker("update")
        if new_scale is not None:
            scale.fill_(self._usable(new_scale))
            self._readings.clear()
        else:
            records = self._per_optimizer_states.values()
            found = [found_inf for record in records for found_inf in record["found_inf_per_device"].values()]
            if not found:
                raise AssertionError("No inf checks were recorded prior to update. Call step(optimizer) before it.")
            state = ScalerState(self.get_scale(), self._get_growth_tracker())
            state = advance(state, any(map(self._readings.read, found)), self._config())
            self._readings.clear()
            self._readings.write(scale, state.scale)
            self._readings.write(tracker, state.growth_tracker)
        self._per_optimizer_states = defaultdict(untouched)

    def _usable(self, new_scale: float | Tensor) -> float:
        if isinstance(new_scale, Tensor):
            if new_scale.device.type != self._device or new_scale.numel() != 1 or new_scale.requires_grad:
                given = f"{new_scale.numel()} elements on {new_scale.device}, requires_grad={new_scale.requires_grad}"
                raise AssertionError(f"{_NEW_SCALE} It was given {given}; this scaler is for {self._device}.")
            new_scale = new_scale.item()
        elif not isinstance(new_scale, int | float):
            raise AssertionError(f"{_NEW_SCALE} It was given a {type(new_scale).__name__}.")
        return ScalerState(new_scale).scale
