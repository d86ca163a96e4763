"""The counts of one sampled step, tensor by tensor.

Idea: tensors are counted as they are. The scale is removed from the histogram afterwards, since a
power of two only shifts its bins. So a sample holds counts, and unscales no tensor.

Invariant: no tensor of the step is changed. Each number is counted once: forward passes that
checkpointing repeats in the backward pass are not counted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import graph
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from labkit.instrument.events import CastBegins, CastEnded, ModuleEnded, StatefulOptimizer
from labkit.instrument.guard import Failed, Unseen, reporting
from labkit.instrument.histogram import ExponentHistogram, exponent_histogram, merge, shift
from labkit.instrument.operations import Operations, in_backward, outside_modes
from labkit.instrument.probe import swallowed_counts
from labkit.instrument.records import WatchedStep, trimmed
from labkit.instrument.stream import STREAM, Listener
from labkit.instrument.taps import tap
from labkit.modes import open_modes

MEMORY = ("weights", "master weights", "gradients", "optimizer state", "activations")
TRANSFORMED = "computations inside a transform of torch.func (grad, vmap ...)"
INNER = "gradients of torch.autograd.grad and of create_graph=True: their scale is unknown"
# Relative change of a norm above which a gradient was changed after backward. Another order of the
# same sum changes it less.
CHANGED = 1e-5
# a norm of the step's gradients below this share of the norm after backward: they were clipped
CLIPPED = 0.999
# dtypes that exponent_histogram counts
COUNTED = (torch.float16, torch.bfloat16, torch.float32)


def in_transform() -> bool:
    """Return whether a transform of torch.func is running, whose tensors hold no numbers."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def compiled(model: nn.Module) -> str:
    """Return why a compiled model's layers cannot be hooked; "" for a model without compilation."""
    for name, module in model.named_modules():
        # of torch.compile(module), and of module.compile()
        wrapped = type(module).__name__ == "OptimizedModule"
        compiled_in_place = getattr(module, "_compiled_call_impl", None) is not None
        if wrapped or compiled_in_place:
            shown = name.removesuffix("_orig_mod") or type(module).__name__
            return f"{shown} is compiled, and hooks would change it"
    return ""


def floats(tree: Any) -> list[Tensor]:
    """Return the tensors of real or complex numbers in nested containers, in their order.

    Args:
        tree: anything; torch's pytrees, such as lists, tuples and dicts, and dataclasses are
            searched.
    """
    found = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, Tensor):
            if leaf.is_floating_point() or leaf.is_complex():
                found.append(leaf)
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            # a field may not have been set
            found += floats([getattr(leaf, each.name, None) for each in fields(leaf)])
    return found


def dtype_name(tensor: Tensor) -> str:
    """Return a tensor's dtype without the prefix "torch.", for instance "float16"."""
    return str(tensor.dtype).removeprefix("torch.")


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a sharded tensor (a DTensor), in the same memory.

    Other tensors are only detached.
    """
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        local: Tensor = tensor.to_local()
        return local
    return tensor


def stored(tensor: Tensor) -> Tensor:
    """Return the stored numbers of a tensor, dense or sparse, in a dtype that torch can compare.

    The numbers of 8-bit formats are returned in FP32, which represents them exactly.
    """
    tensor = local_part(tensor)
    if tensor.layout == torch.sparse_coo:
        tensor = tensor.coalesce().values()
    elif tensor.layout != torch.strided:
        tensor = tensor.values()
    # the signs of lazily conjugated or negated numbers are not in memory
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    tensor = tensor.resolve_neg()
    return tensor.float() if tensor.itemsize == 1 else tensor


def dense(tensor: Tensor) -> Tensor:
    """Return the stored numbers of a tensor, dense or sparse, in a dtype that can be counted.

    FP64 is rounded to FP32, so that a large finite number becomes inf.
    """
    numbers = stored(tensor)
    return numbers if numbers.dtype in COUNTED else numbers.float()


def count(tensor: Tensor, scale: float = 1.0) -> ExponentHistogram:
    """Count the numbers of tensor / scale, exactly if the scale is a power of two."""
    if scale == 1:
        return exponent_histogram(dense(tensor))
    significand, exponent = math.frexp(scale)
    # frexp returns a significand from 0.5 to 1: this scale is 2^(exponent - 1)
    if significand == 0.5:
        return shift(exponent_histogram(dense(tensor)), 1 - exponent)
    return exponent_histogram(dense(tensor).float() / scale)


def finite(tensor: Tensor) -> bool:
    """Return whether a tensor holds neither inf nor NaN."""
    return bool(torch.isfinite(stored(tensor)).all())


def non_finite(tensor: Tensor) -> str:
    """Return "NaN" if a tensor holds NaN, "inf" if it holds inf, else ""."""
    numbers = stored(tensor)
    if bool(torch.isfinite(numbers).all()):
        return ""
    return "NaN" if bool(numbers.isnan().any()) else "inf"


def largest(tensors: Iterable[Tensor]) -> float:
    """Return the largest finite |number| of all tensors; 0 if no number is finite."""
    result = 0.0
    for tensor in tensors:
        magnitudes = dense(tensor).abs().float()
        finite_ones = magnitudes[magnitudes.isfinite()]
        if finite_ones.numel():
            result = max(result, finite_ones.max().item())
    return result


def length(tensors: Iterable[Tensor]) -> float:
    """Return the Euclidean length of all numbers together."""
    return math.hypot(*(float(dense(t).float().norm()) for t in tensors))


def checksum(tensor: Tensor) -> int:
    """Return the sum of a tensor's codes, which nearly every change of the tensor changes."""
    numbers = dense(tensor).contiguous()
    codes = numbers.view(torch.int32 if numbers.itemsize == 4 else torch.int16)
    return int(codes.sum(dtype=torch.int64))


def storage_bytes(tensors: Iterable[Tensor], counted: set[int]) -> int:
    """Return the bytes of the tensors' storages, each storage once.

    Args:
        tensors: dense tensors, or sparse ones in COO.
        counted: addresses of storages that do not count; those of the tensors are added.
    """
    total = 0
    for tensor in tensors:
        if tensor.layout == torch.sparse_coo:
            parts = [tensor._values(), tensor._indices()]
        else:
            parts = [local_part(tensor)]
        for part in parts:
            storage = part.untyped_storage()
            if storage.data_ptr() not in counted:
                counted.add(storage.data_ptr())
                total += storage.nbytes()
    return total


def non_fatal(method: Callable[..., None]) -> Callable[..., None]:
    """Decorate a method so that its exceptions are reported, and never end the training.

    It runs outside all modes, so that its own casts are not counted as the model's.
    """

    @wraps(method)
    def guarded_method(self: Sample, *args: Any, **options: Any) -> None:
        with reporting(self.failed, method), outside_modes():
            method(self, *args, **options)

    return guarded_method


@contextmanager
def _without_hooks(
    pack: Any, unpack: Any, disable: Any, *args: Any, **kwargs: Any
) -> Iterator[None]:
    """Context around a context of torch.func, which refuses hooks of saved tensors.

    Our hooks are removed for its time; those of others are refused as before.

    Args:
        pack: our hook for a tensor that is saved.
        unpack: our hook for a saved tensor that is used.
        disable: torch's context, which refuses hooks.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    is_ours = top is not None and top[0] is pack
    with ExitStack() as stack:
        if is_ours:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            stack.callback(torch._C._autograd._push_saved_tensors_default_hooks, pack, unpack)
        with disable(*args, **kwargs):
            yield


class Sketches(Protocol):
    """A keeper of sketches of the tensors of a step."""

    def add(self, kind: str, layer: str, tensor: Tensor, scale: float = 1.0) -> float:
        """Keep the sketch of tensor / scale, and return the norm of the tensor."""
        ...

    def add_output(self, layer: str, tensor: Tensor) -> None:
        """Keep the sketch of a tensor that a layer returned."""

    def add_arrived(self, layer: str, number: int, gradient: Tensor, scale: float) -> None:
        """Keep the sketch of the gradient at a layer's output of that number."""

    def forget(self, kind: str) -> None:
        """Discard the sketches of a kind."""


class CountedCasts:
    """Counter of floating-point casts by torch's autocast, by the model, or by the lab's autocast.

    Args:
        casts: "float32 to float16" -> (number of casts, bytes that they wrote); it is updated.
        by_lab: whether the lab's modes are open. Then only the casts between `CastBegins` and
            `CastEnded` count, since the modes cast tensors for their own work, too.
    """

    def __init__(self, casts: dict[str, tuple[int, int]], by_lab: bool) -> None:
        self._casts = casts
        self._counting = not by_lab
        # of the casts of the lab that are running: whether casts counted before
        self._counted_before: list[bool] = []

    def begins(self, _: CastBegins) -> None:
        """Count casts from now on."""
        self._counted_before.append(self._counting)
        self._counting = True

    def ended(self, _: CastEnded) -> None:
        """Count as before the cast of the lab."""
        self._counting = self._counted_before.pop()

    def look(self, func: Any, args: Any, _: Any) -> Callable[[Tensor], None] | None:
        """Return a function that counts a cast by its result, or None for another operation."""
        if self._counting and func is torch.ops.aten._to_copy.default:
            return partial(self._count, args[0])
        return None

    def _count(self, before: Tensor, after: Tensor) -> None:
        if after.is_floating_point() and after.dtype != before.dtype:
            name = f"{dtype_name(before)} to {dtype_name(after)}"
            times, size = self._casts.get(name, (0, 0))
            self._casts[name] = (times + 1, size + after.numel() * after.element_size())


class Sample:
    """Counts of one sampled step.

    Args:
        step: number of the step.
        names: id of a module -> its name.
        scale: returns the scale of the backward pass that is running.
        failed: receives failures.
        keep: whether gradients of layer outputs are kept for a comparison with FP32.
        sketches: of a recording; None: nothing is recorded.

    Attributes:
        kept: (layer, number of the output in the step) -> gradient; None: none are kept.
        counts: kind -> name of a layer or parameter -> histogram.
        norms: parameter -> norm of its gradient after backward, unscaled.
        moves: as in `WatchedStep`; so are memory, casts, clipped and lines.
        before: parameter -> copy of the weight before the step.
        inner: torch.autograd.grad is running.
        half: layers whose gradients arrived in FP16.
        numbers: layer -> number of its outputs so far that require a gradient.
    """

    def __init__(
        self,
        step: int,
        names: dict[int, str],
        scale: Callable[[], float],
        failed: Failed,
        keep: bool,
        sketches: Sketches | None = None,
    ) -> None:
        self.sketches = sketches
        self.step = step
        self.failed = failed
        self.kept: dict[tuple[str, int], Tensor] | None = {} if keep else None
        self.counts: dict[str, dict[str, ExponentHistogram]] = defaultdict(dict)
        self.norms: dict[str, float] = {}
        self.moves: dict[str, tuple[int, int]] = {}
        self.memory: dict[str, int] = dict.fromkeys(MEMORY, 0)
        self.casts: dict[str, tuple[int, int]] = {}
        self.clipped = 1.0
        self.before: dict[str, Tensor] = {}
        self.inner = False
        self.half: set[str] = set()
        self.lines: dict[str, str] = {}
        self.numbers: dict[str, int] = defaultdict(int)
        self._names = names
        self._scale = scale
        # addresses of the storages that are kept for backward
        self._saved: set[int] = set()

    @non_fatal
    def after_module(self, event: ModuleEnded) -> None:
        """Count the output of a leaf layer, and hook its gradient."""
        module = event.module
        name = self._names.get(id(module))
        if name is None or next(module.children(), None) is not None:
            return
        if in_transform():
            raise Unseen(TRANSFORMED)
        # checkpointing repeats the forward pass; the gradients arrive at the repeated outputs
        is_repeated = in_backward()
        for tensor in floats(event.output):
            if not is_repeated:
                self.add("activations", name, count(tensor))
            if tensor.requires_grad:
                tensor.register_hook(partial(self._arrived, name, self.numbers[name]))
                self.numbers[name] += 1
            if self.sketches is not None and not is_repeated:
                self.sketches.add_output(name, tensor)

    @non_fatal
    def _arrived(self, name: str, number: int, gradient: Tensor) -> None:
        if self.inner or torch.is_grad_enabled():
            raise Unseen(INNER)
        self.add("activation gradients", name, count(gradient, self._scale()))
        if self.sketches is not None:
            self.sketches.add_arrived(name, number, gradient, self._scale())
        if gradient.dtype == torch.float16:
            self.half.add(name)
        if self.kept is not None:
            self.kept[name, number] = gradient.detach()

    def add(self, kind: str, name: str, histogram: ExponentHistogram) -> None:
        """Add to the counts of a layer, which may be called several times in a step."""
        if name in self.counts[kind]:
            histogram = merge([self.counts[kind][name], histogram])
        self.counts[kind][name] = trimmed(histogram)

    @non_fatal
    def gradient(self, name: str, gradient: Tensor, scale: float) -> None:
        """Count a parameter's gradient after a backward pass.

        It replaces the counts of earlier passes, since torch adds to their gradients.
        """
        self.counts["weight gradients"][name] = trimmed(count(gradient, scale))
        if self.sketches is None:
            norm = length([gradient])
        else:
            norm = self.sketches.add("weight gradients", name, gradient, scale)
        self.norms[name] = norm / scale

    @contextmanager
    def inside(self, parameters: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
        """Measure the tensors that a forward pass saves for backward, and count its casts.

        Args:
            parameters: returns the model's parameters, which are saved, too, but are no
                activations.
        """
        casts = CountedCasts(self.casts, by_lab=bool(open_modes()))
        counting = Listener(self.failed)
        counting.on(CastBegins, casts.begins)
        counting.on(CastEnded, casts.ended)
        with (
            self._measuring_activations(parameters),
            Operations(casts.look, self.failed),
            STREAM.subscribed(counting),
        ):
            yield

    @contextmanager
    def _measuring_activations(self, parameters: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
        """Add the bytes of tensors that are saved for backward to the memory of activations."""

        def addresses() -> set[int]:
            return {
                local_part(parameter).untyped_storage().data_ptr()
                for parameter in parameters()
                if not is_lazy(parameter)
            }

        weights = addresses()
        # sharded weights are gathered into other storages for a while; lazy ones get theirs later
        may_move = any(hasattr(each, "to_local") or is_lazy(each) for each in parameters())

        def measure(tensor: Tensor) -> None:
            if tensor.layout != torch.strided or type(tensor) not in (Tensor, nn.Parameter):
                return
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address in self._saved:
                return
            if may_move:
                weights.update(addresses())
            if address not in weights:
                self._saved.add(address)
                self.memory["activations"] += storage.nbytes()

        # hooks of the user, as for offloading: ours call them, since torch runs the last pair only
        pack: Callable[[Tensor], Any] = _unchanged
        unpack: Callable[[Any], Tensor] = _unchanged
        users_hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if users_hooks is not None:
            pack, unpack = users_hooks

        def measure_and_pack(tensor: Tensor) -> Any:
            with reporting(self.failed, "measuring activations"):
                measure(tensor)
            return pack(tensor)

        around_disable = partial(_without_hooks, measure_and_pack, unpack)
        with (
            saved_tensors_hooks(measure_and_pack, unpack),
            tap(graph, "disable_saved_tensors_hooks", around_disable),
        ):
            yield

    def forget_gradients(self) -> None:
        """Discard the gradients of backward passes: an engine sums and reports them itself."""
        self.counts["weight gradients"].clear()
        self.norms.clear()
        if self.sketches is not None:
            self.sketches.forget("weight gradients")

    @non_fatal
    def before_step_sample(
        self,
        parameters: dict[str, Tensor],
        weights: dict[str, Tensor],
        gradients: dict[str, Tensor | None],
    ) -> None:
        """Count the weights before a step, and keep a copy of them until it is over.

        Args:
            parameters: parameter -> its weights in the model.
            weights: parameter -> the weights that the optimizer steps, maybe masters.
            gradients: parameter -> its unscaled gradient, or None.
        """
        arrived = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        # gradients that no hook has seen, such as the sums of an engine
        for name in arrived.keys() - self.norms.keys():
            self.gradient(name, arrived[name], 1.0)
        if "weights" not in self.counts:
            self.counts["weights"] = {
                name: trimmed(count(parameter)) for name, parameter in parameters.items()
            }
            if self.sketches is not None:
                for name, parameter in parameters.items():
                    self.sketches.add("weights", name, parameter)
        self.before = {name: local_part(weight).clone() for name, weight in weights.items()}
        norms = {name: length([gradient]) for name, gradient in arrived.items()}
        if self.sketches is not None:
            for name, norm in norms.items():
                # changed after backward, as by clipping or a sum over ranks
                if abs(norm - self.norms[name]) > CHANGED * norm:
                    self.sketches.add("step gradients", name, arrived[name])
        norm_after_backward = math.hypot(*(self.norms[name] for name in arrived))
        norm = math.hypot(*norms.values())
        if math.isfinite(norm_after_backward) and norm < CLIPPED * norm_after_backward:
            self.clipped = min(self.clipped, norm / norm_after_backward)

    @non_fatal
    @torch.no_grad()
    def after_step_sample(
        self,
        weights: dict[str, Tensor],
        gradients: dict[str, Tensor | None],
        *,
        stochastic: bool = False,
    ) -> None:
        """Count the updates and the swallowed ones, and release the copies of the weights.

        Under stochastic rounding no update counts as swallowed: one that leaves a weight as it is
        would have moved it with another random number.
        """
        for name, weight in weights.items():
            before = self.before.pop(name)
            weight = local_part(weight)
            # the difference of two numbers in 16 bits may not be one
            if weight.itemsize >= 4:
                update = weight - before
            else:
                update = weight.float() - before.float()
            self.add("updates", name, count(update))
            if self.sketches is not None:
                self.sketches.add("updates", name, update)
            gradient = gradients.get(name)
            if gradient is None:
                continue
            if gradient.layout == torch.strided:
                gradient = local_part(gradient)
            else:
                gradient = gradient.to_dense()
            elements, unchanged = swallowed_counts(before, weight, gradient)
            self.moves[name] = (elements, 0 if stochastic else unchanged)

    @non_fatal
    def measure(
        self,
        parameters: Iterable[Tensor],
        weights: Iterable[Tensor],
        optimizer: StatefulOptimizer,
    ) -> None:
        """Measure the memory between two steps, in bytes; each storage once.

        Args:
            parameters: the model's weights.
            weights: the weights that the optimizer steps, maybe masters.
            optimizer: of several optimizers of a model, each adds its masters and its state.
        """
        parameters = list(parameters)
        weights = list(weights)
        gradients = [each.grad for each in (*parameters, *weights) if each.grad is not None]
        states: list[Tensor] = []
        for weight in weights:
            of_weight = optimizer.state.get(weight, {}).values()
            states.extend(each for each in of_weight if isinstance(each, Tensor))
        # the order matters: weights that are not masters were counted as parameters
        counted = set[int]()
        self.memory["weights"] = storage_bytes(parameters, counted)
        self.memory["gradients"] = storage_bytes(gradients, counted)
        self.memory["master weights"] += storage_bytes(weights, counted)
        self.memory["optimizer state"] += storage_bytes(states, counted)

    def done(self) -> WatchedStep:
        """Return the record of what was counted so far; later counts do not change it."""
        return WatchedStep(
            step=self.step,
            scale=self._scale(),
            histograms={kind: dict(of_kind) for kind, of_kind in self.counts.items()},
            moves=dict(self.moves),
            memory=dict(self.memory),
            casts=dict(self.casts),
            clipped=self.clipped,
            half=tuple(sorted(self.half)),
            lines=dict(self.lines),
        )


def _unchanged(value: Any) -> Any:
    """Return the value: the hooks of saved tensors if the user has none."""
    return value
