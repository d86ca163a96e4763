"""What does a graph do when its `build` has returned? Backward, unscale, clip, step or skip, and all else in a step.

Source: oneflow.nn.graph, graph.py (what add_optimizer and set_grad_scaler hand over; clip_grad_max_norm of a group).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from labkit.amp import ScalerConfig, ScalerState, decide, initial, static, unscale
from labkit.amp.masters.weights import require_fitting
from labkit.amp.scaling.clip import clip_


class Trainer:
    """Optimizers, their schedules, and where the loss scale stands.

    backwards  losses of this call whose backward was run
    called     whether a graph was
    """

    def __init__(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        self.schedules: list[LRScheduler] = []
        self.backwards, self.called = 0, False
        self.scale_by(static(1.0, skip_on_inf=False))

    def add(self, optimizer: torch.optim.Optimizer, schedule: LRScheduler | None) -> None:
        """Step one more, and its schedule, skipped or not.

        Raises:
            ValueError: its step needs a closure.
        """
        require_fitting(optimizer, flat=False)
        self.optimizers.append(optimizer)
        self.schedules += [] if schedule is None else [schedule]

    def scale_by(self, config: ScalerConfig) -> None:
        """Take another scaler, at its start."""
        self.config, self.state = config, initial(config)

    def begin(self) -> None:
        """Forget gradients that came from elsewhere: nobody knows their scale."""
        self.backwards, self.called = 0, True
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def backward(self, losses: list[Tensor]) -> None:
        """Run backward of each loss, scaled, in their order."""
        for left, loss in zip(reversed(range(len(losses))), losses, strict=True):
            (loss.float() * self.state.scale).backward(retain_graph=left > 0)
        self.backwards += len(losses)

    def step(self) -> None:
        """Unscale, clip, step or skip; move the scale and the schedules.

        Raises:
            RuntimeError: there was no backward.
        """
        if not self.backwards:
            raise RuntimeError("the graph has an optimizer, and build() called no loss.backward(): nothing to learn.")
        learnt = [p for group in self._groups() for p in group["params"] if p.grad is not None]
        plain, found_inf = unscale([p.grad for p in learnt], self.state.scale, in_place=True)
        for p, gradient in zip(learnt, plain, strict=True):
            p.grad = gradient.to(p.dtype)
        decision = decide(self.state, found_inf, self.config)
        self.state = decision.after
        if not decision.skip:
            self._clip()
            for optimizer in self.optimizers:
                optimizer.step()
        for schedule in self.schedules:
            schedule.optimizer._opt_called = True  # type: ignore[attr-defined]  # OneFlow counts calls, not steps
            schedule.step()
        self.zero_grad()

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def _clip(self) -> None:
        for group in self._groups():
            if group.get("clip_grad_max_norm") is not None:
                gradients = [p.grad for p in group["params"] if p.grad is not None]
                clip_(gradients, group["clip_grad_max_norm"], group.get("clip_grad_norm_type", 2.0))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizers and schedules, and of the scale."""
        return {"steps": [each.state_dict() for each in self._stepped()], "scale": tuple(vars(self.state).values())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        for each, state in zip(self._stepped(), state_dict["steps"], strict=True):
            each.load_state_dict(state)
        self.state = ScalerState(*state_dict["scale"])

    def _stepped(self) -> Iterable[Any]:
        return (*self.optimizers, *self.schedules)
