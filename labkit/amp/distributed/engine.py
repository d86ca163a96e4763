"""The engine in several processes that train one model together, by torch's DDP or FSDP2.

Each rank has its own batch; torch adds up the gradients over the ranks. Under DDP each rank holds
all weights. Under FSDP2 each rank holds a part of every weight, along the first dimension, and the
whole weight only while its layer computes. After the backward pass the ranks agree on found_inf, so
that all take the same step. A part is a plain tensor. Optimizer, masters, unscaling and rounding
work element by element, so the code of one process applies to parts.

Invariant: all ranks step or none does. Scale and tracker are equal on all ranks, since each applies
the same rule to the same found_inf; they are not sent. The parts of all ranks, concatenated, are
the masters, gradients and optimizer state of one process.

Source: torch.nn.parallel.DistributedDataParallel (register_comm_hook, no_sync);
torch.distributed.fsdp.fully_shard (set_requires_gradient_sync, the powers of two of FP16's
division); torch.distributed.fsdp.sharded_grad_scaler; torch.chunk (the rows of each rank);
arXiv:2304.11277.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from labkit.amp.distributed.group import largest, raising_rank_lost
from labkit.amp.engine import Engine
from labkit.amp.loss_scaling.clip import total_norm
from labkit.amp.loss_scaling.scaler import StepReport
from labkit.amp.masters.convert import uncompiled
from labkit.amp.masters.groups import cut
from labkit.amp.masters.masters import Group
from labkit.amp.masters.weights import MakeOptimizer, Weights
from labkit.amp.recipe import Recipe, as_recipe
from labkit.amp.requirements import require_loss_id
from labkit.formats import BF16, FP16, FP32, FormatLike, as_format
from labkit.interop import dtype_of


def shard(
    model: nn.Module, blocks: Iterable[nn.Module], reduce: torch.dtype, mesh: DeviceMesh
) -> None:
    """Shard the parameters in place, so that each rank keeps its part.

    Rank 0's values are used for all.

    Args:
        model: the model, its parameters in the dtypes in which it computes.
        blocks: layers that are gathered one at a time, so that fewer whole weights are in memory
            at once.
        reduce: dtype in which gradients are added up over the ranks.
        mesh: the ranks, in one dimension.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), group_src=0, group=mesh.get_group())
    policy = MixedPrecisionPolicy(reduce_dtype=reduce, cast_forward_inputs=False)
    # torch requires one dtype in a group of parameters, so modules of another dtype, such as norms,
    # are groups of their own
    dtype = next(p.dtype for p in model.parameters())
    others = [
        m for m in model.modules() if any(p.dtype != dtype for p in m.parameters(recurse=False))
    ]
    # each module once, and the model last
    for module in dict.fromkeys([*others, *blocks, model]):
        fully_shard(module, mesh=mesh, mp_policy=policy)


class OwnParts(nn.Module):
    """This rank's parts of a sharded model: plain tensors in the same memory, by parameter name.

    Attributes:
        pairs: name -> (the sharded parameter, this rank's part of it).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.pairs: dict[str, tuple[DTensor, nn.Parameter]] = {}
        for name, p in model.named_parameters():
            assert isinstance(p, DTensor)
            self.pairs[name] = (p, nn.Parameter(_local(p), requires_grad=p.requires_grad))

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parts by name."""
        for name, (_sharded, part) in self.pairs.items():
            yield name, part

    def grouped(self, groups: Sequence[Group]) -> list[Group]:
        """Return groups of the sharded model's parameters as groups of this rank's parts."""
        parts: dict[Any, nn.Parameter] = dict(self.pairs.values())
        grouped: list[Group] = []
        for group in groups:
            params = group["params"]
            listed = [params] if isinstance(params, Tensor) else list(params)
            # `Weights` refuses a parameter that is not the model's
            grouped.append({**group, "params": [parts.get(p, p) for p in listed]})
        return grouped

    def take_gradients(self, divide_by: float = 1.0) -> None:
        """Move the gradients of the sharded parameters to this rank's parts, divided."""
        for sharded, part in self.pairs.values():
            if sharded.grad is not None:
                gradient = _local(sharded.grad)
                part.grad = gradient / divide_by if divide_by != 1 else gradient
                sharded.grad = None


def _local(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, DTensor)
    return tensor._local_tensor.detach()


@torch.no_grad()
def norm_over_ranks(
    values: Sequence[Tensor], norm_type: float, device: torch.device, group: dist.ProcessGroup
) -> Tensor:
    """Return the total norm of the parts of all ranks, a scalar on this rank's device.

    Each rank computes the norm of its own parts in FP64; the norm of these norms is the total.

    Args:
        values: this rank's parts that are not empty; may be an empty list.
        norm_type: the order of the norm, more than 0.
        device: this rank's device.
        group: the ranks.

    Raises:
        ValueError: norm_type is 0 or less.
    """
    if not norm_type > 0:
        raise ValueError(
            f"expected norm_type > 0 over the parts of several ranks, got {norm_type!r}"
        )
    own = torch.zeros((), dtype=torch.float64, device=device)
    if values:
        own = total_norm(values, norm_type).to(device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    total: Tensor = torch.linalg.vector_norm(torch.stack(every), norm_type)
    return total


def divisors(world: int, predivide: bool = True) -> tuple[int, float]:
    """Return the divisors of a gradient before and after its FP16 sum over `world` ranks.

    Their product is `world`. The first is a power of two of about sqrt(world), a compromise between
    a sum that overflows and small gradients that underflow.

    Args:
        world: the number of ranks.
        predivide: False divides only after the sum.

    >>> [divisors(world) for world in (1, 2, 4, 8, 6)], divisors(4, predivide=False)
    ([(1, 1.0), (2, 1.0), (2, 2.0), (4, 2.0), (4, 1.5)], (1, 4.0))
    """
    before = 1
    while predivide and world % before == 0 and world / before > before:
        before *= 2
    return before, world / before


def _require_supported(recipe: Recipe, sharded: bool) -> None:
    """Raise a ValueError for a recipe that DDP, or FSDP2 if the model is sharded, cannot train."""
    if recipe.graph:
        raise ValueError(
            f"recipe {recipe.name!r} runs a graph, past DDP and FSDP2: take graph=False."
        )
    if sharded and recipe.products is not None and recipe.products.needs_names:
        raise ValueError(
            f"recipe {recipe.name!r} identifies weights by their names, and FSDP2 replaces "
            "them by other tensors while a layer computes: take sharded=False, or "
            "'FP8 current' or 'MXFP8', whose scales need no names."
        )


class DistributedEngine(Engine):
    """An engine in each process of a group.

    All processes run the same loop, each with its own batches. The gradient is the mean over the
    ranks. torchrun starts the processes, and `group.start_group` connects them.

    Args:
        model: as for `Engine`, of the same layers on all ranks; the weights of rank 0 are used.
        make_optimizer: as for `Engine`, the same on all ranks.
        recipe: as for `Engine`, the same on all ranks.
        sharded: if False, DDP: each rank holds all weights, masters and optimizer state; if True,
            FSDP2: each rank holds a part of them.
        blocks: layers of a sharded model that are gathered one at a time.
        reduce: FP32, FP16 or BF16: the format in which gradients are added up over the ranks.
        predivide: with reduce=FP16, divide before the sum and after it (`divisors`); False: only
            after it.
        group: the process group; None is the default one.
        find_unused_parameters: whether DDP searches, in each step, for parameters that the loss
            does not use. FSDP2 does not need it.
        options: further arguments of `Engine`. `groups` of a sharded model is a function model ->
            groups.

    Raises:
        TypeError: as `Engine`; or `reduce` is not a format.
        ValueError: as `Engine`; or `reduce` is another format; or the recipe has a graph, whose
            calls DDP and FSDP2 cannot intercept; or the model is sharded, and `groups` is a list,
            or the recipe stores scales by the names of weights, which sharding replaces.
        RuntimeError: `start_group` has not been called.
        RankLost: another rank ended or hangs.
    """

    # No rank may leave out a step alone, so none assumes that an argument is within range.
    _checks_every_range: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        recipe: Recipe | str,
        *,
        sharded: bool = False,
        blocks: Iterable[nn.Module] = (),
        reduce: FormatLike = FP32,
        predivide: bool = True,
        group: dist.ProcessGroup | None = None,
        find_unused_parameters: bool = False,
        **options: Any,
    ) -> None:
        recipe = as_recipe(recipe)
        _require_supported(recipe, sharded)
        reduce = as_format(reduce, "reduce")
        if reduce not in (FP32, FP16, BF16):
            raise ValueError(f"reduce: expected FP32, FP16 or BF16, got {reduce.name}")
        if not dist.is_initialized():
            raise RuntimeError(
                "expected a process group, got none: call "
                "labkit.amp.distributed.group.start_group() first, in a script that torchrun starts"
            )
        self._find_unused = find_unused_parameters
        self.group: dist.ProcessGroup = group or dist.group.WORLD  # type: ignore[assignment]
        self.world = dist.get_world_size(self.group)
        self.sharded = sharded
        self._blocks = tuple(blocks)
        self._reduce_dtype = dtype_of(reduce)
        self._divisors: tuple[int, float] = (1, self.world)
        if reduce == FP16:
            self._divisors = divisors(self.world, predivide)
        # whether FSDP2 adds up FP16 gradients undivided; then `take_gradients` divides
        self._sums_first = sharded and reduce == FP16 and not predivide
        self.parts: OwnParts | None = None
        # under DDP, the gradients of backward passes in `no_sync`, added up in FP32
        self._unreduced: dict[Tensor, Tensor] = {}
        # loss and scale of the gradients that are not reduced yet
        self._waiting: tuple[int, float] | None = None
        # False in a block of `no_sync`
        self._sync = True
        model_groups = options.get("groups")
        if sharded and model_groups is not None:
            if not callable(model_groups):
                raise ValueError(
                    "sharding replaces the model's parameters: pass groups as a function, model -> "
                    "groups."
                )

            def part_groups(parts: OwnParts) -> list[Group]:
                """Return the model's groups, with this rank's parts for its parameters."""
                return parts.grouped(model_groups(uncompiled(self.model)))

            options["groups"] = part_groups
        with raising_rank_lost("while the ranks built the engine", self.group):
            super().__init__(model, make_optimizer, recipe, **options)

    def _make_weights(
        self, model: nn.Module, make_optimizer: MakeOptimizer, **options: Any
    ) -> Weights:
        if not self.sharded:
            ddp = DistributedDataParallel(
                self.model, process_group=self.group, find_unused_parameters=self._find_unused
            )
            ddp.register_comm_hook(None, lambda _, bucket: self._reduce(bucket))
            self.call = ddp
            return super()._make_weights(model, make_optimizer, **options)
        shard(
            model,
            self._blocks,
            self._reduce_dtype,
            DeviceMesh.from_group(self.group, self.device.type),
        )
        for module in model.modules():
            if self._sums_first and isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
        self.parts = OwnParts(model)
        # FSDP2 refers to the memory of its parts, so that they cannot become views into a flat
        # master.
        return super()._make_weights(self.parts, make_optimizer, views=False, **options)

    def _require_known(self) -> None:
        # a sharded model has other parameters while a layer computes
        if not self.sharded:
            super()._require_known()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model on this rank's batch.

        All ranks call it, since a sharded model is gathered for it.

        Raises:
            RankLost: another rank ended or hangs.
        """
        with raising_rank_lost("in the forward pass", self.group):
            return super().__call__(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients unreduced, in FP32, until the first backward pass after the block.

        Then several batches need only one sum over the ranks. The backward pass of the last batch
        before a step has to be outside of the block.
        """
        ddp = self.call
        # a block inside another one ends without a sum, as DDP's own
        before = self._sync
        self._set_sync(False)
        try:
            with ddp.no_sync() if isinstance(ddp, DistributedDataParallel) else nullcontext():
                yield
        finally:
            self._set_sync(before)

    def _set_sync(self, sync: bool) -> None:
        self._sync = sync
        model = uncompiled(self.model)
        if isinstance(model, FSDPModule):
            # it applies to the modules inside, too
            model.set_requires_gradient_sync(sync)

    def backward(self, loss: Tensor, loss_id: int = 0, **options: Any) -> None:
        """Run `Engine.backward`, and average the gradients over the ranks.

        Raises:
            RuntimeError: as `Engine.backward`; or unreduced gradients are of another loss or scale.
            RankLost: another rank ended or hangs.
        """
        if options.get("other_engines"):
            raise RuntimeError(
                "other_engines is for engines of one process; call backward() of each engine "
                "instead."
            )
        require_loss_id(loss_id, len(self.scalers))
        current = (loss_id, self.scalers[loss_id].scale)
        if self._waiting is not None and self._waiting != current:
            waiting_loss, waiting_scale = self._waiting
            raise RuntimeError(
                f"gradients of loss {waiting_loss}, at scale {waiting_scale:g}, wait since "
                "no_sync(): only one loss at one scale accumulates there. Run its last backward "
                "outside of no_sync() first."
            )
        with raising_rank_lost("in the backward pass", self.group):
            super().backward(loss, loss_id, **options)
        self._waiting = None if self._sync else current

    def _run_backward(self, scaled: Tensor, retain_graph: bool) -> None:
        super()._run_backward(scaled, retain_graph)
        if self.parts is not None:
            self.parts.take_gradients(self.world if self._sums_first else 1)
        elif not self._sync:
            for p in self.weights.model_weights:
                if p.grad is not None:
                    self._unreduced[p] = p.grad.float() + self._unreduced.get(p, 0.0)
                    p.grad = None

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Sum a bucket of gradients over the ranks in the format `reduce`: a hook of DDP."""
        gradients = bucket.gradients()
        buffer = bucket.buffer()
        before, after = self._divisors
        # add the gradients of the backward passes in `no_sync`
        wide: list[Tensor] = []
        for parameter, gradient in zip(bucket.parameters(), gradients, strict=True):
            total = gradient.float()
            if parameter in self._unreduced:
                total = total + self._unreduced.pop(parameter)
            wide.append(total)
        flat = (torch.cat([w.reshape(-1) for w in wide]) / before).to(self._reduce_dtype)
        work: Any = dist.all_reduce(flat, group=self.group, async_op=True)

        def store_means(_: object) -> Tensor:
            means = cut(flat.float() / after, gradients)
            for gradient, mean in zip(gradients, means, strict=True):
                gradient.copy_(mean)
            return buffer

        reduced: torch.futures.Future[Tensor] = work.get_future().then(store_means)
        return reduced

    def _measure(self, values: Sequence[Tensor], norm_type: float) -> Tensor:
        # under DDP each rank has all gradients
        if not self.sharded:
            return super()._measure(values, norm_type)
        with raising_rank_lost("while it computed the total norm of the gradients", self.group):
            return norm_over_ranks(values, norm_type, self.device, self.group)

    def step(self, closure: object = None) -> StepReport:
        """Run `Engine.step` on all ranks or none: inf or NaN on one rank is found_inf on all.

        Raises:
            RuntimeError: as `Engine.step`; or gradients have not been reduced since `no_sync`.
            RankLost: another rank ended or hangs.
        """
        if self._waiting is not None:
            raise RuntimeError(
                "gradients wait since no_sync(): run the last backward before a step outside of it."
            )
        with raising_rank_lost("in the step", self.group):
            report = super().step(closure)
            if self.products is not None and self.products.format.remembers:
                # All ranks continue with the largest magnitudes of any rank, as Transformer Engine
                # reduces its amax histories.
                memory = self.products.memory
                states: list[Any] = [None] * self.world
                dist.all_gather_object(states, memory.shared_state(), group=self.group)
                memory.take_largest(states)
        return report

    def _agreed(self, found_inf: dict[int, bool]) -> dict[int, bool]:
        """Return loss -> found_inf of any rank; a loss without gradients on all ranks is left out.

        The ranks exchange a number for each loss: -1 without gradients, 0 finite, 1 inf or NaN.
        """
        own = [float(found_inf.get(loss_id, -1)) for loss_id in range(len(self.scalers))]
        answers = largest(own, self.device, self.group)
        return {loss_id: answer > 0 for loss_id, answer in enumerate(answers) if answer >= 0}

    def _culprits(
        self, gradients: Sequence[Tensor | None], known: tuple[str, ...] | None = None
    ) -> tuple[str, ...]:
        """Return the names that any rank reported, in the order of the model's parameters."""
        every: list[tuple[str, ...]] = [()] * self.world
        dist.all_gather_object(every, super()._culprits(gradients, known), group=self.group)
        return tuple(
            name for name in self.weights.names.values() if any(name in names for names in every)
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Run `Engine.zero_grad` on each rank.

        Raises:
            RuntimeError: a sharded model's gradients wait since no_sync(); torch cannot discard
                them.
        """
        if self._waiting is not None and self.sharded:
            raise RuntimeError(
                "gradients wait since no_sync(): run a backward outside of it before zero_grad()."
            )
        self._unreduced = {}
        self._waiting = None
        super().zero_grad(set_to_none)
