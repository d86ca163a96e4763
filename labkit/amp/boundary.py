"""The boundary of a model that computes in another format: FP32 tensors in, FP32 tensors out.

Invariant: finite numbers that the model's format makes infinite are passed unchanged, or the next
step is left out.
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
from labkit.modes import Copied, closed_values, mapped_anywhere, require_one_device

LOSS_INSIDE_MODEL = (
    "The model computed its loss itself, in FP16, so the scale must fit FP16, which ends at 65504: "
    "at 2^16 a step is skipped. Return the outputs from the model, and compute the loss outside of "
    "it: `with engine.forward(): loss = loss_function(engine(inputs), targets)`."
)


class Boundary:
    """Conversion of a model's arguments and results, with the facts that a step needs of them.

    Attributes:
        ranges: the FP32 arguments and masks that reach beyond the model's format.
        loss_inside: whether the model computed its loss in FP16 and the scale exceeds FP16.
        unread: gradients of such losses, not yet read from their device.
        computes_in_half: whether the model's results may be half, also under autocast.
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
        # what the model wrote into its arguments, such as a state, belongs to the caller
        for copied in copies:
            copied.write_back(self.result)
        results = mapped_anywhere(self.result, out)
        if self.computes_in_half and not self._warned and not isinstance(out, Tensor):
            self._warn_of_closed(out)
        if len(self.ranges.pending) > pending:
            tensors: list[Tensor] = []

            def collect(tensor: Tensor) -> Tensor:
                tensors.append(tensor)
                return tensor

            mapped_anywhere(collect, results)
            self.ranges.counts_with(tensors, pending)
        return results

    def _warn_of_closed(self, out: Any) -> None:
        """Warn once of a result that may hold half tensors and cannot be converted."""
        for place, value in closed_values(out):
            held = getattr(value, "__dict__", {})
            half = [
                name
                for name, item in held.items()
                if isinstance(item, Tensor) and item.dtype in (torch.float16, torch.bfloat16)
            ]
            if not half and not isinstance(value, Iterator):
                continue
            self._warned = True
            what = f"{type(value).__name__} at {place}" if place else type(value).__name__
            inside = (
                f": {', '.join(half)} stayed half" if half else ", whose tensors stay as they are"
            )
            warnings.warn(
                f"the model returned a {what}{inside}. A loss of half tensors is computed in half. "
                "Return tensors in a dict, tuple or dataclass, or convert them: output.float().",
                stacklevel=4,
            )
            return

    def _argument(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.dtype is self.dtype is torch.float32:
            return tensor
        self._arguments += 1
        kind = ("argument", self._arguments, tensor.dim())
        beyond = self.dtype is not torch.float32 and self.ranges.reaches(kind, tensor, self.dtype)
        return tensor if beyond else tensor.to(self.dtype)

    def result(self, tensor: Tensor) -> Tensor:
        """Return a result in FP32.

        The gradient of an FP16 scalar, a loss, is the scale, which may exceed FP16.
        """
        if tensor.dtype == torch.float16 and tensor.dim() == 0 and tensor.requires_grad:
            tensor.register_hook(self._record_inner_loss)
        return tensor.float() if tensor.is_floating_point() else tensor

    def _record_inner_loss(self, gradient: Tensor) -> None:
        self.unread.append(gradient.detach())  # on a GPU the step reads it
        if gradient.device.type == "cpu":
            self.learn([gradient.item()])

    def learn(self, gradients: Sequence[float]) -> None:
        """Take the values of `unread`; warn once of one that is not finite."""
        self.unread.clear()
        if not self.loss_inside and not all(map(math.isfinite, gradients)):
            self.loss_inside = True
            warnings.warn(LOSS_INSIDE_MODEL, stacklevel=2)


def _require_tensors(model: str, arguments: Iterable[Any], error: Exception) -> None:
    """Explain an error of a model that was called with a NumPy array."""
    for value in arguments:
        if isinstance(value, np.ndarray):
            raise TypeError(
                f"{model}: expected torch tensors, got a NumPy array of shape {value.shape}. "
                "Convert it: torch.from_numpy(array)."
            ) from error
