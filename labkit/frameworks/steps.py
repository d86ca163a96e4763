"""Loss scales, and the accumulation of an optimizer's unscaled gradients over several losses.

Idea: before a backward pass the unscaled gradients are stashed; after it, the new ones are unscaled and added to them.
The adapters of apex, fastai and OneFlow call these methods. A scale follows `labkit.amp.decide`, and masters are
those of `labkit.amp.Weights`. (torch's API has no sums of several losses; `torch_scaler` keeps its own records.)

Invariant: between two losses `stepped.grad` is the unscaled sum of all losses since the last step, in FP32 where a
master is stepped.

Source: apex.amp._process_optimizer (stash); fastai.fp16_utils, 2.8.12 (masters of each group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp import ScalerConfig, Weights, decide, initial, unscale
from labkit.amp.masters.weights import require_fitting


class LossScale:
    """A loss scale and the rule by which it changes.

    >>> scale = LossScale(ScalerConfig())
    >>> scale.must_skip(found_inf=True), scale.state.scale
    (True, 32768.0)
    """

    def __init__(self, rule: ScalerConfig) -> None:
        self.rule, self.state = rule, initial(rule)

    def must_skip(self, found_inf: bool) -> bool:
        """Update the scale after a backward pass; return whether the step must be skipped."""
        decision = decide(self.state, found_inf, self.rule)
        self.state = decision.after
        return decision.skip


class Steps:
    """The gradients and masters of an optimizer or a wrapper of one: anything with `param_groups` and `state`.

    Args:
        names: of its parameters, for messages.
        masters: replace each trainable half weight in its groups by an FP32 master, and convert its state to FP32.
        flat: one master for each group; frozen weights are removed from it.

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
        optimizer: Any,
        names: Mapping[Tensor, str] | None = None,
        *,
        masters: bool = False,
        flat: bool = False,
    ) -> None:
        self.optimizer, self.names, self.flat = optimizer, names or {}, flat
        self._before = [list(group["params"]) for group in optimizer.param_groups]
        self._waiting: list[Tensor | None] | None = (
            None  # a list from before a backward pass until it is unscaled
        )
        self._weights: list[Weights] | None = [] if masters else None
        if masters:
            require_fitting(optimizer, flat)
            for group, instead in zip(
                optimizer.param_groups, self._masters_of(self._before), strict=True
            ):
                replace_params(optimizer, group, instead)
        recast_state(optimizer)

    def _masters_of(self, groups: list[list[nn.Parameter]]) -> list[list[Tensor]]:
        """Create masters for the trainable weights of groups; return what the optimizer steps in each group."""
        assert self._weights is not None
        trained = [[p for p in group if p.requires_grad] for group in groups]
        named = _Named({p: self.names.get(p, "of a group") for weights in trained for p in weights})
        learning = [{"params": weights} for weights in trained]
        # This optimizer never steps: the real one has groups of its own, which include frozen weights.
        self._weights.append(
            Weights(named, lambda ps: torch.optim.SGD(ps, 0.0), groups=learning, flat=self.flat)
        )
        masters = iter(self._weights[-1].optimizer_weights)
        if self.flat:
            return [[next(masters)] if weights else [] for weights in trained]
        return [[next(masters) if p.requires_grad else p for p in group] for group in groups]

    @property
    def stepped(self) -> list[Tensor]:
        """The tensors that the optimizer steps: masters, or the weights of the model."""
        if self._weights is None:
            return [p for group in self.optimizer.param_groups for p in group["params"]]
        return [p for weights in self._weights for p in weights.optimizer_weights]

    def _arrived(self) -> list[Tensor | None]:
        """Return the gradients that backward left, one for each of `stepped`."""
        if self._weights is None:
            return [p.grad for p in self.stepped]
        return [gradient for weights in self._weights for gradient in weights.scaled_gradients()]

    def before_backward(self) -> None:
        """Stash the unscaled gradients of earlier losses; scaled ones stay, and the next loss adds to them."""
        if self._waiting is None:
            self.adopt_edits()
            self._waiting = [p.grad for p in self.stepped]
            self._forget_arrived()

    def unscale(self, scale: float) -> bool:
        """Unscale the new gradients, add them to the stash, and return whether any of them holds inf or NaN."""
        assert self._waiting is not None
        arrived = self._arrived()
        plain, found_inf = unscale([g for g in arrived if g is not None], scale, in_place=True)
        each = iter(plain)
        for stepped, before, scaled in zip(self.stepped, self._waiting, arrived, strict=True):
            gradient = None if scaled is None else next(each)
            total = (
                before if gradient is None else gradient if before is None else before + gradient
            )
            stepped.grad = None if total is None else total.to(stepped.dtype)
        self._waiting = None
        return found_inf

    def undo(self) -> None:
        """Restore the stashed gradients, and drop the scaled ones."""
        if self._waiting is not None:
            self._forget_arrived()
            for stepped, before in zip(self.stepped, self._waiting, strict=True):
                stepped.grad = before
            self._waiting = None

    def _forget_arrived(self) -> None:
        own = (
            self.stepped
            if self._weights is None
            else [p for w in self._weights for p in w.model_weights]
        )
        for p in own:
            p.grad = None

    def adopt_edits(self) -> None:
        """Copy edits of the model's weights to the masters."""
        for weights in self._weights or ():
            weights.adopt_edits()

    def copy_back(self) -> None:
        """Round the masters into the model."""
        for weights in self._weights or ():
            weights.copy_back()

    def forget(self, *, model: bool = False) -> None:
        """Clear the gradients of masters, which `model.zero_grad()` does not reach, and optionally the model's."""
        for weights in self._weights or ():
            # FP32 ones have no other master
            both = set(weights.model_weights) & set(weights.optimizer_weights)
            for p in (*weights.optimizer_weights, *(weights.model_weights if model else ())):
                p.grad = p.grad if p in both else None

    def give_back(self) -> None:
        """Put the original parameters back into the optimizer."""
        for group, before in zip(self.optimizer.param_groups, self._before, strict=True):
            replace_params(self.optimizer, group, before)

    def add_group(self, group: dict[str, Any], add: Callable[[dict[str, Any]], None]) -> None:
        """Call `add` with a group, whose parameters are replaced by masters if this steps masters."""
        if self._weights is not None:
            params = [p] if isinstance(p := group["params"], nn.Parameter) else list(p)
            group = {**group, "params": self._masters_of([params])[0]}
        add(group)


class _Named(nn.Module):
    """Parameters under their names in the models."""

    def __init__(self, named: Mapping[nn.Parameter, str]) -> None:
        super().__init__()
        self._named = named

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from ((name, parameter) for parameter, name in self._named.items())


def replace_params(optimizer: Any, group: dict[str, Any], instead: list[Tensor]) -> None:
    """Replace the parameters of a group, and move the optimizer's state of the old ones."""
    for old, new in zip(group["params"], instead, strict=False):
        if old is not new and old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)
    group["params"] = instead


@torch.no_grad()
def recast_state(optimizer: Any) -> None:
    """Cast an optimizer's state of each parameter, for instance its momentum, to the parameter's dtype."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if (
                isinstance(value, Tensor)
                and value.shape == parameter.shape
                and value.is_floating_point()
            ):
                state[name] = value if name == "step" else value.to(parameter.dtype)
