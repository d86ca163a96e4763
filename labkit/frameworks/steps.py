"""Loss scales, and the accumulation of an optimizer's unscaled gradients over several losses.

Idea: before a backward pass the unscaled gradients are stashed; after it, the new ones are unscaled
and added to them. The adapters of apex and OneFlow call these methods. A scale follows
`labkit.amp.decide`; masters and the sum of gradients are those of the engine
(`amp.masters.masters`, `amp.step.add_unscaled`). torch's API has no sums of several losses, so
`torch_scaler` has records of its own, as torch's scaler does.

Invariant: between two losses `stepped.grad` is the unscaled sum of all losses since the last step,
in FP32 where a master is stepped.

Source: apex.amp._process_optimizer (stash).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from labkit.amp import ScalerConfig, decide, initial
from labkit.amp.loss_scaling.readings import read_scalars
from labkit.amp.masters.masters import Masters
from labkit.amp.masters.weights import require_fitting
from labkit.amp.step import Gradients, add_unscaled


class OptimizerLike(Protocol):
    """An optimizer of torch's, or a wrapper of one."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...

    @property
    def state(self) -> MutableMapping[Any, Any]: ...

    def step(self, *args: Any, **kwargs: Any) -> Any: ...


class LossScale:
    """A loss scale and the rule by which it changes.

    >>> scale = LossScale(ScalerConfig())
    >>> scale.must_skip(found_inf=True), scale.state.scale
    (True, 32768.0)
    """

    def __init__(self, rule: ScalerConfig) -> None:
        self.rule = rule
        self.state = initial(rule)

    def must_skip(self, found_inf: bool) -> bool:
        """Update the scale after a backward pass; return whether the step must be skipped."""
        decision = decide(self.state, found_inf, self.rule)
        self.state = decision.after
        return decision.skip


class Steps:
    """Gradients and masters of an optimizer, or of a wrapper with `param_groups` and `state`.

    Args:
        optimizer: the optimizer, or the wrapper.
        names: names of its parameters, for messages.
        masters: replace each trainable half weight in its groups by an FP32 master, and convert its
            state to FP32.

    >>> weight = nn.Parameter(torch.ones(1))
    >>> steps, scale = Steps(torch.optim.SGD([weight], lr=1.0)), 8.0
    >>> for _ in range(2):
    ...     steps.before_backward()
    ...     (weight.sum() * scale).backward()
    ...     found_inf = steps.unscale(scale)
    >>> found_inf, weight.grad
    (False, tensor([2.]))
    """

    def __init__(
        self,
        optimizer: OptimizerLike,
        names: Mapping[Tensor, str] | None = None,
        *,
        masters: bool = False,
    ) -> None:
        self.optimizer = optimizer
        self.names = names or {}
        # The unscaled gradients of earlier losses, set aside while new ones are scaled.
        self._waiting: Gradients | None = None
        self._masters = Masters({}) if masters else None
        if self._masters is not None:
            require_fitting(cast("torch.optim.Optimizer", optimizer), flat=False)
            for group in optimizer.param_groups:
                with self._masters_of(self._masters, group["params"]) as stepped:
                    replace_params(optimizer, group, stepped)
        recast_state(optimizer)

    @contextmanager
    def _masters_of(
        self, masters: Masters, params: Sequence[nn.Parameter]
    ) -> Iterator[list[Tensor]]:
        """Create masters for the trainable weights of a group; remove them if the block raises.

        Yields:
            The tensors that the optimizer steps for the group.
        """
        trained = [p for p in params if p.requires_grad]
        names = {p: self.names.get(p, "without a name") for p in trained}
        with masters.added({"params": trained}, names) as group:
            master_of = dict(zip(trained, group["params"], strict=True))
            yield [master_of.get(p, p) for p in params]

    @property
    def stepped(self) -> list[Tensor]:
        """The tensors that the optimizer steps: masters, or the weights of the model."""
        if self._masters is not None:
            return list(self._masters.optimizer_weights)
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def _arrived(self) -> Gradients:
        """Return the gradients that backward left, one for each of `stepped`."""
        if self._masters is not None:
            return self._masters.scaled_gradients()
        return [p.grad for p in self.stepped]

    def before_backward(self) -> None:
        """Stash the unscaled gradients of earlier losses.

        Scaled ones stay, and the next loss adds to them.
        """
        if self._waiting is None:
            self.adopt_edits()
            self._waiting = [p.grad for p in self.stepped]
            self._forget_arrived()

    def unscale(self, scale: float) -> bool:
        """Unscale new gradients, add them to the stash, and return whether any is inf or NaN."""
        assert self._waiting is not None
        total, flags = add_unscaled(self._waiting, self._arrived(), scale)
        for stepped, gradient in zip(self.stepped, total, strict=True):
            stepped.grad = None if gradient is None else gradient.to(stepped.dtype)
        self._waiting = None
        return any(read_scalars(flags))

    def undo(self) -> None:
        """Restore the stashed gradients, and drop the scaled ones."""
        if self._waiting is not None:
            self._forget_arrived()
            for stepped, before in zip(self.stepped, self._waiting, strict=True):
                stepped.grad = before
            self._waiting = None

    def _forget_arrived(self) -> None:
        own = self.stepped if self._masters is None else self._masters.model_weights
        for p in own:
            p.grad = None

    def adopt_edits(self) -> None:
        """Copy edits of the model's weights to the masters."""
        if self._masters is not None:
            self._masters.adopt_edits()

    def copy_back(self) -> None:
        """Round the masters into the model."""
        if self._masters is not None:
            self._masters.copy_back()

    def forget(self, *, model: bool = False) -> None:
        """Clear the gradients of masters, which `model.zero_grad()` does not reach.

        FP32 weights are their own masters: they keep their gradients, which the optimizer's
        `zero_grad` clears.

        Args:
            model: whether to clear those of the weights that have a master, too.
        """
        if self._masters is None:
            return
        shared = set(self._masters.model_weights) & set(self._masters.optimizer_weights)
        cleared = [*self._masters.optimizer_weights]
        if model:
            cleared += self._masters.model_weights
        for p in cleared:
            if p not in shared:
                p.grad = None

    def add_group(self, group: dict[str, Any], add: Callable[[dict[str, Any]], None]) -> None:
        """Add a group of parameters, replaced by masters if the optimizer steps masters.

        Args:
            group: the group, as torch's `add_param_group` takes it.
            add: adds the group to the optimizer. If it raises, the masters are removed again.
        """
        if self._masters is None:
            add(group)
            return
        params = group["params"]
        listed = [params] if isinstance(params, nn.Parameter) else list(params)
        self._masters.adopt_edits()
        with self._masters_of(self._masters, listed) as stepped:
            add({**group, "params": stepped})


def replace_params(
    optimizer: OptimizerLike, group: dict[str, Any], replacements: list[Tensor]
) -> None:
    """Replace the parameters of a group, and move the optimizer's state of the old ones."""
    for old, new in zip(group["params"], replacements, strict=True):
        if old is not new and old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)
    group["params"] = replacements


@torch.no_grad()
def recast_state(optimizer: OptimizerLike) -> None:
    """Cast each parameter's optimizer state, such as momentum, to the parameter's dtype."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            # torch keeps counts of steps in FP32, whatever the parameter's dtype is.
            if name == "step" or not isinstance(value, Tensor):
                continue
            if value.shape == parameter.shape and value.is_floating_point():
                state[name] = value.to(parameter.dtype)
