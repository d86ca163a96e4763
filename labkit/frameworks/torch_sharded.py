"""What is torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, said again with our words inside?

Idea: our GradScaler, and one all-reduce: after each look for inf and NaN, the ranks take the largest answer. From there
on every rank does the same, and scale and tracker stay equal without being sent.

Invariant: no rank steps when another skips; scale, tracker and parameters are torch's own, bit for bit. Where torch's
does harm in silence, this one does not: what `GradScaler` refuses is refused, and a fused optimizer, which skips by
itself, is told what the other ranks found.

Source: torch.distributed.fsdp.sharded_grad_scaler, 2.13 (arguments and their order, FP16 gradients and losses).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.amp.distributed.group import raising_rank_lost
from labkit.frameworks.torch_scaler import GradScaler


class ShardedGradScaler(GradScaler):
    """A GradScaler whose processes agree on found_inf; to be made after torch.distributed.init_process_group.

    Args: those of torch's ShardedGradScaler, in its order: backoff_factor comes before growth_factor.
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
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        self.process_group = process_group

    def scale(self, outputs: Any) -> Any:
        """Multiply as `GradScaler.scale` does, and keep each tensor's dtype: FSDP's loss may be FP16."""
        scaled = super().scale(outputs)
        return scaled.to(outputs.dtype) if isinstance(outputs, Tensor) else scaled

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, True)
        worst = torch.stack([each.reshape(()).to(found_inf.device) for each in found.values()]).amax()
        with raising_rank_lost("while it agreed with the others on found_inf", self.process_group):
            dist.all_reduce(worst, dist.ReduceOp.MAX, group=self.process_group)
        return {device: worst.to(device) for device in found}
