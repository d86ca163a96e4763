"""The rows of Tensor Cores are what their sources say, and complete."""

from dataclasses import replace

import pytest

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, TF32
from labkit.gemm import ROWS, SPECS

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
