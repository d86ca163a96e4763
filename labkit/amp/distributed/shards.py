"""Who holds which part of the weights, when no process holds them all?

Idea: FSDP2 (`fully_shard`) cuts each parameter along its first dimension; rank r keeps the r-th part, and the whole is
there only while a layer computes. What a rank keeps is a plain tensor. An optimizer, masters, unscaling and rounding
work element by element, so they are those of one process, over parts.

Invariant: the parts of all ranks, put together, are the masters, gradients and optimizer state of one process.

Source: torch.distributed.fsdp.fully_shard; torch.chunk (who gets which rows); arXiv:2304.11277.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from labkit.amp.masters.weights import Group, Weights
from labkit.amp.scaling.clip import finish_clipping, in_fp32_where_held, shorten_, total_norm


def shard(model: nn.Module, blocks: Iterable[nn.Module], reduce: torch.dtype, mesh: DeviceMesh) -> None:
    """Let each rank keep its part of the parameters, in place; those of rank 0 are taken for all.

    Args:
        model: with its parameters in the dtypes in which it computes.
        blocks: layers that are put together one at a time, which keeps fewer whole ones in memory.
        reduce: dtype in which gradients are added up over the ranks.
        mesh: the ranks, in one dimension.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), group_src=0, group=mesh.get_group())
    policy = MixedPrecisionPolicy(reduce_dtype=reduce, cast_forward_inputs=False)
    dtype = next(p.dtype for p in model.parameters())
    others = [m for m in model.modules() if any(p.dtype != dtype for p in m.parameters(recurse=False))]
    for module in dict.fromkeys([*others, *blocks, model]):  # torch wants one dtype in a group of parameters
        fully_shard(module, mesh=mesh, mp_policy=policy)


class OwnParts(nn.Module):
    """This rank's parts of a sharded model, under the names of its parameters: plain tensors in the same memory.

    pairs  name -> (the sharded parameter, this rank's part of it)
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.pairs: dict[str, tuple[DTensor, nn.Parameter]] = {}
        for name, p in model.named_parameters():
            assert isinstance(p, DTensor)
            self.pairs[name] = (p, nn.Parameter(_local(p), requires_grad=p.requires_grad))

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parts, those of other ranks being none of its business."""
        yield from ((name, part) for name, (_, part) in self.pairs.items())

    def grouped(self, groups: Sequence[Group]) -> list[Group]:
        """Return groups of the sharded model's parameters as groups of this rank's parts."""
        parts: dict[Any, nn.Parameter] = dict(self.pairs.values())
        listed = [[g["params"]] if isinstance(g["params"], Tensor) else list(g["params"]) for g in groups]
        return [{**g, "params": [parts.get(p, p) for p in ps]} for g, ps in zip(groups, listed, strict=True)]

    def take_gradients(self, divide_by: float = 1.0) -> None:
        """Give each part the gradient that backward has left, reduced, at its sharded parameter."""
        for sharded, part in self.pairs.values():
            if sharded.grad is not None:
                gradient = _local(sharded.grad)
                part.grad = gradient / divide_by if divide_by != 1 else gradient
                sharded.grad = None

    def moved(self) -> list[tuple[Tensor, Tensor]]:
        """Return (what the model reads, what the optimizer steps) where a flat master has moved a part elsewhere."""
        both = [(_local(sharded), part.detach()) for sharded, part in self.pairs.values()]
        return [(read, stepped) for read, stepped in both if read.data_ptr() != stepped.data_ptr()]

    def publish(self) -> None:
        """Let the model read what the optimizer has stepped elsewhere."""
        for read, stepped in self.moved():
            read.copy_(stepped)


class ShardedWeights(Weights):
    """The masters of this rank's parts; an FP32 part that lies in a flat master is copied to and fro."""

    def __init__(self, parts: OwnParts, *args: Any, **kwargs: Any) -> None:
        self.parts = parts
        super().__init__(parts, *args, **kwargs)

    @torch.no_grad()
    def copy_back(self) -> None:
        """Do as `Weights.copy_back` does, and let the model read it."""
        super().copy_back()
        self.parts.publish()

    @torch.no_grad()
    def edits(self) -> list[Tensor] | None:
        """Do as `Weights.edits` does, for parts in a flat master too."""
        for read, stepped in self.parts.moved():
            stepped.copy_(read)
        return super().edits()


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor._local_tensor.detach()


def fsdp_modules(model: nn.Module) -> list[FSDPModule]:
    """Return the modules whose parameters are put together one at a time."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@torch.no_grad()
def clip_parts_(
    gradients: Sequence[Tensor], max_norm: float, norm_type: float, device: torch.device, group: dist.ProcessGroup
) -> Tensor:
    """Shorten the parts of all ranks to a common length of at most `max_norm`; return the length they had.

    Each rank measures its own parts in FP64, and the lengths are put together as those of several tensors are.
    """
    if not norm_type > 0:
        raise ValueError(f"over the parts of several ranks, norm_type is positive; it was given {norm_type!r}")
    own = [g for g in gradients if g.numel()]
    length = total_norm(own, norm_type).to(device) if own else torch.zeros((), dtype=torch.float64, device=device)
    every = [torch.empty_like(length) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, length, group=group)
    total: Tensor = torch.linalg.vector_norm(torch.stack(every), norm_type)
    value = total.item()
    if own:
        finish_clipping(own, shorten_(own, total, max_norm), value)
    return in_fp32_where_held(total, value)
