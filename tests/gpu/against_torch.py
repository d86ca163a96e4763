"""`labkit.frameworks.torch_amp` against torch.amp on a card: call by call, and whole trainings.

Each function runs in a process that has a card, real or simulated, and returns the differences as
plain values. Dtypes and bytes of results are compared, and of gradients where a call is a module.
The dtypes of labkit on a CPU are compared with those of torch on the card.
"""

import logging
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.frameworks.torch_amp import GradScaler, autocast
from labkit.gpu.measure import cross_entropy, example

LISTS = {"torch": torch, "nn": torch._C._nn, "linalg": torch._C._linalg, "method": torch.Tensor}
EQUAL = "equal"
REFUSED = "refused"
# The first word of the result of a listed call that torch itself refuses.
UNUSABLE = "unusable"
HALF = torch.float16
RECURRENT = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
TRAINED = ("MLP", "CNN", "transformer", "LSTM")

# A function of the region in which its forward pass runs.
Call = Callable[[Any], Any]


def outcome(call: Call, region: Any) -> tuple[list[Tensor], str]:
    """Return the tensors that a call returns, or none and why it was refused."""
    torch.manual_seed(0)
    try:
        out = call(region)
    except Exception as error:
        return [], f"{type(error).__name__}: {error}"[:80]
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)], ""


def compare(
    theirs: tuple[list[Tensor], str], ours: tuple[list[Tensor], str], *, bytes_too: bool = True
) -> str:
    """Return "equal", "refused" where both refuse, or how two outcomes differ."""
    if theirs[1] or ours[1]:
        return (
            REFUSED
            if theirs[1] and ours[1]
            else f"torch {theirs[1] or 'accepts'}; labkit {ours[1] or 'accepts'}"
        )
    dtypes = [
        [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
        for tensors, _ in (theirs, ours)
    ]
    if dtypes[0] != dtypes[1]:
        return f"torch returns {', '.join(dtypes[0])}; labkit {', '.join(dtypes[1])}"
    same = not bytes_too or all(_raw(x) == _raw(y) for x, y in zip(theirs[0], ours[0], strict=True))
    return EQUAL if same else "the numbers differ"


def _raw(tensor: Tensor) -> tuple[torch.Size, bytes]:
    dense = (
        tensor.detach().cpu().to_dense()
        if tensor.layout != torch.strided
        else tensor.detach().cpu()
    )
    flat = torch.empty(dense.numel(), dtype=dense.dtype).copy_(
        dense.resolve_conj().resolve_neg().flatten()
    )
    return tensor.shape, flat.view(torch.uint8).numpy().tobytes()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings and logs, of which deprecated and refused operations make many."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


class Comparison:
    """Counts of equal and of refused calls, and the differences by the name of a call."""

    def __init__(self) -> None:
        self.equal = self.refused = self.unrepeatable = 0
        self.different: dict[str, set[str]] = {}
        self.on_cpu: dict[str, set[str]] = {}

    def add(self, name: str, call: Call, on_cpu: Call) -> None:
        """Make a call under torch's region and ours, and under ours on a CPU."""
        theirs = outcome(call, torch.autocast("cuda", HALF))
        how = compare(theirs, outcome(call, autocast("cuda", HALF)))
        if (
            how == "the numbers differ"
            and compare(theirs, outcome(call, torch.autocast("cuda", HALF))) != EQUAL
        ):
            # torch differs from itself: the call returns uninitialized memory.
            self.unrepeatable += 1
        elif how == EQUAL:
            self.equal += 1
        elif how == REFUSED:
            self.refused += 1
        else:
            self.different.setdefault(name, set()).add(how)
        if not theirs[1]:
            ours = outcome(on_cpu, autocast("cpu", HALF))
            if (how := compare(theirs, ours, bytes_too=False)) != EQUAL:
                self.on_cpu.setdefault(name, set()).add(how)

    def answer(self) -> dict[str, Any]:
        plain = {
            where: {k: sorted(v) for k, v in getattr(self, where).items()}
            for where in ("different", "on_cpu")
        }
        return {
            "equal": self.equal,
            "refused": self.refused,
            "unrepeatable": self.unrepeatable,
            **plain,
        }


def _on_card(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cuda()
    return torch.device("cuda") if str(value) == "cpu" else value


def ways_to_call(op: Any) -> list[Callable[..., Any]]:
    ways = [op.op, op.method_variant, op.operator_variant, *(alias.op for alias in op.aliases)]
    return list({id(way): way for way in ways if way is not None}.values())


def operations(given: str, samples: int) -> dict[str, Any]:
    """Compare every operation that torch knows (OpInfo), on its first samples, in FP32 or FP16."""
    from torch.testing._internal.common_methods_invocations import op_db

    comparison = Comparison()
    with quiet():
        for op in (op for op in op_db if torch.float32 in op.dtypes):
            torch.manual_seed(0)
            inputs = op.sample_inputs("cpu", torch.float32)
            for _, sample in zip(range(samples), inputs, strict=False):
                _compare_sample(comparison, op, sample, getattr(torch, given))
    return comparison.answer()


def _compare_sample(comparison: Comparison, op: Any, sample: Any, dtype: torch.dtype) -> None:
    arguments = (sample.input, sample.args, sample.kwargs)
    if any(
        leaf.layout != torch.strided for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)
    ):
        return
    here = tree_map_only(
        Tensor,
        lambda t: t.detach().to(dtype) if t.dtype == torch.float32 else t.detach(),
        arguments,
    )
    there = tree_map_only((Tensor, torch.device, str), _on_card, here)

    def call(way: Callable[..., Any], arguments: Any, region: Any) -> Any:
        # The operation may write to its arguments, so it gets copies.
        first, rest, named = tree_map_only(Tensor, Tensor.clone, arguments)
        with region:
            return way(first, *rest, **named)

    for way in ways_to_call(op):
        comparison.add(op.name, partial(call, way, there), partial(call, way, here))


def modules(given: str) -> dict[str, Any]:
    """Compare every module of torch.nn, forward and backward.

    The weights are FP32, and the inputs of a dtype.
    """
    from torch.testing._internal.common_modules import module_db

    comparison = Comparison()
    with quiet():
        for info, training in product(module_db, (True, False)):
            torch.manual_seed(0)
            how = {
                "device": "cpu",
                "dtype": torch.float32,
                "requires_grad": False,
                "training": training,
            }
            for sample in info.module_inputs_func(info, **how):
                if sample.forward_input is not None:
                    made = partial(_module_call, info, sample, training, getattr(torch, given))
                    comparison.add(info.name, made("cuda"), made("cpu"))
    return comparison.answer()


def _module_call(info: Any, sample: Any, training: bool, dtype: torch.dtype, device: str) -> Call:
    def to(value: Tensor) -> Tensor:
        value = value.detach().to(
            device, dtype if value.dtype == torch.float32 else value.dtype, copy=True
        )
        return value.requires_grad_(value.is_floating_point())

    def call(region: Any) -> list[Tensor]:
        torch.manual_seed(0)
        constructed = sample.constructor_input
        model: nn.Module = (
            info.module_cls(*constructed.args, **constructed.kwargs).to(device).train(training)
        )
        args, named = tree_map_only(
            Tensor, to, (sample.forward_input.args, sample.forward_input.kwargs)
        )
        with region:
            out = model(*args, **named)
        return _with_gradients(out, [*model.parameters(), *tree_leaves((args, named))])

    return call


def _with_gradients(out: Any, leaves: list[Any]) -> list[Tensor]:
    """Return the tensors of an output, and the gradients of leaves.

    The backward pass runs outside of autocast.
    """
    tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
    differentiable = [tensor for tensor in tensors if tensor.requires_grad]
    if differentiable:
        torch.autograd.backward(
            differentiable, [torch.ones_like(tensor) for tensor in differentiable]
        )
    return tensors + [
        leaf.grad for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad is not None
    ]


def covariance(correction: int, to: Callable[[Tensor], Tensor], *_: Any) -> Tensor:
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    return torch.cov(to(rows), correction=correction)


def power_of_matrix(n: int, to: Callable[[Tensor], Tensor], *_: Any) -> Tensor:
    square = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(2))
    # Detached, because gradients of higher powers differ in the last bit: torch adds in another
    # order.
    return torch.linalg.matrix_power(to(square).detach(), n)


# Inputs of COMPOSITES: logits, eight rows of them with probabilities beside each, classes of these
# rows, and weights of classes.
_INPUTS = torch.Generator().manual_seed(0)
LOGITS, OTHER = (4 * torch.randn(2, 4, 6, 8, generator=_INPUTS) for _ in range(2))
CLASSES = torch.randint(8, (8,), generator=_INPUTS)
ROWS = LOGITS.view(-1, 8)[:8]
WEIGHT = torch.rand(8, generator=_INPUTS)
SOFT = OTHER.view(-1, 8)[:8].softmax(1)
# Name -> a function of torch.nn.functional that consists of several operations. Its arguments are a
# function that moves tensors to a device and a dtype, the classes, and the weights of classes.
COMPOSITES: dict[str, Callable[..., Any]] = {
    "softmax": lambda t, *_: F.softmax(t(LOGITS), -1),
    "softmax, dtype named": lambda t, *_: F.softmax(t(LOGITS), -1, dtype=HALF),
    "log_softmax, dtype named": lambda t, *_: F.log_softmax(t(LOGITS), -1, dtype=HALF),
    "softmin": lambda t, *_: F.softmin(t(LOGITS), -1),
    "gumbel_softmax": lambda t, *_: F.gumbel_softmax(t(LOGITS), hard=False),
    "gumbel_softmax, hard": lambda t, *_: F.gumbel_softmax(t(LOGITS), hard=True),
    "cosine_similarity": lambda t, *_: F.cosine_similarity(t(LOGITS), t(OTHER), -1),
    "cosine_embedding_loss": lambda t, y, _: F.cosine_embedding_loss(t(ROWS), t(SOFT), y.sign()),
    "triplet_margin_loss": lambda t, *_: F.triplet_margin_loss(t(ROWS), t(SOFT), t(ROWS.flip(0))),
    "pairwise_distance": lambda t, *_: F.pairwise_distance(t(ROWS), t(SOFT)),
    "binary_cross_entropy": lambda t, *_: F.binary_cross_entropy(t(SOFT), t(SOFT)),
    "binary_cross_entropy_with_logits": lambda t, *_: F.binary_cross_entropy_with_logits(
        t(ROWS), t(SOFT)
    ),
    "kl_div": lambda t, *_: F.kl_div(F.log_softmax(t(ROWS), 1), t(SOFT), reduction="batchmean"),
    "kl_div, log_target": lambda t, *_: F.kl_div(
        t(ROWS), t(SOFT.log()), log_target=True, reduction="sum"
    ),
    "nll_loss": lambda t, y, _: F.nll_loss(t(ROWS), y),
    "ctc_loss": lambda t, y, _: F.ctc_loss(
        F.log_softmax(t(LOGITS.view(24, 2, 8)), -1), y.clamp_min(1).view(2, 4), [24, 24], [4, 4]
    ),
    "attention": lambda t, *_: F.scaled_dot_product_attention(t(LOGITS), t(OTHER), t(LOGITS)),
    "attention, causal": lambda t, *_: F.scaled_dot_product_attention(
        t(LOGITS), t(OTHER), t(LOGITS), is_causal=True
    ),
    "linear_cross_entropy": lambda t, y, _: F.linear_cross_entropy(t(ROWS), t(SOFT), y),
    **{f"cov, correction {n}": partial(covariance, n) for n in (0, 1)},
    "corrcoef": lambda t, *_: torch.corrcoef(t(ROWS)),
    "corrcoef of one row": lambda t, *_: torch.corrcoef(t(ROWS[0])),
    **{f"matrix_power {n}": partial(power_of_matrix, n) for n in (0, 1, 2, 3, 5, 6)},
    "inner": lambda t, *_: torch.inner(t(ROWS), t(SOFT)),
    "inner of two dtypes": lambda t, _, w: torch.inner(t(ROWS), w),
    "affine_grid": lambda t, *_: F.affine_grid(t(ROWS[:2, :6].view(2, 2, 3)), (2, 1, 4, 5), True),
    "affine_grid, 3-D": lambda t, *_: F.affine_grid(
        t(LOGITS[:, :2, :1, :6].reshape(2, 3, 4)[:1]), (1, 1, 2, 3, 4), False
    ),
    "ldexp": lambda t, y, _: torch.ldexp(t(ROWS), y),
    "mvlgamma": lambda t, *_: torch.mvlgamma(t(ROWS).abs() + 2, 3),
    "trapezoid": lambda t, *_: torch.trapezoid(t(ROWS)),
    "trapezoid at points": lambda t, *_: torch.trapezoid(t(ROWS), t(SOFT)),
    "trapezoid, dx": lambda t, *_: torch.trapz(t(ROWS), dx=0.5, dim=0),
    "cumulative_trapezoid": lambda t, *_: torch.cumulative_trapezoid(t(ROWS), dim=0),
    "normalize": lambda t, *_: F.normalize(t(LOGITS), dim=-1),
    "local_response_norm": lambda t, *_: F.local_response_norm(t(LOGITS), 2),
}


def cross_entropies() -> dict[str, Callable[..., Any]]:
    """Return cross entropies of classes and of probabilities, with all options."""

    def cross_entropy(
        how: dict[str, Any], weighted: bool, to: Callable[[Tensor], Tensor], y: Tensor, w: Tensor
    ) -> list[Tensor]:
        weight = w if weighted else None
        return [F.cross_entropy(to(ROWS), target, weight, **how) for target in (y, to(SOFT))]

    calls: dict[str, Callable[..., Any]] = {}
    for reduction, smoothing, weighted in product(
        ("mean", "sum", "none"), (0.0, 0.1), (False, True)
    ):
        how = {"reduction": reduction, "label_smoothing": smoothing}
        suffix = ", weight" if weighted else ""
        calls[f"cross_entropy {how}{suffix}"] = partial(cross_entropy, how, weighted)
    return calls


def composite_call(function: Callable[..., Any], device: str, dtype: torch.dtype) -> Call:
    """Return a call of a composite on a device in a dtype, forward and backward."""

    def call(region: Any) -> list[Tensor]:
        sent: list[Tensor] = []

        def to(tensor: Tensor) -> Tensor:
            sent.append(tensor.detach().to(device, dtype, copy=True).requires_grad_())
            return sent[-1]

        with region:
            out = function(to, CLASSES.to(device), WEIGHT.to(device))
        return _with_gradients(out, sent)

    return call


def composites() -> dict[str, Any]:
    """Compare functions of torch.nn.functional that consist of several operations."""
    comparison = Comparison()
    with quiet():
        calls = {**COMPOSITES, **cross_entropies()}
        for (name, function), dtype in product(calls.items(), (torch.float32, HALF)):
            on_both = [composite_call(function, device, dtype) for device in ("cuda", "cpu")]
            comparison.add(name, *on_both)
    return comparison.answer()


# --- what `labkit gpu` asks of a card: the calls of torch's own lists, recurrent layers, trainings
# A function that opens a region of autocast, and one that makes a scaler.
Pair = tuple[Callable[[], Any], Callable[..., Any]]


def pairs(device: str) -> tuple[Pair, Pair]:
    """Return the pairs of torch and of labkit; without a GPU, labkit's twice, as a rehearsal."""
    ours = partial(autocast, device, HALF), GradScaler
    theirs = (
        (partial(torch.autocast, device, HALF), torch.amp.GradScaler) if device == "cuda" else ours
    )
    return theirs, ours


@contextmanager
def repeatable() -> Iterator[None]:
    """Use deterministic kernels, without which torch.amp would not equal itself."""
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with exact, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


def listed_calls(device: str) -> dict[str, list[Any]]:
    """Return the rows of torch's autocast test lists by group.

    A row has a name, arguments and, in some rows, keyword arguments.
    """
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        # The lists need only its base class, for tests that are not run here.
        except ImportError:
            sys.modules["expecttest"] = types.ModuleType("expecttest")
            sys.modules["expecttest"].TestCase = unittest.TestCase
    from torch.testing._internal.autocast_test_lists import AutocastTestLists

    torch.manual_seed(0)
    listed = vars(AutocastTestLists(torch.device(device)))
    # The row of einsum is malformed in torch, and is left out.
    return {
        group: [row for row in rows if isinstance(row[1], tuple)] for group, rows in listed.items()
    }


def groups() -> list[str]:
    """Return the groups of torch's lists.

    If they cannot be read, return the group "lists", whose check fails with the reason.
    """
    try:
        return list(listed_calls("cpu"))
    except Exception:
        return ["lists"]


def lists(group: str, device: str, theirs: Pair, ours: Pair) -> dict[str, str]:
    """Return the result of each call of a group, in every module of torch that has the function.

    A result is "equal", "unusable: ..." where torch itself refuses, or the difference.
    """
    found = {}
    with quiet():
        for name, args, *rest in listed_calls(device)[group]:
            named = next((part for part in rest if isinstance(part, dict)), {})
            for home, module in LISTS.items():
                if hasattr(module, name):
                    call = partial(_listed, getattr(module, name), args, named)
                    its, mine = (outcome(call, region()) for region, _ in (theirs, ours))
                    how = compare(its, mine)
                    found[f"{len(found)} {group} {home}.{name}"] = (
                        f"{UNUSABLE}: {its[1]}" if how == REFUSED else how
                    )
    return found


def _listed(function: Callable[..., Any], args: Any, named: Any, region: Any) -> Any:
    with region:
        return function(*args, **named)


def recurrent(layer: str, width: int, packed: bool, device: str) -> Call:
    """Return a call of a linear and a recurrent layer, forward and backward.

    With `packed`, the recurrent layer gets a packed sequence.
    """

    def call(region: Any) -> list[Tensor]:
        first = nn.Linear(width, width).to(device)
        last = RECURRENT[layer](width, width, batch_first=True).to(device)
        x = torch.randn(3, 7, width, device=device)
        with region:
            out = first(x)
            out = last(
                nn.utils.rnn.pack_padded_sequence(out, [7, 5, 2], batch_first=True)
                if packed
                else out
            )[0]
        return _with_gradients(
            out.data if packed else out, [*first.parameters(), *last.parameters()]
        )

    return call


def compare_training(
    network: str, theirs: Pair, ours: Pair, device: str, width: int, steps: int
) -> str:
    """Return "equal", or the first step at which two trainings of a network differ.

    The initial scale is so high that the first steps overflow, and it grows every third step, so
    both branches of the scaler are tested.
    """
    with repeatable():
        runs = [_training(network, device, width, steps, *pair) for pair in (theirs, ours)]
    different = (
        f"step {n}: {b} instead of {a}"
        for n, (a, b) in enumerate(zip(*runs, strict=True))
        if a != b
    )
    return next(different, EQUAL)


def _training(
    network: str, device: str, width: int, steps: int, region: Any, new_scaler: Any
) -> list[str]:
    """Return a text for each step with its loss, and the scale and its tracker after it."""
    model, x, target = example(network, width, 32, device)
    scaler = new_scaler(device, init_scale=2.0**24, growth_interval=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        with region():
            loss = cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        seen.append(
            f"loss {loss.item()!r}, scale {scaler.get_scale()!r}, tracker "
            f"{scaler._get_growth_tracker()}"
        )
    return seen
