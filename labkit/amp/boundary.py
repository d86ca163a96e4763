"""The boundary of a model that computes in another format: FP32 tensors in, FP32 tensors out.

Invariant: an argument with finite numbers in FP32 that the model's format makes infinite is passed
in FP32, or the next step is left out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labkit.amp.ranges import RangeMemory
from labkit.gemm.half_storage import HALVES
from labkit.modes import Copied, closed_values, mapped_anywhere, require_one_device

LOSS_INSIDE_MODEL = (
    "The model computed its loss itself, in FP16, so the scale must fit FP16, which ends at 65504: "
    "at 2^16 a step is skipped. Return the outputs from the model, and compute the loss outside of "
    "it: `with engine.forward(): loss = loss_function(engine(inputs), targets)`."
)


class Boundary:
    """The casts of a model's arguments and results, and what a step needs to know about them.

    Attributes:
        model: the model.
        dtype: the dtype that the model computes in.
        ranges: the FP32 arguments and masks that reach beyond the model's format.
        computes_in_half: whether the model's results may be half, also under autocast.
        loss_inside: whether the model computed its loss in FP16 and the scale exceeds FP16.
        unread: gradients of such losses, not yet read from their device.
    """

    def __init__(
        self,
        model: nn.Module,
        dtype: torch.dtype,
        ranges: RangeMemory,
        computes_in_half: bool = True,
    ) -> None:
        self.model = model
        self.dtype = dtype
        self.ranges = ranges
        self.computes_in_half = computes_in_half
        self.loss_inside = False
        self.unread = list[Tensor]()
        self._warned = False
        # number of tensors among the arguments of the current call so far
        self._arguments = 0

    def run(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model, or a graph or wrapper of it.

        Raises:
            RuntimeError: tensors are on several devices.
            TypeError: the model does not take NumPy arrays, and got one.
        """
        self._arguments = 0
        pending = len(self.ranges.pending)
        copies: list[Copied] = []
        if kwargs:
            kwargs = mapped_anywhere(self._argument, kwargs, copies)
        args = mapped_anywhere(self._argument, args, copies)
        try:
            out = call(*args, **kwargs)
        except RuntimeError as error:
            require_one_device(
                type(self.model).__name__, (*self.model.parameters(), args, kwargs), error
            )
            raise
        except (TypeError, AttributeError) as error:
            _require_tensors(type(self.model).__name__, (*args, *kwargs.values()), error)
            raise
        # A dataclass argument was copied. The caller expects what the model wrote into it, such as
        # a state, in the original object.
        for copied in copies:
            copied.write_back(self.result)
        results = mapped_anywhere(self.result, out)
        if self.computes_in_half and not self._warned and not isinstance(out, Tensor):
            self._warn_of_closed(out)
        if len(self.ranges.pending) > pending:
            self.ranges.hold_until_backward(_tensors_anywhere(results), pending)
        return results

    def _warn_of_closed(self, out: Any) -> None:
        """Warn once of a result that may hold half tensors and cannot be converted."""
        for place, value in closed_values(out):
            attributes = getattr(value, "__dict__", {})
            half = [
                name
                for name, item in attributes.items()
                if isinstance(item, Tensor) and item.dtype in HALVES
            ]
            if not half and not isinstance(value, Iterator):
                continue
            self._warned = True
            what = type(value).__name__
            if place:
                what += f" at {place}"
            inside = ", whose tensors stay as they are"
            if half:
                inside = f": {', '.join(half)} stayed half"
            warnings.warn(
                f"the model returned a {what}{inside}. A loss of half tensors is computed in half. "
                "Return tensors in a dict, tuple or dataclass, or convert them: output.float().",
                stacklevel=4,
            )
            return

    def _argument(self, tensor: Tensor) -> Tensor:
        """Return an argument in the model's dtype; in FP32 if a finite number would become inf."""
        if not tensor.is_floating_point() or tensor.dtype is self.dtype:
            return tensor
        if self.dtype is torch.float32:
            return tensor.float()
        self._arguments += 1
        kind = ("argument", self._arguments, tensor.dim())
        # FP64 and BF16 may hold numbers beyond FP16, too
        wide = tensor.float()
        if self.ranges.reaches(kind, wide, self.dtype):
            return wide
        return tensor.to(self.dtype)

    def result(self, tensor: Tensor) -> Tensor:
        """Return a result in FP32, and observe the gradient of an FP16 scalar, which is a loss.

        That gradient is the loss scale, which may exceed FP16.
        """
        if tensor.dtype == torch.float16 and tensor.dim() == 0 and tensor.requires_grad:
            tensor.register_hook(self._record_inner_loss)
        return tensor.float() if tensor.is_floating_point() else tensor

    def _record_inner_loss(self, gradient: Tensor) -> None:
        # on a GPU the step reads it
        self.unread.append(gradient.detach())
        if gradient.device.type == "cpu":
            self.record([gradient.item()])

    def record(self, gradients: Sequence[float]) -> None:
        """Record the values of `unread` and clear it; warn once of a value that is not finite."""
        self.unread.clear()
        if not self.loss_inside and not all(map(math.isfinite, gradients)):
            self.loss_inside = True
            warnings.warn(LOSS_INSIDE_MODEL, stacklevel=2)


def _tensors_anywhere(values: Any) -> list[Tensor]:
    """Return the tensors in any container."""
    tensors: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    mapped_anywhere(collect, values)
    return tensors


def _require_tensors(model: str, arguments: Iterable[Any], error: Exception) -> None:
    """Explain an error of a model that was called with a NumPy array."""
    for value in arguments:
        if isinstance(value, np.ndarray):
            raise TypeError(
                f"{model}: expected torch tensors, got a NumPy array of shape {value.shape}. "
                "Convert it: torch.from_numpy(array)."
            ) from error
