"""The counts of one sampled step, tensor by tensor.

Idea: tensors are counted as they are, and the scale is taken out of the histogram afterwards: a
power of two shifts its bins. So a sample holds counts only, and adds no computation to the step.

Invariant: no tensor of the step is changed, and each number is counted once: forward passes that
checkpointing repeats in the backward pass are not counted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd import graph
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from labkit.instrument.events import CastBegins, CastEnded, ModuleEnded
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
CHANGED = 1e-5  # of a norm: more than another order of the same sum
COUNTED = (torch.float16, torch.bfloat16, torch.float32)


def in_transform() -> bool:
    """Return whether a transform of torch.func is running, whose tensors hold no numbers."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def compiled(model: nn.Module) -> str:
    """Return why a compiled model's layers cannot be hooked; "" for a plain one."""
    for name, module in model.named_modules():
        if (
            type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
        ):
            return (
                f"{name.removesuffix('_orig_mod') or type(module).__name__} is compiled, and hooks "
                "would change it"
            )
    return ""


def floats(tree: Any) -> list[Tensor]:
    """Return the tensors of real or complex numbers in lists, tuples, dicts and dataclasses."""
    return [
        t
        for t in tree_leaves(tree)
        if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())
    ]


def dtype_name(tensor: Tensor) -> str:
    """Return "float16" for torch.float16."""
    return str(tensor.dtype).removeprefix("torch.")


def local_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a sharded tensor (a DTensor), in the same memory.

    Other tensors are returned unchanged.
    """
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def dense(tensor: Tensor) -> Tensor:
    """Return the stored numbers of a tensor, dense or sparse, in a dtype that can be counted.

    FP64 is rounded to FP32; 8-bit formats fit into it.
    """
    tensor = local_part(tensor)
    if tensor.layout != torch.strided:
        tensor = (
            tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor.values()
        )
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor if tensor.dtype in COUNTED else tensor.float()


def count(tensor: Tensor, scale: float = 1.0) -> ExponentHistogram:
    """Count the numbers of tensor / scale, exactly where the scale is a power of two."""
    significand, exponent = math.frexp(scale)
    if scale == 1:
        return exponent_histogram(dense(tensor))
    if significand == 0.5:
        return shift(exponent_histogram(dense(tensor)), 1 - exponent)
    return exponent_histogram(dense(tensor).float() / scale)


def finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither inf nor NaN."""
    return bool(torch.isfinite(dense(tensor)).all())


def non_finite(tensor: Tensor) -> str:
    """Return "NaN" if a tensor holds NaN, "inf" if it holds inf, else ""."""
    numbers = dense(tensor)
    if bool(torch.isfinite(numbers).all()):
        return ""
    return "NaN" if bool(numbers.isnan().any()) else "inf"


def largest(tensors: Iterable[Tensor]) -> float:
    """Return the largest finite |number|; 0 where none is finite."""
    sizes = [dense(t).abs().float() for t in tensors]
    return max(
        (s[s.isfinite()].max().item() for s in sizes if bool(s.isfinite().any())), default=0.0
    )


def length(tensors: Iterable[Tensor]) -> float:
    """Return the Euclidean length of all numbers together."""
    return math.hypot(*(float(dense(t).float().norm()) for t in tensors))


def checksum(tensor: Tensor) -> int:
    """Return a sum over a tensor's bits, which changes when the tensor does."""
    bits = dense(tensor).contiguous()
    return int(bits.view(torch.int32 if bits.itemsize == 4 else torch.int16).sum(dtype=torch.int64))


def storage_bytes(tensors: Iterable[Tensor], seen: set[int]) -> int:
    """Return the bytes of the tensors' storages that are not in `seen`, and add these to it."""
    total = 0
    for tensor in tensors:
        parts = (
            [tensor._values(), tensor._indices()]
            if tensor.layout == torch.sparse_coo
            else [local_part(tensor)]
        )
        for storage in (part.untyped_storage() for part in parts):
            total += storage.nbytes() if storage.data_ptr() not in seen else 0
            seen.add(storage.data_ptr())
    return total


def non_fatal(method: Callable[..., None]) -> Callable[..., None]:
    """Decorate a method so that its exceptions are reported, and never end the training.

    It runs outside all modes, so that its own casts are not counted as the model's.
    """

    @wraps(method)
    def guarded_method(self: Sample, *args: Any) -> None:
        with reporting(self.failed, method), outside_modes():
            method(self, *args)

    return guarded_method


@contextmanager
def _without_hooks(
    pack: Any, unpack: Any, disable: Any, *args: Any, **kwargs: Any
) -> Iterator[None]:
    """Remove our hooks while torch.func runs, which refuses any.

    Hooks of others are refused as before.
    """
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    ours = top is not None and top[0] is pack
    with ExitStack() as stack:
        if ours:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            stack.callback(torch._C._autograd._push_saved_tensors_default_hooks, pack, unpack)
        with disable(*args, **kwargs):
            yield


class Sketches(Protocol):
    """What keeps sketches of the tensors of a step."""

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
    """Counter of floating-point casts by torch's autocast, the model or a source."""

    def __init__(self, casts: dict[str, tuple[int, int]], by_sources: bool) -> None:
        self._casts = casts
        self._look = not by_sources
        self._inside: list[bool] = []  # of the casts that run: what was counted before

    def begins(self, _: CastBegins) -> None:
        """Count what a region of the lab casts from now on."""
        self._inside.append(self._look)
        self._look = True

    def ended(self, _: CastEnded) -> None:
        """Count as before."""
        self._look = self._inside.pop()

    def look(self, func: Any, args: Any, _: Any) -> Callable[[Tensor], None] | None:
        """Return the count of a cast that is about to run, or None for another operation."""
        return (
            partial(self._count, args[0])
            if self._look and func is torch.ops.aten._to_copy.default
            else None
        )

    def _count(self, before: Tensor, after: Tensor) -> None:
        if after.is_floating_point() and after.dtype != before.dtype:
            name = f"{before.dtype} to {after.dtype}".replace("torch.", "")
            times, size = self._casts.get(name, (0, 0))
            self._casts[name] = (times + 1, size + after.numel() * after.element_size())


class Sample:
    """Counts of one step, from the forward passes observed while it is subscribed to the stream.

    counts    kind -> name of a layer or parameter -> histogram
    norms     parameter -> norm of its gradient after backward, unscaled
    sketches  of a recording; None: nothing is recorded
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
        self.step, self._names, self._scale, self.failed = step, names, scale, failed
        self.kept: dict[tuple[str, int], Tensor] | None = {} if keep else None
        self._numbers: dict[str, int] = defaultdict(int)
        self.counts: dict[str, dict[str, ExponentHistogram]] = defaultdict(dict)
        self.norms: dict[str, float] = {}
        self.moves: dict[str, tuple[int, int]] = {}
        self.memory: dict[str, int] = dict.fromkeys(MEMORY, 0)
        self.casts: dict[str, tuple[int, int]] = {}
        self.clipped = 1.0
        self.before: dict[str, Tensor] = {}
        self.inner = False  # torch.autograd.grad is running
        self.half: set[str] = set()  # layers whose gradients arrived in FP16
        self.lines: dict[str, str] = {}
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
        again = in_backward()
        for tensor in floats(event.output):
            if not again:
                self.add("activations", name, count(tensor))
            if tensor.requires_grad:
                tensor.register_hook(partial(self._arrived, name, self._numbers[name]))
                self._numbers[name] += 1
            if self.sketches is not None and not again:
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
        before = self.counts[kind].get(name)
        self.counts[kind][name] = trimmed(
            histogram if before is None else merge([before, histogram])
        )

    @non_fatal
    def gradient(self, name: str, gradient: Tensor, scale: float) -> None:
        """Count a parameter's gradient after backward.

        The last backward of a step has the sum of all.
        """
        self.counts["weight gradients"][name] = trimmed(count(gradient, scale))
        if self.sketches is None:
            norm = length([gradient])
        else:
            norm = self.sketches.add("weight gradients", name, gradient, scale)
        self.norms[name] = norm / scale

    @contextmanager
    def inside(self, parameters: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
        """Measure the tensors that a forward pass saves for backward, and count its casts."""
        # then they are gathered for a while
        sharded = any(hasattr(p, "to_local") for p in parameters())
        weights = {local_part(p).untyped_storage().data_ptr() for p in parameters()}
        # of the user, as for offloading
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)
        pack, unpack = top if top is not None else (lambda t: t, lambda t: t)

        def note(tensor: Tensor) -> None:
            if tensor.layout == torch.strided and type(tensor) in (Tensor, nn.Parameter):
                storage = tensor.untyped_storage()
                if sharded and storage.data_ptr() not in self._saved:
                    weights.update(local_part(p).untyped_storage().data_ptr() for p in parameters())
                if storage.data_ptr() not in weights and storage.data_ptr() not in self._saved:
                    self._saved.add(storage.data_ptr())
                    self.memory["activations"] += storage.nbytes()

        def note_and_pack(tensor: Tensor) -> Any:
            with reporting(self.failed, "measuring activations"):
                note(tensor)
            return pack(tensor)

        with ExitStack() as stack:
            stack.enter_context(saved_tensors_hooks(note_and_pack, unpack))
            stack.enter_context(
                tap(
                    graph,
                    "disable_saved_tensors_hooks",
                    partial(_without_hooks, note_and_pack, unpack),
                )
            )
            casts = CountedCasts(self.casts, by_sources=bool(open_modes()))
            stack.enter_context(Operations(casts.look, self.failed))
            counting = Listener(self.failed)
            counting.on(CastBegins, casts.begins).on(CastEnded, casts.ended)
            stack.enter_context(STREAM.subscribed(counting))
            yield

    def forget_gradients(self) -> None:
        """Discard the gradients of backward: an engine accumulates them, and reports the sum."""
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
        """Count the weights before a step, and keep a copy of them until it is over."""
        arrived = {name: gradient for name, gradient in gradients.items() if gradient is not None}
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
        taken_norms = {name: length([gradient]) for name, gradient in arrived.items()}
        if self.sketches is not None:
            for name, norm in taken_norms.items():
                # changed after backward, as by clipping or a sum over ranks
                if abs(norm - self.norms[name]) > CHANGED * norm:
                    self.sketches.add("step gradients", name, arrived[name])
        left = math.hypot(*(self.norms[name] for name in arrived))
        taken = math.hypot(*taken_norms.values())
        if math.isfinite(left) and taken < 0.999 * left:
            self.clipped = min(self.clipped, taken / left)

    @non_fatal
    @torch.no_grad()
    def after_step_sample(
        self, weights: dict[str, Tensor], gradients: dict[str, Tensor | None]
    ) -> None:
        """Count the updates and the swallowed ones; then release the copy."""
        for name, weight in weights.items():
            before = self.before.pop(name)
            weight = local_part(weight)
            gradient = gradients.get(name)
            wide = weight.itemsize >= 4
            update = weight.detach() - before if wide else weight.float() - before.float()
            self.add("updates", name, count(update))
            if self.sketches is not None:
                self.sketches.add("updates", name, update)
            if gradient is not None:
                full = (
                    gradient.to_dense()
                    if gradient.layout != torch.strided
                    else local_part(gradient)
                )
                self.moves[name] = swallowed_counts(before, weight, full)

    @non_fatal
    def measure(
        self, parameters: Iterable[Tensor], weights: Iterable[Tensor], optimizer: Any
    ) -> None:
        """Measure the memory between two steps, in bytes; each storage once."""
        parameters = list(parameters)
        weights = list(weights)
        seen = set[int]()
        states = [
            t for w in weights for t in optimizer.state.get(w, {}).values() if isinstance(t, Tensor)
        ]
        gradients = [t.grad for t in (*parameters, *weights) if t.grad is not None]
        self.memory |= {
            "weights": storage_bytes(parameters, seen),
            "gradients": storage_bytes(gradients, seen),
        }
        self.memory["master weights"] += storage_bytes(weights, seen)
        self.memory["optimizer state"] += storage_bytes(states, seen)

    def done(self) -> WatchedStep:
        """Return what was counted, as a record."""
        counts = dict(self.counts)
        half = tuple(sorted(self.half))
        return WatchedStep(
            self.step,
            self._scale(),
            counts,
            self.moves,
            self.memory,
            self.casts,
            self.clipped,
            half,
            self.lines,
        )
