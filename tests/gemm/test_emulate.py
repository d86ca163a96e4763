"""The Tensor Core emulation by numpy and numba, against exact rational arithmetic."""

import itertools
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format, round_to
from labkit.gemm import ROWS, SPECS, TURING_4, MmaSpec, blocks, emulate, emulator, explain
from labkit.gemm.blocks import VARIABLE
from tests.oracles import mma_reference
from tests.oracles.mma_cases import MAKERS, cases

SEED = 20251110
CASES = [(row, result) for row in (*ROWS, TURING_4) for result in row.results]
MIXED = [
    (SPECS[gpu].for_operands(*pair), result)
    for gpu in ("Ada", "H100", "B200")
    for pair in ((E4M3, E5M2), (E5M2, E4M3))
    for result in (FP32, FP16)
]


def element(spec: MmaSpec, c: float, a: list[float], b: list[float], out: Format = FP32) -> float:
    """Return the single element of D = A B + C for one row a and one column b."""
    return float(emulate(np.array([a]), np.array(b)[:, None], np.array([[c]]), spec, out)[0, 0])


def test_worked_example_of_the_bits_that_a_generation_keeps() -> None:
    # 1 + 16 * 2^-24: beside 1, V100 keeps 23 bits of a term, so each 2^-24 is lost; the others keep
    # at least 24.
    results = {gpu: element(spec, 1.0, [1.0] * 16, [2.0**-24] * 16) for gpu, spec in SPECS.items()}
    assert results == {
        "V100": 1.0,
        **dict.fromkeys(("T4", "A100", "Ada", "H100", "H200", "B200"), 1 + 2.0**-20),
    }
    # 1 + 16 * 2^-25: only Hopper and Blackwell keep 25 bits.
    results = {gpu: element(spec, 1.0, [0.5] * 16, [2.0**-24] * 16) for gpu, spec in SPECS.items()}
    assert results == {
        **dict.fromkeys(("V100", "T4", "A100", "Ada"), 1.0),
        **dict.fromkeys(("H100", "H200", "B200"), 1 + 2.0**-21),
    }
    # 2^16 + 2^n - 2^16: the least n whose term survives is 16 minus the bits that are kept.
    large = [2.0**8, 2.0**-4, -(2.0**8)]
    exponents = range(-10, -5)
    least = {
        gpu: min(
            n for n in exponents if element(spec, 0.0, large, [2.0**8, 2.0 ** (n + 4), 2.0**8])
        )
        for gpu, spec in SPECS.items()
    }
    assert least == {
        "V100": -7,
        "T4": -8,
        "A100": -8,
        "Ada": -8,
        "H100": -9,
        "H200": -9,
        "B200": -9,
    }


# --- observations on hardware by Fasi, Higham, Mikaitis and Pranesh 2021, section 3 ---------------

TINY = 2.0**-24
BELOW_ONE = 1 - TINY
observed = pytest.mark.parametrize("spec", [SPECS[gpu] for gpu in ("V100", "T4", "A100")])


@observed
def test_subnormals_are_not_flushed_to_zero(spec: MmaSpec) -> None:
    # An FP16 operand, and an FP32 result.
    assert element(spec, 0.0, [TINY], [4.0]) == 2.0**-22
    assert element(spec, 2.0**-149, [0.0], [0.0]) == 2.0**-149


@observed
def test_products_are_exact(spec: MmaSpec) -> None:
    square = 1 - 2.0**-10 + 2.0**-22
    assert element(spec, 0.0, [1 - 2.0**-11] * 4, [1 - 2.0**-11] * 4) == 4 * square


@observed
def test_small_terms_vanish_beside_a_large_one(spec: MmaSpec) -> None:
    # The large term is C, or a product.
    assert element(spec, 1.0, [0.5] * 4, [TINY] * 4) == 1.0
    assert element(spec, TINY / 2, [1.0] + [0.5] * 3, [1.0] + [TINY] * 3) == 1.0


@observed
def test_fp32_results_are_rounded_toward_zero(spec: MmaSpec) -> None:
    assert element(spec, 0.0, [1.0] * 2, [2.0, 1.5 * 2.0**-23]) == 2.0
    assert element(spec, 0.0, [1.0] * 2, [-2.0, -1.5 * 2.0**-23]) == -2.0


@observed
def test_fp16_results_are_rounded_to_nearest(spec: MmaSpec) -> None:
    assert element(spec, 0.0, [TINY] * 2, [0.5, 0.25], FP16) == TINY


@observed
def test_partial_sums_are_not_normalised(spec: MmaSpec) -> None:
    assert element(spec, BELOW_ONE, [1.0] * 4, [TINY] * 4) == 1 + 2.0**-23


@observed
def test_carries_beyond_the_leading_bit_are_kept(spec: MmaSpec) -> None:
    assert element(spec, 1 + 1.5 * 2.0**-22, [1.0] * 4, [2.0**-23, 1, 1, 1]) == 4 + 2.0**-21
    assert element(spec, 1.875, [1.0] * 4, [1, 1.5, 1.75, 1.875]) == 8.0


def test_volta_keeps_no_bit_beyond_those_of_fp32() -> None:
    assert element(SPECS["V100"], -BELOW_ONE, [1.0], [1.0]) == 2 * TINY


@pytest.mark.parametrize("gpu", ["T4", "A100"])
def test_later_generations_keep_a_bit_more_than_volta(gpu: str) -> None:
    assert element(SPECS[gpu], -BELOW_ONE, [1.0], [1.0]) == TINY


@pytest.mark.parametrize(
    ("gpu", "a", "b"),
    [
        ("V100", [1.0] * 4, [TINY] * 4),
        ("A100", [0.5] * 4, [TINY] * 3 + [3 * TINY]),
    ],
)
def test_a_larger_c_may_give_a_smaller_d(gpu: str, a: list[float], b: list[float]) -> None:
    """Sums are not monotonic."""
    assert element(SPECS[gpu], 1.0, a, b) < element(SPECS[gpu], BELOW_ONE, a, b)


# --- against the reference ------------------------------------------------------------------------


def assert_same_as_the_reference(
    spec: MmaSpec, result: Format, count: int, seed: int = SEED
) -> None:
    numbers = cases(spec, result, count, seed)
    a, b, c = numbers
    ours = emulate(a[:, None, :], b[:, :, None], c[:, None, None], spec, result)[:, 0, 0].astype(
        np.float64
    )
    row = (
        spec.operands.name,
        spec.block_length,
        spec.fraction_bits,
        result.name,
        min(23, spec.fraction_bits),
    )
    dot_products = zip(*(side.tolist() for side in numbers), strict=True)
    theirs = np.array(
        [mma_reference.dot(*case, *row, operands_b=spec.right.name) for case in dot_products]
    )
    # All codes of NaN are equal here; test_nan_has_one_code checks the code.
    equal = (ours == theirs) & (np.signbit(ours) == np.signbit(theirs))
    wrong = np.flatnonzero(~(equal | np.isnan(ours) & np.isnan(theirs)))
    first = [side[wrong[:1]].tolist() for side in numbers]
    message = (
        f"{spec.name} {spec.operands.name} to {result.name}: {len(wrong)} of {len(ours)} differ"
    )
    assert not len(wrong), f"{message}: {ours[wrong[:3]]} not {theirs[wrong[:3]]}: {first}"


def test_every_spec_against_the_reference() -> None:
    for row, result in CASES:
        assert_same_as_the_reference(row, result, 450)
    for row, result in MIXED:
        assert_same_as_the_reference(row, result, 100)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_100000_dot_products_of_every_spec_against_the_reference() -> None:
    for (row, result), seed in itertools.product((*CASES, *MIXED), range(10)):
        assert_same_as_the_reference(row, result, 10_000, seed)


def test_matrices_of_any_shape_equal_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of any shape, in tiles of any size, equal the reference element by element.

    A product over no elements is C.
    """
    monkeypatch.setenv(VARIABLE, "numpy")
    rng = np.random.default_rng(SEED)
    for m, n, k in (
        (1, 1, 1),
        (3, 5, 19),
        (17, 2, 33),
        (2, 17, 5),
        (4, 4, 4),
        (0, 3, 4),
        (3, 0, 4),
        (3, 4, 0),
    ):
        a, b, c = (
            rng.normal(size=size) * 2.0 ** rng.integers(-9, 9, size)
            for size in ((m, k), (k, n), (m, n))
        )
        a = round_to(a, FP16)
        b = round_to(b, FP16)
        c = round_to(c, FP32)
        expected = [
            [
                mma_reference.dot(a[i].tolist(), b[:, j].tolist(), float(c[i, j]), "FP16", 8, 24)
                for j in range(n)
            ]
            for i in range(m)
        ]
        for tile in (1, 64, 2**17):
            monkeypatch.setattr(blocks, "TILE", tile)
            assert emulate(a, b, c, SPECS["A100"]).tolist() == expected, (m, n, k, tile)


@pytest.fixture
def two_products() -> tuple[torch.Tensor, torch.Tensor]:
    """The operands A and B of two products of different numbers."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(2, 3, 9, generator=generator).half()
    b = torch.randn(2, 9, 4, generator=generator).half()
    return a, b


def test_torch_and_numpy_give_the_same_results(
    two_products: tuple[torch.Tensor, torch.Tensor],
) -> None:
    a, b = two_products
    tensor = emulate(a, b, None, SPECS["T4"])
    array = emulate(a.numpy(), b.numpy(), None, SPECS["T4"])
    assert np.array_equal(tensor.numpy(), array)


def test_a_result_has_the_dtype_of_its_format(
    two_products: tuple[torch.Tensor, torch.Tensor],
) -> None:
    a, b = two_products
    for result, name in ((FP32, "float32"), (FP16, "float16")):
        assert emulate(a, b, None, SPECS["T4"], result).dtype == getattr(torch, name)
        array = emulate(a.numpy(), b.numpy(), None, SPECS["T4"], result)
        assert array.dtype == np.dtype(name)


def test_leading_dimensions_are_separate_products(
    two_products: tuple[torch.Tensor, torch.Tensor],
) -> None:
    a, b = two_products
    both = emulate(a, b, None, SPECS["T4"])
    assert both.shape == (2, 3, 4)
    for i in range(2):
        assert torch.equal(both[i], emulate(a[i], b[i], None, SPECS["T4"]))


def test_operands_are_not_changed(two_products: tuple[torch.Tensor, torch.Tensor]) -> None:
    before = [operand.clone() for operand in two_products]
    emulate(*two_products, None, SPECS["T4"])
    assert all(map(torch.equal, two_products, before))


def test_tf32_ignores_the_last_13_bits() -> None:
    spec = SPECS["A100"].for_operands(TF32)
    x = torch.tensor([[1 + 2.0**-10 + 2.0**-11 + 2.0**-23]])
    assert emulate(x, torch.ones(1, 1), None, spec).item() == 1 + 2.0**-10
    assert emulate(-x, torch.ones(1, 1), None, spec).item() == -1 - 2.0**-10


def test_tf32_turns_nan_into_infinity_if_its_ones_are_ignored() -> None:
    spec = SPECS["A100"].for_operands(TF32)
    ones = np.ones((1, 1), np.float32)
    # Of the NaN 0x7F800001 and 0xFF801FFF, all ones of the significand are among the ignored 13
    # bits; of the other two they are not.
    words = np.array([[0x7F800001], [0xFF801FFF], [0x7F802000], [0x7FC00000]], dtype=np.uint32)
    for make in (torch.from_numpy, np.asarray):
        d = np.asarray(emulate(make(words.view(np.float32)), make(ones), None, spec)).ravel()
        assert d[:2].tolist() == [math.inf, -math.inf], make
        assert np.isnan(d[2:]).all(), make


@pytest.mark.parametrize(
    ("a", "b", "c"),
    [
        (math.nan, 1.0, 0.0),
        (math.inf, 0.0, 0.0),
        (math.inf, 1.0, -math.inf),
        (1.0, 1.0, math.nan),
    ],
)
def test_nan_has_one_code(a: Any, b: Any, c: Any) -> None:
    for result, code in ((FP32, 0x7FFFFFFF), (FP16, 0x7FFF)):
        d = emulate(np.array([[a]]), np.array([[b]]), np.array([[c]]), SPECS["H100"], result)
        assert d.view(f"u{d.itemsize}").item() == code, (a, b, c, result)


HUGE = BF16.max


def test_an_infinite_result_stays_infinite_in_later_blocks() -> None:
    spec = SPECS["A100"].for_operands(BF16)
    # A block has eight products; -HUGE is in the second one.
    assert element(spec, 0.0, [HUGE] + [0.0] * 7 + [-HUGE], [HUGE] + [0.0] * 7 + [1.0]) == math.inf


def test_terms_of_a_block_may_be_beyond_fp32() -> None:
    """3 is far below the last bit that is kept beside them."""
    spec = SPECS["A100"].for_operands(BF16)
    assert element(spec, 0.0, [HUGE, -HUGE, 3.0], [HUGE, HUGE, 1.0]) == 0.0


def test_an_fp16_result_beyond_fp16_is_infinite() -> None:
    assert element(SPECS["V100"], 0.0, [60000.0] * 2, [1.0] * 2, FP16) == math.inf


ONES = torch.ones(2, 2)
TENTHS = torch.full((2, 2), 0.1)


@pytest.mark.parametrize(
    ("a", "b", "c", "message"),
    [
        (TENTHS, ONES, None, r"expected FP16 values in A, got 0\.1\d*.*round_tensor"),
        (ONES, ONES, TENTHS, "expected FP16 values in C"),
        (ONES, torch.ones(3, 2), None, r"A\[2, 2\], B\[3, 2\]"),
        (ONES, ONES, torch.ones(1, 2), r"C\[1, 2\]"),
    ],
)
def test_invalid_operands_are_refused(a: Any, b: Any, c: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        emulate(a, b, c, SPECS["V100"], FP16)


def test_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a torch tensor or a numpy array of floats for A"):
        emulate([[1.0]], ONES, None, SPECS["V100"])


def test_a_result_that_the_instruction_lacks_is_refused() -> None:
    message = "A100 with BF16 operands: expected out to be FP32, got FP16"
    with pytest.raises(ValueError, match=message):
        emulate(ONES, ONES, None, SPECS["A100"].for_operands(BF16), FP16)


needs_numba = pytest.mark.skipif(
    emulator() == "numpy",
    reason="without numba, or with LABKIT_EMULATOR=numpy, there is one emulator only",
)


def both(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> tuple[np.ndarray, np.ndarray]:
    """Return the bit patterns of D by numba and by numpy."""
    words = []
    for name in ("numba", "numpy"):
        monkeypatch.setenv(VARIABLE, name)
        d = np.asarray(emulate(*arguments))
        words.append(d.view(f"u{d.itemsize}"))
    return words[0], words[1]


@needs_numba
def test_numba_equals_numpy_for_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    # The rows of A and the columns of B are those of the oracle's dot products, so each row of A
    # meets each column of B.
    for row, result in CASES:
        a, b, c = cases(row, result, 96, 7)
        # C is zero in two columns of three, where the exponent of a sum is that of its products.
        c = c[:, None] * np.where(np.arange(96) % 3, 0.0, 1.0)
        for start in (c, None):
            assert np.array_equal(*both(monkeypatch, a, b.T.copy(), start, row, result)), (
                row,
                result,
                start,
            )


@needs_numba
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (3, 5, 19),
        (17, 2, 33),
        (2, 700, 5),
        (700, 2, 3),
        (5, 3, 0),
        (0, 3, 4),
        (3, 0, 4),
    ],
)
def test_numba_equals_numpy_for_any_shape(
    monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int
) -> None:
    g = torch.Generator().manual_seed(m + n + k)
    for batch, out in itertools.product(((), (2, 3)), (FP32, FP16)):
        a = torch.randn(*batch, m, k, generator=g).half()
        b = torch.randn(*batch, k, n, generator=g).half()
        c = torch.randn(*batch, m, n, generator=g).half()
        by_numba, by_numpy = both(monkeypatch, a, b, c, SPECS["H100"], out)
        assert by_numba.shape == (*batch, m, n)
        assert np.array_equal(by_numba, by_numpy), (m, n, k, batch, out)


@needs_numba
@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_block_lengths_that_are_not_multiples_of_four(
    monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    # The loop takes four products at a time, which must not read beyond the end of a block.
    row = replace(SPECS["V100"], block_length=length)
    ones = np.ones((7, 5), np.float32)
    by_numba, by_numpy = both(monkeypatch, ones, ones.T, None, row)
    assert np.array_equal(by_numba, by_numpy)
    assert (by_numba.view(np.float32) == 5).all()


@needs_numba
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.randn(3, 40, 30).half()
    b = torch.randn(3, 30, 90).half()
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    # Pieces this small give each of the three threads work.
    monkeypatch.setattr("labkit.gemm.blocks.PIECE", 64)
    try:
        by_numba, by_numpy = both(monkeypatch, a, b, None, SPECS["V100"])
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(by_numba, by_numpy)


@pytest.fixture
def _no_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    # None makes an import fail, as if numba were not installed.
    monkeypatch.setitem(sys.modules, "numba", None)


@pytest.mark.usefixtures("_no_numba")
@pytest.mark.parametrize("name", ["", "numpy"])
def test_without_numba_numpy_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, name)
    ones = np.ones((1, 5))
    assert emulator() == "numpy"
    assert emulate(ones, ones.T, None, SPECS["V100"]).item() == 5.0


@pytest.mark.usefixtures("_no_numba")
def test_a_chosen_numba_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "numba")
    with pytest.raises(RuntimeError, match=r'pip install "fp16-lab\[fast\]"'):
        emulator()


def test_unknown_emulator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ones = np.ones((1, 5))
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(
        ValueError, match=r"expected .numba., .numpy. or nothing in LABKIT_EMULATOR, got 'cuda'"
    ):
        emulate(ones, ones.T, None, SPECS["V100"])


# (block length, fraction bits) of each GPU and operand format, typed from arXiv:2511.10909.
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


def test_specs_are_the_rows_of_fp16_operands() -> None:
    assert list(SPECS) == list(PAPER)
    assert all(row.operands == FP16 for row in SPECS.values())


def test_a_spec_gives_the_row_of_other_operands() -> None:
    eight_bits = SPECS["H100"].for_operands(E4M3)
    assert eight_bits.operands == E4M3
    assert eight_bits.name == "H100"
    assert SPECS["H100"].for_operands(BF16).for_operands(E4M3) == eight_bits


def test_operands_may_be_named() -> None:
    assert SPECS["H100"].for_operands("E4M3", "E5M2") == SPECS["H100"].for_operands(E4M3, E5M2)


def test_operands_that_a_gpu_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="V100 Tensor Cores take FP16 operands; asked for BF16"):
        SPECS["V100"].for_operands(BF16)


def test_only_fp16_operands_have_an_fp16_result() -> None:
    assert SPECS["A100"].results == (FP32, FP16)
    with pytest.raises(ValueError, match="A100 with BF16 operands gives FP32; asked for FP16"):
        replace(SPECS["A100"].for_operands(BF16), result=FP16)


def test_every_row_has_a_source_and_a_whole_instruction() -> None:
    for row in ROWS:
        assert "arXiv:2511.10909" in row.source
        assert "PTX ISA" in row.source
        # An instruction consists of whole blocks, and the smallest one is m8n8k4.
        assert row.k % row.block_length == 0
        assert row.m * row.n * row.k >= 8 * 8 * 4


def test_sums_of_a_block_are_exact_in_fp64() -> None:
    for row in ROWS:
        # The proof in labkit/gemm/blocks.py bounds a sum of L products with F fraction bits by
        # (4L + 2) 2^F, and that by 2^33: FP64 represents whole numbers up to 2^53.
        largest = (2 - 2.0**-row.operands.significand_bits) ** 2 * row.block_length + 2
        assert largest * 2**row.fraction_bits <= row.sum_limit, row
        assert row.sum_limit <= 2**33, row


def test_worked_example_of_an_explanation() -> None:
    # 1.0 + 1.5 * 2^-23 on V100: of the product's two one bits, the second is cut off.
    block = explain([1.0], [1.5 * 2.0**-23], 1.0, SPECS["V100"])
    product, c = block.terms
    assert c.name == "C"
    assert c.exponent == 0
    assert c.shift == 0
    assert c.kept == 2**23
    assert c.cut_bits == ""
    # 1.5 * 2^-23 is an FP16 subnormal: its exponent is -14, its significand 3 * 2^-10.
    assert product.exponent == -14
    assert product.significand == 3 * 2**10
    assert product.shift == 14
    assert product.kept == 1
    assert product.kept_bits == "00." + "0" * 22 + "1"
    assert product.cut_bits == "1"
    assert (product.cut, c.cut) == (True, False)
    assert block.exponent == 0
    assert block.unit_exponent == -23
    assert block.total == 2**23 + 1
    assert block.result == 1 + 2.0**-23


def test_an_fp16_result_is_rounded_to_even() -> None:
    """2051 is a tie between 2050 and 2052."""
    block = explain([1.0, 1.0], [2048.0, 3.0], 0.0, SPECS["A100"], FP16)
    assert (block.result_exponent, block.result_bits) == (11, "1.0000000001")
    assert (block.dropped_bits, block.rounded_up, block.result) == ("1", True, 2052.0)


def test_an_fp32_result_is_truncated() -> None:
    block = explain([1.0, 1.0], [1.0, 1.0], 2.0**-23, SPECS["A100"])
    assert (block.dropped_bits, block.rounded_up, block.result) == ("1", False, 2.0)


def test_explanation_has_the_result_of_the_emulator() -> None:
    # The rows of H200 are those of H100.
    others = [spec for spec in ROWS if spec.name != "H200"]
    for row, result in [(spec, result) for spec in others for result in spec.results]:
        # The last share of the cases has infinities and NaN, which `explain` refuses.
        a, b, c = (side[: -88 // len(MAKERS)] for side in cases(row, result, 88, seed=7))
        a = a[:, : row.block_length]
        b = b[:, : row.block_length]
        ours = emulate(a[:, None], b[:, :, None], c[:, None, None], row, result)[:, 0, 0]
        for left, right, start, theirs in zip(a, b, c.tolist(), ours.tolist(), strict=True):
            block = explain(left, right, start, row, result)
            assert block.result == theirs, block
            assert math.copysign(1, block.result) == math.copysign(1, theirs), block
            kept = sum(math.copysign(term.kept, term.value) for term in block.terms)
            assert block.total == kept, f"the terms have another sum: {block}"
            for term in block.terms:
                size = np.ldexp(float(term.significand), term.exponent - term.significand_bits)
                assert size == abs(term.value), f"the fields of a term have another value: {term}"


def test_explanation_as_text() -> None:
    assert str(
        explain([1.5, 0.0], [-1.5, 1.0], 1.0, SPECS["H100"].for_operands(E4M3))
    ).splitlines() == [
        "H100, E4M3 operands: terms are aligned to 2^0 and keep 13 bits behind the point",
        "  a0*b0  2^0    >> 0   -10.0100000000000",
        "  a1*b1  zero          +00.0000000000000",
        "  C      2^0    >> 0   +01.0000000000000",
        "  sum                  -01.0100000000000",
        "truncated: -1.0100000000000 * 2^0",
        "D = -1.25 (FP32)",
    ]


def test_explanations_take_tensors_and_lists() -> None:
    a = torch.randn(8).half()
    b = torch.randn(8).half()
    assert explain(a, b, 0.5, SPECS["T4"]) == explain(a.tolist(), b.tolist(), 0.5, SPECS["T4"])


def test_explanation_of_more_products_than_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 to 4 products for one block of V100, got 5"):
        explain([1.0] * 5, [1.0] * 5, 0.0, SPECS["V100"])


def test_explanation_without_a_product_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 1 to 4 products for one block of V100, got 0"):
        explain([], [], 0.0, SPECS["V100"])


def test_explanation_of_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="expected as many values in a as in b, got 1 and 2"):
        explain([1.0], [1.0, 1.0], 0.0, SPECS["V100"])


def test_explanation_of_an_integer_beyond_fp64_is_refused() -> None:
    with pytest.raises(ValueError, match="a: expected numbers that FP64 can hold"):
        explain([10**400], [1.0], 0.0, SPECS["V100"])


def test_explanation_in_a_format_without_a_result_is_refused() -> None:
    with pytest.raises(ValueError, match="out: expected FP32 for A100, got FP16"):
        explain([1.0], [1.0], 0.0, SPECS["A100"].for_operands(BF16), FP16)


def test_explanation_of_infinity_is_refused() -> None:
    with pytest.raises(ValueError, match="finite numbers in b, got infinities or NaN"):
        explain([1.0], [math.inf], 0.0, SPECS["V100"])


def test_explanation_of_values_beyond_the_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected FP16 values in a, got 0\.1"):
        explain([0.1], [1.0], 0.0, SPECS["V100"], FP32)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int32, torch.bool])
def test_operands_that_are_not_floats_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"array of floats for A, got {dtype}"):
        emulate(torch.ones(2, 2, dtype=dtype), torch.ones(2, 2).half(), None, SPECS["H100"])
