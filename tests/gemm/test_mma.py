"""The rows of Tensor Cores, and the stations of one block."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, TF32
from labkit.gemm import ROWS, SPECS, emulate, explain
from tests.oracles.mma_cases import MAKERS, cases

# arXiv:2511.10909: (block length, fraction bits) for each generation and operand, typed from the paper's account.
PAPER = {
    "V100": {FP16: (4, 23)},
    "T4": {FP16: (8, 24)},
    "A100": {FP16: (8, 24), BF16: (8, 24), TF32: (4, 24)},
    "Ada": {FP16: (8, 24), BF16: (8, 24), TF32: (4, 24), E4M3: (16, 13), E5M2: (16, 13)},
    "H100": {FP16: (16, 25), BF16: (16, 25), TF32: (8, 25), E4M3: (32, 13), E5M2: (32, 13)},
    "H200": {FP16: (16, 25), BF16: (16, 25), TF32: (8, 25), E4M3: (32, 13), E5M2: (32, 13)},
    "B200": {FP16: (16, 25), BF16: (16, 25), TF32: (8, 25), E4M3: (32, 25), E5M2: (32, 25)},
}


def test_the_rows_are_those_of_the_paper() -> None:
    ours: dict[str, dict[object, tuple[int, int]]] = {}
    for row in ROWS:
        ours.setdefault(row.name, {})[row.operands] = (row.block_length, row.fraction_bits)
    assert ours == PAPER


def test_a_gpu_is_found_by_name_and_its_other_operands_from_there() -> None:
    assert list(SPECS) == ["V100", "T4", "A100", "Ada", "H100", "H200", "B200"]
    assert all(row.operands == FP16 for row in SPECS.values())
    assert SPECS["H100"].for_operands(E4M3) == SPECS["H100"].for_operands(BF16).for_operands(E4M3)
    with pytest.raises(ValueError, match="V100 Tensor Cores take FP16 operands; asked for BF16"):
        SPECS["V100"].for_operands(BF16)


def test_every_row_says_where_it_comes_from_and_fills_its_instruction() -> None:
    for row in ROWS:
        assert "arXiv:2511.10909" in row.source
        assert "PTX ISA" in row.source
        assert row.k % row.block_length == 0, "an instruction is whole blocks"
        assert row.m * row.n * row.k >= 8 * 8 * 4
        # A block's sum stays exact in FP64: the proof in emulate.py needs (4L + 2) 2^F below 2^53.
        largest = (2 - 2.0**-row.operands.significand_bits) ** 2 * row.block_length + 2
        assert largest * 2**row.fraction_bits <= row.sum_limit <= 2**34 < 2**53, row


def test_results_that_hardware_does_not_have_are_refused() -> None:
    assert SPECS["A100"].results == (FP32, FP16)
    assert SPECS["A100"].for_operands(BF16).results == (FP32,)
    assert replace(SPECS["A100"], result=FP16).result == FP16
    with pytest.raises(ValueError, match="A100 with BF16 operands gives FP32; asked for FP16"):
        replace(SPECS["A100"].for_operands(BF16), result=FP16)


def test_worked_example_a_term_falls_off() -> None:
    # 1.0 + 1.5 * 2^-23 on V100: of the product's two ones, one still stands on the last place.
    block = explain([1.0], [1.5 * 2.0**-23], 1.0, SPECS["V100"])
    product, c = block.terms
    assert (c.name, c.exponent, c.shift, c.kept, c.cut_bits) == ("C", 0, 0, 2**23, "")
    # 1.5 * 2^-23 is an FP16 subnormal: its exponent is -14, its significand 3 * 2^-10.
    assert (product.exponent, product.significand, product.shift) == (-14, 3 * 2**10, 14)
    assert (product.kept, product.kept_bits, product.cut_bits) == (1, "00." + "0" * 22 + "1", "1")
    assert (product.cut, c.cut) == (True, False)
    assert (block.exponent, block.unit_exponent, block.total) == (0, -23, 2**23 + 1)
    assert block.result == 1 + 2.0**-23


def test_a_result_is_normalised_once_and_rounded_once() -> None:
    half = explain([1.0, 1.0], [2048.0, 3.0], 0.0, SPECS["A100"], FP16)
    assert (half.result_exponent, half.result_bits, half.dropped_bits, half.rounded_up) == (
        11,
        "1.0000000001",
        "1",
        True,
    )
    assert half.result == 2052.0, "a tie goes to even: up from 2050"
    single = explain([1.0, 1.0], [1.0, 1.0], 2.0**-23, SPECS["A100"])
    assert (single.dropped_bits, single.rounded_up, single.result) == ("1", False, 2.0), "FP32 is truncated"


def test_it_ends_where_the_emulator_ends() -> None:
    for row, result in [(spec, result) for spec in ROWS for result in spec.results if spec.name != "H200"]:
        # Blocks of the proof's cases, all but the kind with infinities and NaN (the last of nine).
        a, b, c = (side[: 90 // len(MAKERS) * 8] for side in cases(row, result, 90, seed=7))
        a, b = a[:, : row.block_length], b[:, : row.block_length]
        ours = emulate(a[:, None], b[:, :, None], c[:, None, None], row, result)[:, 0, 0]
        for left, right, start, theirs in zip(a, b, c.tolist(), ours.tolist(), strict=True):
            block = explain(left, right, start, row, result)
            assert (block.result, math.copysign(1, block.result)) == (theirs, math.copysign(1, theirs)), block
            kept = sum(math.copysign(term.kept, term.value) for term in block.terms)
            assert block.total == kept, f"the sum is that of the terms shown: {block}"
            for term in block.terms:
                size = np.ldexp(float(term.significand), term.exponent - term.significand_bits)
                assert size == abs(term.value), f"a term's fields are its value: {term}"


def test_the_bits_of_a_term_are_the_term() -> None:
    # Digits before and behind the cut, put together, are the product shifted to the block's exponent.
    block = explain([1.0, 2.0**-9], [1.0, 1.9990234375 * 2.0**-5], -1.0, SPECS["H100"])
    term = block.terms[1]
    digits = term.kept_bits.replace(".", "") + term.cut_bits
    assert int(digits, 2) * 2.0 ** (block.unit_exponent - len(term.cut_bits)) == term.value


def test_text_for_a_terminal() -> None:
    assert str(explain([1.5, 0.0], [-1.5, 1.0], 1.0, SPECS["H100"].for_operands(E4M3))).splitlines() == [
        "H100, E4M3 operands: terms are aligned to 2^0 and keep 13 bits behind the point",
        "  a0*b0  2^0    >> 0   -10.0100000000000",
        "  a1*b1  zero          +00.0000000000000",
        "  C      2^0    >> 0   +01.0000000000000",
        "  sum                  -01.0100000000000",
        "truncated: -1.0100000000000 * 2^0",
        "D = -1.25 (FP32)",
    ]


def test_torch_and_lists_alike() -> None:
    a, b = torch.randn(8).half(), torch.randn(8).half()
    assert explain(a, b, 0.5, SPECS["T4"]) == explain(a.tolist(), b.tolist(), 0.5, SPECS["T4"])


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1 to 4 products for one block of V100.*got 5 values of a and 5 of b"):
        explain([1.0] * 5, [1.0] * 5, 0.0, SPECS["V100"])
    with pytest.raises(ValueError, match="got 1 values of a and 2 of b"):
        explain([1.0], [1.0, 1.0], 0.0, SPECS["V100"])
    with pytest.raises(ValueError, match=r"in FP32, got .* in FP16"):
        explain([1.0], [1.0], 0.0, SPECS["A100"].for_operands(BF16), FP16)
    with pytest.raises(ValueError, match="finite numbers in b, got infinities or NaN"):
        explain([1.0], [math.inf], 0.0, SPECS["V100"])
    with pytest.raises(ValueError, match=r"expected FP16 values in a, got 0\.1"):
        explain([0.1], [1.0], 0.0, SPECS["V100"], FP32)
