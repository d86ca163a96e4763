"""Unscaling: cast first, divide then, find what is not finite, and name it."""

import itertools
import math
import random
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.amp import unscale

LOW, WIDE = (torch.float16, torch.bfloat16), (torch.float32, torch.float64)


def test_worked_example() -> None:
    # 2^-24 is FP16's smallest subnormal; unscaled by 2^10 it is 2^-34, which only FP32 holds.
    (gradient,), found_inf = unscale([torch.tensor([2.0**-24]).half()], 2.0**10)
    assert gradient.dtype == torch.float32
    assert gradient.item() == 2.0**-34
    assert not found_inf


@pytest.mark.parametrize("in_place", [False, True])
def test_every_dtype_keeps_its_values_and_none_gets_narrower(in_place: bool) -> None:
    for dtype in (*LOW, *WIDE):
        scaled = torch.tensor([3.0, -0.5, 0.0], dtype=dtype) * 2**8
        before = scaled.clone()
        (gradient,), found_inf = unscale([scaled], 2.0**8, in_place=in_place)
        assert gradient.dtype == (torch.float32 if dtype in LOW else dtype)
        assert gradient.tolist() == [3.0, -0.5, 0.0], dtype
        assert not found_inf
        assert (gradient.data_ptr() == scaled.data_ptr()) == (in_place and dtype in WIDE)
        assert torch.equal(scaled, gradient if in_place and dtype in WIDE else before), dtype


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_one_bad_element_anywhere_is_found_and_named(bad: float) -> None:
    for dtype, position in itertools.product((*LOW, *WIDE), range(4)):
        gradients = [torch.ones(3).half(), torch.ones(2, 2), torch.ones(()), torch.ones(37, dtype=dtype)]
        gradients[position].view(-1)[-1] = bad
        assert unscale(gradients, 8.0)[1] is True, (dtype, position)
        assert unscale(gradients, 8.0, names=["a", "b", "c", "d"])[1:] == (True, ("abcd"[position],))


def test_all_culprits_are_named_in_order_and_nobody_when_all_is_well() -> None:
    bad, good, empty = torch.tensor([math.nan, 1.0]), torch.ones(2), torch.ones(0)
    assert unscale([bad, good, empty, bad.half()], 8.0, list("abcd"))[1:] == (True, ("a", "d"))
    assert unscale([good, empty], 8.0, list("ab"))[1:] == (False, ())
    overflowing_sums = [torch.full((4,), 60000.0).half(), torch.full((4,), 3e38)]
    assert unscale(overflowing_sums, 8.0, list("ab"))[1:] == (False, ()), "each element is finite"
    with pytest.raises(ValueError, match="given 1 for 2"):
        unscale([good, good], 8.0, ["a"])


def test_what_overflows_by_unscaling_is_found_too() -> None:
    # Finite as it arrives: a scale below 1 makes it larger. torch looks before it multiplies, and lets this through.
    for dtype in WIDE:
        huge = torch.tensor([torch.finfo(dtype).max / 2], dtype=dtype)
        (unscaled,), found_inf, culprits = unscale([huge], 2.0**-126, ["huge"])
        assert torch.isinf(unscaled).all()
        assert (found_inf, culprits) == (True, ("huge",))


@pytest.mark.parametrize("in_place", [False, True])
def test_fp32_gradients_equal_torch_amps_bit_for_bit(in_place: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    for scale in (2.0**13, 2.0**127, 1000.0, 1.1, 0.3):
        gradients = [torch.randn(50, generator=generator) * 2.0**e for e in range(-20, 20)]
        parameters = [torch.nn.Parameter(torch.zeros(50)) for _ in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(()))
        scaler.unscale_(torch.optim.SGD(parameters))
        ours, _ = unscale(gradients, torch.tensor(scale).item(), in_place=in_place)
        assert all(torch.equal(mine, p.grad) for mine, p in zip(ours, parameters, strict=True)), scale


def test_fp64_gradients_keep_their_precision() -> None:
    # The kernel takes its reciprocal in FP32; 1/3 of that would be right to 8 digits only.
    (gradient,), _ = unscale([torch.tensor([1.0], dtype=torch.float64)], 3.0)
    assert gradient.item() == 1 / 3


def test_shapes_and_strides_of_all_kinds() -> None:
    everything = [torch.ones(()), torch.ones(0), torch.ones(4, 6).T, torch.ones(4, 6)[:, ::2], torch.ones(1).expand(5)]
    for gradient, unscaled in zip(everything, unscale(everything, 4.0)[0], strict=True):
        assert torch.equal(unscaled, torch.full(gradient.shape, 0.25))
    assert unscale([], 4.0) == ([], False)
    assert unscale([], 4.0, []) == ([], False, ())


@pytest.mark.parametrize("in_place", [False, True])
def test_sparse_gradients_are_added_up_in_fp32_then_unscaled(in_place: bool) -> None:
    # Row 1 twice: 40000 + 40000 is beyond FP16, but not beyond the FP32 that the optimizer will see.
    for dtype in (*LOW, *WIDE):
        rows = torch.tensor([[40000.0, 8.0], [16.0, 0.0], [40000.0, 8.0]], dtype=dtype)
        sparse = torch.sparse_coo_tensor(torch.tensor([[1, 3, 1]]), rows, (5, 2), check_invariants=True)
        expected = sparse.to(torch.float64).to_dense() / 8
        (unscaled,), found_inf = unscale([sparse], 8.0, in_place=in_place)
        assert unscaled.is_sparse
        assert not found_inf
        assert torch.equal(unscaled.to_dense().double(), expected), dtype
        sparse._values()[0, 0] = math.nan
        assert unscale([sparse], 8.0, ["embedding"], in_place=in_place)[1:] == (True, ("embedding",))


def test_duplicates_that_overflow_only_together_are_found() -> None:
    twice = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), torch.tensor([3e38, 3e38]), (2,), check_invariants=True)
    (unscaled,), found_inf = unscale([twice], 8.0)
    assert found_inf, "the optimizer would have added them up"
    assert unscaled.is_coalesced()
    single = torch.eye(3).to_sparse()
    for in_place, left in ((False, 1.0), (True, 0.25)):
        unscale([single], 4.0, in_place=in_place)
        assert torch.equal(single.to_dense(), torch.eye(3) * left), "copied like any other, unless in place"


def test_what_is_no_gradient_and_a_scale_that_is_none_are_refused() -> None:
    for dtype, in_place in itertools.product((torch.complex64, torch.int32), (False, True)):
        with pytest.raises(TypeError, match="floating-point"):
            unscale([torch.ones(2, dtype=dtype)], 4.0, in_place=in_place)
    for scale in (0.0, -2.0, 2.0**-128, 2.0**128, math.inf, math.nan):
        with pytest.raises(ValueError, match="positive finite"):
            unscale([torch.ones(1)], scale)


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for a device: reading a scalar, or copying to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


def test_the_host_waits_once_however_many_tensors_there_are() -> None:
    gradients = [torch.ones(3) for _ in range(100)]
    with Waits() as waits:
        unscale(gradients, 8.0)
    assert waits.count == 1


def test_a_thousand_random_steps_find_exactly_what_isfinite_finds() -> None:
    rng = random.Random(0)
    for number in range(1000):
        gradients = [torch.zeros(rng.randrange(5), dtype=rng.choice([*LOW, *WIDE])) for _ in range(rng.randrange(6))]
        for gradient in gradients:
            if gradient.numel() and rng.random() < 0.2:
                gradient[rng.randrange(len(gradient))] = rng.choice([math.inf, -math.inf, math.nan, 65504.0])
        names = [str(i) for i in range(len(gradients))]
        expected = tuple(n for n, g in zip(names, gradients, strict=True) if not torch.isfinite(g).all())
        assert unscale(gradients, 2.0, names)[1:] == (bool(expected), expected), number
