"""The Tensor Core emulation by numpy and numba, against exact rational arithmetic."""

import itertools
import math
import sys
from dataclasses import replace

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


def one(spec: MmaSpec, c: float, a: list[float], b: list[float], out: Format = FP32) -> float:
    """One element of D, by the emulator."""
    return float(emulate(np.array([a]), np.array(b)[:, None], np.array([[c]]), spec, out)[0, 0])


def test_worked_example_four_generations_four_answers() -> None:
    # 1 + 16 * 2^-24: 2^-24 is one place beyond what V100 keeps of a term beside 1, and just what
    # the others keep.
    seed = {gpu: one(spec, 1.0, [1.0] * 16, [2.0**-24] * 16) for gpu, spec in SPECS.items()}
    assert seed == {
        "V100": 1.0,
        **dict.fromkeys(("T4", "A100", "Ada", "H100", "H200", "B200"), 1 + 2.0**-20),
    }
    # 1 + 16 * 2^-25: one place further; only Hopper and Blackwell keep it.
    seed = {gpu: one(spec, 1.0, [0.5] * 16, [2.0**-24] * 16) for gpu, spec in SPECS.items()}
    assert seed == {
        **dict.fromkeys(("V100", "T4", "A100", "Ada"), 1.0),
        **dict.fromkeys(("H100", "H200", "B200"), 1 + 2.0**-21),
    }
    # 2^16 + x - 2^16: what is left of x says how many bits stand behind the point: 23, 24, 25.
    large = [2.0**8, 2.0**-4, -(2.0**8)]
    places = range(-10, -5)
    last = {
        gpu: min(n for n in places if one(spec, 0.0, large, [2.0**8, 2.0 ** (n + 4), 2.0**8]))
        for gpu, spec in SPECS.items()
    }
    assert last == {"V100": -7, "T4": -8, "A100": -8, "Ada": -8, "H100": -9, "H200": -9, "B200": -9}


def test_what_was_seen_on_v100_t4_and_a100() -> None:
    # Fasi, Higham, Mikaitis and Pranesh 2021, section 3: observations on hardware, which the rows
    # must repeat.
    v100, *later = (SPECS[gpu] for gpu in ("V100", "T4", "A100"))
    below_one = 1 - 2.0**-24
    tiny = 2.0**-24
    for spec in (v100, *later):
        assert one(spec, 0.0, [tiny], [4.0]) == 2.0**-22, "FP16 subnormals count"
        assert one(spec, 2.0**-149, [0.0], [0.0]) == 2.0**-149, "FP32 subnormals come in and out"
        assert one(spec, 0.0, [1 - 2.0**-11] * 4, [1 - 2.0**-11] * 4) == 4 * (
            1 - 2.0**-10 + 2.0**-22
        ), "exact products"
        assert one(spec, 1.0, [0.5] * 4, [tiny] * 4) == 1.0, (
            "small terms vanish beside a large one, wherever it stands"
        )
        assert one(spec, tiny / 2, [1.0] + [0.5] * 3, [1.0] + [tiny] * 3) == 1.0
        assert one(spec, 0.0, [1.0] * 2, [2.0, 1.5 * 2.0**-23]) == 2.0, (
            "positive sums are rounded down"
        )
        assert one(spec, 0.0, [1.0] * 2, [-2.0, -1.5 * 2.0**-23]) == -2.0, (
            "negative ones up: toward zero"
        )
        assert one(spec, 0.0, [tiny] * 2, [0.5, 0.25], FP16) == tiny, (
            "FP16 results are rounded to nearest"
        )
        assert one(spec, below_one, [1.0] * 4, [tiny] * 4) == 1 + 2.0**-23, (
            "partial sums are not normalised"
        )
        assert one(spec, 1 + 1.5 * 2.0**-22, [1.0] * 4, [2.0**-23, 1, 1, 1]) == 4 + 2.0**-21, (
            "carries are kept"
        )
        assert one(spec, 1.875, [1.0] * 4, [1, 1.5, 1.75, 1.875]) == 8.0
    assert one(v100, -below_one, [1.0], [1.0]) == 2 * tiny, "Volta keeps no bit beyond FP32's"
    assert [one(spec, -below_one, [1.0], [1.0]) for spec in later] == [tiny, tiny], (
        "later ones keep at least one"
    )
    assert one(v100, 1.0, [1.0] * 4, [tiny] * 4) < one(v100, below_one, [1.0] * 4, [tiny] * 4), (
        "a larger C, a smaller D"
    )
    nearly, more = [one(later[1], c, [0.5] * 4, [tiny] * 3 + [3 * tiny]) for c in (below_one, 1.0)]
    assert more < nearly, "on A100 too"


# --- against the reference ------------------------------------------------------------------------


def assert_same_as_the_reference(
    spec: MmaSpec, result: Format, count: int, seed: int = SEED
) -> None:
    a, b, c = numbers = cases(spec, result, count, seed)
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
    each = zip(*(side.tolist() for side in numbers), strict=True)
    theirs = np.array([mma_reference.dot(*case, *row, operands_b=spec.right.name) for case in each])
    # any NaN is as good as another
    equal = (ours == theirs) & (np.signbit(ours) == np.signbit(theirs))
    wrong = np.flatnonzero(~(equal | np.isnan(ours) & np.isnan(theirs)))
    first = [side[wrong[:1]].tolist() for side in numbers]
    told = f"{spec.name} {spec.operands.name} to {result.name}: {len(wrong)} of {len(ours)} differ"
    assert not len(wrong), f"{told}: {ours[wrong[:3]]} not {theirs[wrong[:3]]}: {first}"


def test_every_spec_against_the_reference() -> None:
    for row, result in CASES:
        assert_same_as_the_reference(row, result, 450)
    for row, result in MIXED[3:8:2]:
        assert_same_as_the_reference(row, result, 200)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_100000_dot_products_of_every_spec_against_the_reference() -> None:
    for (row, result), seed in itertools.product((*CASES, *MIXED), range(10)):
        assert_same_as_the_reference(row, result, 10_000, seed)


def test_whole_matrices_of_any_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Element by element against the reference, cut into tiles of any size; one of nothing is C."""
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
        wanted = [
            [
                mma_reference.dot(a[i].tolist(), b[:, j].tolist(), float(c[i, j]), "FP16", 8, 24)
                for j in range(n)
            ]
            for i in range(m)
        ]
        for tile in (1, 64, 2**17):
            monkeypatch.setattr(blocks, "TILE", tile)
            assert emulate(a, b, c, SPECS["A100"]).tolist() == wanted, (m, n, k, tile)


def test_torch_and_numpy_give_the_same_results() -> None:
    a = torch.randn(2, 3, 9).half()
    b = torch.randn(2, 9, 4).half()
    before = a.clone(), b.clone()
    tensor = emulate(a, b, None, SPECS["T4"])
    array = emulate(a.numpy(), b.numpy(), None, SPECS["T4"])
    assert (tensor.dtype, array.dtype, tensor.shape) == (
        torch.float32,
        np.dtype(np.float32),
        (2, 3, 4),
    )
    assert np.array_equal(tensor.numpy(), array)
    assert torch.equal(tensor[1], emulate(a[1], b[1], None, SPECS["T4"])), (
        "leading dimensions are separate products"
    )
    assert emulate(a, b, None, SPECS["T4"], FP16).dtype == torch.float16
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_tf32_ignores_the_last_13_bits() -> None:
    spec = SPECS["A100"].for_operands(TF32)
    one = np.ones((1, 1), np.float32)
    x = torch.tensor([[1 + 2.0**-10 + 2.0**-11 + 2.0**-23]])
    assert emulate(x, torch.ones(1, 1), None, spec).item() == 1 + 2.0**-10
    assert emulate(-x, torch.ones(1, 1), None, spec).item() == -1 - 2.0**-10, "toward zero"
    # 0x7F800001 is a NaN whose only one is the last bit, 0xFF801FFF has all that is cut, 0x7F802000
    # the first kept.
    words = np.array([[0x7F800001], [0xFF801FFF], [0x7F802000], [0x7FC00000]], dtype=np.uint32)
    for make in (torch.from_numpy, np.asarray):
        d = np.asarray(emulate(make(words.view(np.float32)), make(one), None, spec)).ravel()
        assert d[:2].tolist() == [math.inf, -math.inf], make
        assert np.isnan(d[2:]).all(), make


def test_nan_has_one_code() -> None:
    for a, b, c in (
        [math.nan, 1.0, 0.0],
        [math.inf, 0.0, 0.0],
        [math.inf, 1.0, -math.inf],
        [1.0, 1.0, math.nan],
    ):
        for result, code in ((FP32, 0x7FFFFFFF), (FP16, 0x7FFF)):
            d = emulate(np.array([[a]]), np.array([[b]]), np.array([[c]]), SPECS["H100"], result)
            assert d.view(f"u{d.itemsize}").item() == code, (a, b, c, result)


def test_an_infinite_result_stays_infinite_in_later_blocks() -> None:
    spec = SPECS["A100"].for_operands(BF16)
    huge = BF16.max
    assert one(spec, 0.0, [huge] + [0.0] * 7 + [-huge], [huge] + [0.0] * 7 + [1.0]) == math.inf
    assert one(spec, 0.0, [huge, -huge, 3.0], [huge, huge, 1.0]) == 0.0, (
        "a block may go beyond FP32, and cuts the rest"
    )
    assert one(SPECS["V100"], 0.0, [60000.0] * 2, [1.0] * 2, FP16) == math.inf


def test_what_does_not_fit_is_refused_with_a_way_out() -> None:
    ones = torch.ones(2, 2)
    with pytest.raises(ValueError, match=r"expected FP16 values in A, got 0\.1\d*.*round_tensor"):
        emulate(ones * 0.1, ones, None, SPECS["V100"])
    with pytest.raises(ValueError, match="expected FP16 values in C"):
        emulate(ones, ones, ones * 0.1, SPECS["V100"], FP16)
    with pytest.raises(ValueError, match=r"A\[2, 2\], B\[3, 2\]"):
        emulate(ones, torch.ones(3, 2), None, SPECS["V100"])
    with pytest.raises(ValueError, match=r"C\[1, 2\]"):
        emulate(ones, ones, torch.ones(1, 2), SPECS["V100"])
    with pytest.raises(
        ValueError, match="A100 with BF16 operands: expected out to be FP32, got FP16"
    ):
        emulate(ones, ones, None, SPECS["A100"].for_operands(BF16), FP16)
    with pytest.raises(TypeError, match="expected a torch tensor or a numpy array of floats for A"):
        emulate([[1.0]], ones, None, SPECS["V100"])


needs_numba = pytest.mark.skipif(
    emulator() == "numpy",
    reason="numba is not installed, or LABKIT_EMULATOR says numpy: there is one emulator only",
)


def both(monkeypatch: pytest.MonkeyPatch, *given: object) -> tuple[np.ndarray, np.ndarray]:
    """The words of D by numba and by numpy."""
    words = []
    for name in ("numba", "numpy"):
        monkeypatch.setenv(VARIABLE, name)
        d = np.asarray(emulate(*given))
        words.append(d.view(f"u{d.itemsize}"))
    return words[0], words[1]


@needs_numba
def test_every_row_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    # The oracle's dot products, as rows of one A and columns of one B: every kind of A meets every
    # kind of B.
    for row, result in CASES:
        a, b, c = cases(row, result, 96, 7)
        c = c[:, None] * np.where(np.arange(96) % 3, 0.0, 1.0)
        for start in (np.where(np.isnan(c), np.inf, c), None):
            assert np.array_equal(*both(monkeypatch, a, b.T.copy(), start, row, result)), (
                row,
                result,
                start,
            )


@needs_numba
def test_any_shape_and_blocks_that_no_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for m, n, k in (
        (1, 1, 1),
        (3, 5, 19),
        (17, 2, 33),
        (2, 700, 5),
        (700, 2, 3),
        (5, 3, 0),
        (0, 3, 4),
        (3, 0, 4),
    ):
        g = torch.Generator().manual_seed(m + n + k)
        for batch, out in itertools.product(((), (2, 3)), (FP32, FP16)):
            a = torch.randn(*batch, m, k, generator=g).half()
            b = torch.randn(*batch, k, n, generator=g).half()
            c = torch.randn(*batch, m, n, generator=g).half()
            one, other = both(monkeypatch, a, b, c, SPECS["H100"], out)
            assert one.shape == (*batch, m, n)
            assert np.array_equal(one, other), (m, n, k, batch, out)
    for length in (1, 2, 3, 6):  # four products at a time would read beyond the end of a block
        row = replace(SPECS["V100"], block_length=length)
        ones = np.ones((7, 5), np.float32)
        one, other = both(monkeypatch, ones, ones.T, None, row)
        assert np.array_equal(one, other), length
        assert (one.view(np.float32) == 5).all(), length


@needs_numba
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.randn(3, 40, 30).half()
    b = torch.randn(3, 30, 90).half()
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr("labkit.gemm.blocks.PIECE", 64)
    try:
        one, other = both(monkeypatch, a, b, None, SPECS["V100"])
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(one, other)


def test_without_numba_the_lab_uses_numpy_and_says_what_would_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ones = np.ones((1, 5))
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    for asked in ("", "numpy"):
        monkeypatch.setenv(VARIABLE, asked)
        assert emulator() == "numpy"
        assert emulate(ones, ones.T, None, SPECS["V100"]).item() == 5.0
    monkeypatch.setenv(VARIABLE, "numba")
    with pytest.raises(RuntimeError, match=r'pip install "fp16-lab\[fast\]"'):
        emulator()
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(
        ValueError, match=r"expected .numba., .numpy. or nothing in LABKIT_EMULATOR, got 'cuda'"
    ):
        emulate(ones, ones.T, None, SPECS["V100"])


# arXiv:2511.10909: (block length, fraction bits) for each generation and operand, typed from the
# paper's account.
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
    assert list(SPECS) == list(PAPER)
    assert all(row.operands == FP16 for row in SPECS.values())
    assert SPECS["H100"].for_operands(E4M3) == SPECS["H100"].for_operands(BF16).for_operands(E4M3)
    with pytest.raises(ValueError, match="V100 Tensor Cores take FP16 operands; asked for BF16"):
        SPECS["V100"].for_operands(BF16)
    assert SPECS["A100"].results == (FP32, FP16)
    with pytest.raises(ValueError, match="A100 with BF16 operands gives FP32; asked for FP16"):
        replace(SPECS["A100"].for_operands(BF16), result=FP16)


def test_every_row_says_where_it_comes_from_and_fills_its_instruction() -> None:
    for row in ROWS:
        assert "arXiv:2511.10909" in row.source
        assert "PTX ISA" in row.source
        assert row.k % row.block_length == 0, "an instruction is whole blocks"
        assert row.m * row.n * row.k >= 8 * 8 * 4
        # A block's sum stays exact in FP64: the proof in emulate.py needs (4L + 2) 2^F below 2^53.
        largest = (2 - 2.0**-row.operands.significand_bits) ** 2 * row.block_length + 2
        assert largest * 2**row.fraction_bits <= row.sum_limit <= 2**34 < 2**53, row


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
    assert (half.result_exponent, half.result_bits, half.dropped_bits) == (11, "1.0000000001", "1")
    assert (half.rounded_up, half.result) == (True, 2052.0), "a tie goes to even: up from 2050"
    single = explain([1.0, 1.0], [1.0, 1.0], 2.0**-23, SPECS["A100"])
    assert (single.dropped_bits, single.rounded_up, single.result) == ("1", False, 2.0), (
        "FP32 is truncated"
    )


def test_it_ends_where_the_emulator_ends() -> None:
    for row, result in [
        (spec, result) for spec in ROWS for result in spec.results if spec.name != "H200"
    ]:
        # Blocks of the proof's cases, all but the last kind, with infinities and NaN.
        a, b, c = (side[: -88 // len(MAKERS)] for side in cases(row, result, 88, seed=7))
        a = a[:, : row.block_length]
        b = b[:, : row.block_length]
        ours = emulate(a[:, None], b[:, :, None], c[:, None, None], row, result)[:, 0, 0]
        for left, right, start, theirs in zip(a, b, c.tolist(), ours.tolist(), strict=True):
            block = explain(left, right, start, row, result)
            assert (block.result, math.copysign(1, block.result)) == (
                theirs,
                math.copysign(1, theirs),
            ), block
            kept = sum(math.copysign(term.kept, term.value) for term in block.terms)
            assert block.total == kept, f"the sum is that of the terms shown: {block}"
            for term in block.terms:
                size = np.ldexp(float(term.significand), term.exponent - term.significand_bits)
                assert size == abs(term.value), f"a term's fields are its value: {term}"


def test_text_for_a_terminal() -> None:
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


def test_torch_and_lists_alike() -> None:
    a = torch.randn(8).half()
    b = torch.randn(8).half()
    assert explain(a, b, 0.5, SPECS["T4"]) == explain(a.tolist(), b.tolist(), 0.5, SPECS["T4"])


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"1 to 4 products for one block of V100.*got 5 values of a and 5 of b"
    ):
        explain([1.0] * 5, [1.0] * 5, 0.0, SPECS["V100"])
    with pytest.raises(ValueError, match="got 1 values of a and 2 of b"):
        explain([1.0], [1.0, 1.0], 0.0, SPECS["V100"])
    with pytest.raises(ValueError, match=r"in FP32, got .* in FP16"):
        explain([1.0], [1.0], 0.0, SPECS["A100"].for_operands(BF16), FP16)
    with pytest.raises(ValueError, match="finite numbers in b, got infinities or NaN"):
        explain([1.0], [math.inf], 0.0, SPECS["V100"])
    with pytest.raises(ValueError, match=r"expected FP16 values in a, got 0\.1"):
        explain([0.1], [1.0], 0.0, SPECS["V100"], FP32)
