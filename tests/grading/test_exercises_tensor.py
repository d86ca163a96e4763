"""The exercises of lesson 03: references against decimal numbers, gfloat, numpy, torch's autograd and its counters."""

from __future__ import annotations

import math
from decimal import ROUND_DOWN, Decimal, localcontext

import gfloat
import numpy as np
import torch
from gfloat.formats import format_info_binary16, format_info_binary32
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.grading.cases import cases, reference


def test_flops_and_bytes_are_torchs() -> None:
    answers = set()
    for batch, inputs, outputs, bytes_each, ridge in cases("tensor.intensity"):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:  # shapes only: nothing is computed
            x, layer = torch.empty(batch, inputs), nn.Linear(inputs, outputs, bias=False)
            y = layer(x)
        flops, moved, bound = reference("tensor.intensity")(batch, inputs, outputs, bytes_each, ridge)
        assert flops == counter.get_total_flops()
        assert moved == bytes_each * (x.numel() + layer.weight.numel() + y.numel())
        assert bound == ("bandwidth" if flops < ridge * moved else "compute")
        answers.add(bound)
    assert answers == {"bandwidth", "compute"}


def in_decimals(a: list[float], b: list[float], c: float, fraction_bits: int) -> float:
    """Add a block in decimal numbers, which hold every binary fraction here exactly; gfloat cuts the sum to FP32."""

    def exponent(x: float) -> int:
        return int(np.frexp(x)[1]) - 1

    with localcontext(prec=200):
        terms = [Decimal(x) * Decimal(y) for x, y in zip(a, b, strict=True)] + [Decimal(c)]
        powers = [exponent(x) + exponent(y) for x, y in zip(a, b, strict=True)] + [exponent(c)]
        largest = max((power for term, power in zip(terms, powers, strict=True) if term), default=0)
        unit = Decimal(2) ** (largest - fraction_bits)
        total = sum(((term / unit).to_integral_value(ROUND_DOWN) for term in terms), Decimal(0)) * unit
        exact = float(total)
        assert Decimal(exact) == total
    return float(gfloat.round_float(format_info_binary32, exact, gfloat.RoundMode.TowardZero))


def test_a_block_is_what_decimal_numbers_add_up_to() -> None:
    for a, b, c, fraction_bits in cases("tensor.block"):
        assert all(float(np.float16(x)) == x and (abs(x) >= 2.0**-14 or x == 0) for x in (*a, *b)), "normal, in FP16"
        assert (float(np.float32(c)), len(a) == len(b) <= 16, fraction_bits in (23, 24, 25)) == (c, True, True)
        assert reference("tensor.block")(a, b, c, fraction_bits) == in_decimals(a, b, c, fraction_bits)


def test_padding_is_torchs_and_changes_no_result() -> None:
    for x, weight in cases("tensor.padding"):
        wide, tall, y = reference("tensor.padding")(x, weight)
        for old, new in ((x, wide), (weight, tall)):
            rows, columns = (-size % 8 for size in old.shape)
            assert torch.equal(new, F.pad(old, (0, columns, 0, rows)))
        assert torch.equal(y, F.linear(x.double(), weight.double()).half())


def test_the_standstill_is_where_gfloats_rounding_stops() -> None:
    for a, b in cases("tensor.standstill"):
        k, total = 0, 0.0
        while True:
            longer = gfloat.round_float(format_info_binary16, math.fsum([total, a * b]))
            if longer == total:
                break
            k, total = k + 1, longer
        assert reference("tensor.standstill")(a, b) == (k, total)


def test_the_standstill_of_fp16_numbers_is_numpys_running_sum() -> None:
    numbers = [a for a, b in cases("tensor.standstill") if b == 1.0]
    assert len(numbers) >= 12
    for a in numbers:
        with np.errstate(over="ignore"):
            running = np.add.accumulate(np.full(8192, a, np.float16))
        k = 1 + int(np.argmax(running[1:] == running[:-1]))
        assert reference("tensor.standstill")(a, 1.0) == (k, float(running[-1]))


def test_backward_is_torchs_autograd_and_counts_its_flops() -> None:
    for x, weight, grad_y in cases("tensor.backward"):
        x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
        y = F.linear(x, weight)
        with FlopCounterMode(display=False) as counter:
            y.backward(grad_y)
        grad_x, grad_weight, shapes = reference("tensor.backward")(x.detach(), weight.detach(), grad_y)
        assert torch.equal(grad_x, x.grad)
        assert torch.equal(grad_weight, weight.grad)
        assert [shape[:2] for shape in shapes] == [grad_x.shape, grad_weight.shape]
        assert sum(2 * math.prod(shape) for shape in shapes) == counter.get_total_flops()
