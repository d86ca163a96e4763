"""The Tensor Core emulation, by numpy and by numba, against a model in exact rational arithmetic."""

import itertools
import math
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from labkit.formats import BF16, E4M3, E5M2, FP16, FP32, TF32, Format, round_to
from labkit.gemm import ROWS, SPECS, TURING_4, MmaSpec, blocks, emulate, emulator
from labkit.gemm.blocks import VARIABLE, to_half
from tests.oracles import mma_reference
from tests.oracles.mma_cases import MAKERS, Cases, cases

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


# --- worked examples ---------------------------------------------------------------------------------------------


def test_worked_example_four_generations_four_answers() -> None:
    # 1 + 16 * 2^-24: 2^-24 is one place beyond what V100 keeps of a term beside 1, and just what the others keep.
    seed = {gpu: one(spec, 1.0, [1.0] * 16, [2.0**-24] * 16) for gpu, spec in SPECS.items()}
    assert seed == {"V100": 1.0, **dict.fromkeys(("T4", "A100", "Ada", "H100", "H200", "B200"), 1 + 2.0**-20)}
    # 1 + 16 * 2^-25: one place further; only Hopper and Blackwell keep it.
    seed = {gpu: one(spec, 1.0, [0.5] * 16, [2.0**-24] * 16) for gpu, spec in SPECS.items()}
    assert seed == {
        **dict.fromkeys(("V100", "T4", "A100", "Ada"), 1.0), **dict.fromkeys(("H100", "H200", "B200"), 1 + 2.0**-21)
    }  # fmt: skip
    # 2^16 + x - 2^16: what is left of x says how many bits stand behind the point: 23, 24, 25.
    large, places = [2.0**8, 2.0**-4, -(2.0**8)], range(-10, -5)
    last = {
        gpu: min(n for n in places if one(spec, 0.0, large, [2.0**8, 2.0 ** (n + 4), 2.0**8]))
        for gpu, spec in SPECS.items()
    }
    assert last == {"V100": -7, "T4": -8, "A100": -8, "Ada": -8, "H100": -9, "H200": -9, "B200": -9}


def test_what_was_seen_on_v100_t4_and_a100() -> None:
    # Fasi, Higham, Mikaitis and Pranesh 2021, section 3: observations on hardware, which the rows must repeat.
    v100, *later = (SPECS[gpu] for gpu in ("V100", "T4", "A100"))
    below_one, tiny = 1 - 2.0**-24, 2.0**-24
    for spec in (v100, *later):
        assert one(spec, 0.0, [tiny], [4.0]) == 2.0**-22, "FP16 subnormals count"
        assert one(spec, 2.0**-149, [0.0], [0.0]) == 2.0**-149, "FP32 subnormals come in and out"
        assert one(spec, 0.0, [1 - 2.0**-11] * 4, [1 - 2.0**-11] * 4) == 4 * (1 - 2.0**-10 + 2.0**-22), "exact products"
        assert one(spec, 1.0, [0.5] * 4, [tiny] * 4) == 1.0, "small terms vanish beside a large one, wherever it stands"
        assert one(spec, tiny / 2, [1.0] + [0.5] * 3, [1.0] + [tiny] * 3) == 1.0
        assert one(spec, 0.0, [1.0] * 2, [2.0, 1.5 * 2.0**-23]) == 2.0, "positive sums are rounded down"
        assert one(spec, 0.0, [1.0] * 2, [-2.0, -1.5 * 2.0**-23]) == -2.0, "negative ones up: toward zero"
        assert one(spec, 0.0, [tiny] * 2, [0.5, 0.25], FP16) == tiny, "FP16 results are rounded to nearest"
        assert one(spec, below_one, [1.0] * 4, [tiny] * 4) == 1 + 2.0**-23, "partial sums are not normalised"
        assert one(spec, 1 + 1.5 * 2.0**-22, [1.0] * 4, [2.0**-23, 1, 1, 1]) == 4 + 2.0**-21, "carries are kept"
        assert one(spec, 1.875, [1.0] * 4, [1, 1.5, 1.75, 1.875]) == 8.0
    assert one(v100, -below_one, [1.0], [1.0]) == 2 * tiny, "Volta keeps no bit beyond FP32's"
    assert [one(spec, -below_one, [1.0], [1.0]) for spec in later] == [tiny, tiny], "later ones keep at least one"
    assert one(v100, 1.0, [1.0] * 4, [tiny] * 4) < one(v100, below_one, [1.0] * 4, [tiny] * 4), (
        "a larger C, a smaller D"
    )
    nearly, more = [one(later[1], c, [0.5] * 4, [tiny] * 3 + [3 * tiny]) for c in (below_one, 1.0)]
    assert more < nearly, "on A100 too"


# --- against the reference ---------------------------------------------------------------------------------------


def test_the_reference_knows_the_seeds() -> None:
    # It must be right by itself before anything is compared with it: values worked out by hand.
    v100, h100 = {"block_length": 4, "fraction_bits": 23}, {"block_length": 16, "fraction_bits": 25}
    assert mma_reference.dot([1.0] * 16, [2.0**-24] * 16, 1.0, "FP16", **v100) == 1.0
    assert mma_reference.dot([0.5] * 16, [2.0**-24] * 16, 1.0, "FP16", **h100) == 1 + 2.0**-21
    assert mma_reference.dot([1.5], [1.5], 0.0, "FP16", 4, 0) == 2.0, "10.01 with no bit behind the point"
    assert mma_reference.dot([1.5], [1.5], 0.0, "FP16", 4, 0, normalise=True) == 2.0
    assert mma_reference.dot([1.5, 1.0], [1.5, 1.0], 0.0, "FP16", 4, 0, normalise=True) == 2.0, "1 is shifted out"
    assert mma_reference.dot([1.0], [1.0], 2.0**-1, "FP16", 4, 0, align="nearest") == 1.0, "a tie goes to even"
    assert mma_reference.rounded(-(3 << (mma_reference.GRID - 150)), "FP32", 23) == -(2.0**-149)
    assert mma_reference.rounded(65520 << mma_reference.GRID, "FP16", 23) == math.inf


def emulated(spec: MmaSpec, result: Format, numbers: Cases) -> np.ndarray:
    a, b, c = numbers
    return emulate(a[:, None, :], b[:, :, None], c[:, None, None], spec, result)[:, 0, 0].astype(np.float64)


def referenced(spec: MmaSpec, result: Format, numbers: Cases, **wrong: object) -> np.ndarray:
    settings = (spec.operands.name, spec.block_length, spec.fraction_bits, result.name, min(23, spec.fraction_bits))
    a, b, c = (side.tolist() for side in numbers)
    also = {"operands_b": spec.right.name, **wrong}
    return np.array([mma_reference.dot(*case, *settings, **also) for case in zip(a, b, c, strict=True)])


def different(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Where two results differ, the sign of zero included; any NaN is as good as another."""
    equal = (ours == theirs) & (np.signbit(ours) == np.signbit(theirs))
    return np.flatnonzero(~(equal | np.isnan(ours) & np.isnan(theirs)))


def assert_same(spec: MmaSpec, result: Format, numbers: Cases, theirs: np.ndarray) -> None:
    ours = emulated(spec, result, numbers)
    wrong = different(ours, theirs)
    first = [side[wrong[:1]].tolist() for side in numbers]
    count = f"{spec.name} {spec.operands.name} to {result.name}: {len(wrong)} of {len(ours)} differ"
    assert not len(wrong), f"{count}: {ours[wrong[:3]]} not {theirs[wrong[:3]]}: {first}"


@cache
def proof(row: MmaSpec, result: Format) -> tuple[Cases, np.ndarray]:
    """The cases of a row, and what they come to; a minute's work for all rows, so it is done once."""
    numbers = cases(row, result, 450, SEED)
    return numbers, referenced(row, result, numbers)


def test_every_spec_against_the_reference() -> None:
    for row, result in CASES:
        assert_same(row, result, *proof(row, result))
    for row, result in MIXED[3:8:2]:
        numbers = cases(row, result, 200, SEED)
        assert_same(row, result, numbers, referenced(row, result, numbers))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_100000_dot_products_of_every_spec_against_the_reference() -> None:
    for row, result in (*CASES, *MIXED):
        for seed in range(10):
            numbers = cases(row, result, 10_000, seed)
            assert_same(row, result, numbers, referenced(row, result, numbers))


def test_a_machine_that_is_wrong_in_one_way_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for row, result in CASES:
        numbers, theirs = proof(row, result)
        for wrong in (
            {"fraction_bits": row.fraction_bits + 1},
            {"fraction_bits": row.fraction_bits - 1},
            {"block_length": row.block_length * 2},
            {"block_length": row.block_length // 2},
        ):
            assert len(different(emulated(replace(row, **wrong), result, numbers), theirs)), (row, result, wrong)
        with monkeypatch.context() as patch:
            patch.setenv(VARIABLE, "numpy")
            patch.setattr(blocks, "_cut", lambda terms, out: np.rint(terms, out=out, casting="unsafe"))
            assert len(different(emulated(row, result, numbers), theirs)), (row, result, "rounding at alignment")
        # The emulator has no step that normalises products, so here the reference does wrong, on a part of the cases.
        part = tuple(side[: 450 // len(MAKERS) * 6] for side in numbers)
        normalised = referenced(row, result, part, normalise=True)
        assert len(different(emulated(row, result, part), normalised)), (row, result, "normalised products")


# --- whole matrices ----------------------------------------------------------------------------------------------


def test_whole_matrices_of_any_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Element by element against the reference, cut into tiles of any size; one of nothing is C."""
    monkeypatch.setenv(VARIABLE, "numpy")
    rng = np.random.default_rng(SEED)
    for m, n, k in ((1, 1, 1), (3, 5, 19), (17, 2, 33), (2, 17, 5), (4, 4, 4), (0, 3, 4), (3, 0, 4), (3, 4, 0)):
        a, b, c = (rng.normal(size=size) * 2.0 ** rng.integers(-9, 9, size) for size in ((m, k), (k, n), (m, n)))
        a, b, c = round_to(a, FP16), round_to(b, FP16), round_to(c, FP32)
        wanted = [[mma_reference.dot(a[i].tolist(), b[:, j].tolist(), float(c[i, j]), "FP16", 8, 24) for j in range(n)]
                  for i in range(m)]  # fmt: skip
        for tile in (1, 64, 2**17):
            monkeypatch.setattr(blocks, "TILE", tile)
            assert emulate(a, b, c, SPECS["A100"]).tolist() == wanted, (m, n, k, tile)


def test_leading_dimensions_are_separate_products() -> None:
    a, b = torch.randn(2, 3, 4, 20).half(), torch.randn(2, 3, 20, 5).half()
    d = emulate(a, b, None, SPECS["H100"])
    assert d.shape == (2, 3, 4, 5)
    assert torch.equal(d[1, 2], emulate(a[1, 2], b[1, 2], None, SPECS["H100"]))


def test_torch_and_numpy_say_the_same_return_their_own_and_leave_inputs_alone() -> None:
    a, b = torch.randn(3, 9).half(), torch.randn(9, 4).half()
    before = a.clone(), b.clone()
    tensor, array = emulate(a, b, None, SPECS["T4"]), emulate(a.numpy(), b.numpy(), None, SPECS["T4"])
    assert (tensor.dtype, array.dtype) == (torch.float32, np.dtype(np.float32))
    assert np.array_equal(tensor.numpy(), array)
    assert emulate(a, b, None, SPECS["T4"], FP16).dtype == torch.float16
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_torch_dtypes_of_other_operands() -> None:
    for dtype, operands in ((torch.bfloat16, BF16), (torch.float8_e4m3fn, E4M3), (torch.float8_e5m2, E5M2)):
        a, b = torch.randn(3, 40).to(dtype), torch.randn(40, 3).to(dtype)
        spec = SPECS["B200"].for_operands(operands)
        assert torch.equal(emulate(a, b, None, spec), emulate(a.float(), b.float(), None, spec)), dtype


def test_tf32_ignores_the_last_13_bits() -> None:
    spec, one = SPECS["A100"].for_operands(TF32), np.ones((1, 1), np.float32)
    x = torch.tensor([[1 + 2.0**-10 + 2.0**-11 + 2.0**-23]])
    assert emulate(x, torch.ones(1, 1), None, spec).item() == 1 + 2.0**-10
    assert emulate(-x, torch.ones(1, 1), None, spec).item() == -1 - 2.0**-10, "toward zero"
    # 0x7F800001 is a NaN whose only one is the last bit, 0xFF801FFF has all that is cut, 0x7F802000 the first kept.
    words = np.array([[0x7F800001], [0xFF801FFF], [0x7F802000], [0x7FC00000]], dtype=np.uint32)
    for make in (torch.from_numpy, np.asarray):
        d = np.asarray(emulate(make(words.view(np.float32)), make(one), None, spec)).ravel()
        assert d[:2].tolist() == [math.inf, -math.inf], make
        assert np.isnan(d[2:]).all(), make


# --- specials ----------------------------------------------------------------------------------------------------


def test_nan_has_one_code() -> None:
    for a, b, c in ([math.nan, 1.0, 0.0], [math.inf, 0.0, 0.0], [math.inf, 1.0, -math.inf], [1.0, 1.0, math.nan]):
        for result, code in ((FP32, 0x7FFFFFFF), (FP16, 0x7FFF)):
            d = emulate(np.array([[a]]), np.array([[b]]), np.array([[c]]), SPECS["H100"], result)
            assert d.view(f"u{d.itemsize}").item() == code, (a, b, c, result)


def test_an_infinite_result_stays_infinite_in_later_blocks() -> None:
    huge = BF16.max
    spec = SPECS["A100"].for_operands(BF16)
    assert one(spec, 0.0, [huge] + [0.0] * 7 + [-huge], [huge] + [0.0] * 7 + [1.0]) == math.inf
    assert one(spec, 0.0, [huge, -huge, 3.0], [huge, huge, 1.0]) == 0.0, (
        "one block may go beyond FP32, and cuts the rest"
    )
    assert one(SPECS["V100"], 0.0, [60000.0] * 2, [1.0] * 2, FP16) == math.inf


def test_rounding_to_fp16_by_addition_is_numpys_cast() -> None:
    # Every FP16 value, every tie between two of them, and what lies one FP64 ulp beside; then numbers of any size.
    values = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = np.append((values[1:] + values[:-1]) / 2, 65520.0)
    near = [values, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), [np.inf, np.nan, 1e300, 5e-324]]
    wide = np.random.default_rng(SEED).normal(size=10_000) * 2.0 ** np.arange(-50, 50).repeat(100)
    numbers = np.concatenate([*near, wide])
    for signed in (numbers, -numbers):
        with np.errstate(over="ignore"):
            expected = signed.astype(np.float16).astype(np.float64)
        assert not len(different(to_half(signed), expected))


# --- errors that teach -------------------------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="A100 with BF16 operands: expected out to be FP32, got FP16"):
        emulate(ones, ones, None, SPECS["A100"].for_operands(BF16), FP16)
    with pytest.raises(TypeError, match="expected a torch tensor or a numpy array of floats for A"):
        emulate([[1.0]], ones, None, SPECS["V100"])  # type: ignore[type-var]


needs_numba = pytest.mark.skipif(
    emulator() == "numpy", reason="numba is not installed, or LABKIT_EMULATOR says numpy: there is one emulator only"
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
    # The oracle's dot products, as rows of one A and columns of one B: every kind of A meets every kind of B.
    for row, result in [(spec, result) for spec in (*ROWS, TURING_4) for result in spec.results]:
        a, b, c = cases(row, result, 96, 7)
        c = c[:, None] * np.where(np.arange(96) % 3, 0.0, 1.0)
        for start in (np.where(np.isnan(c), np.inf, c), None):
            assert np.array_equal(*both(monkeypatch, a, b.T.copy(), start, row, result)), (row, result, start)


@needs_numba
def test_any_shape_and_blocks_that_no_gpu_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for m, n, k in ((1, 1, 1), (3, 5, 19), (17, 2, 33), (2, 700, 5), (700, 2, 3), (5, 3, 0), (0, 3, 4), (3, 0, 4)):
        g = torch.Generator().manual_seed(m + n + k)
        for batch, out in itertools.product(((), (2, 3)), (FP32, FP16)):
            a, b = torch.randn(*batch, m, k, generator=g).half(), torch.randn(*batch, k, n, generator=g).half()
            c = torch.randn(*batch, m, n, generator=g).half()
            one, other = both(monkeypatch, a, b, c, SPECS["H100"], out)
            assert one.shape == (*batch, m, n)
            assert np.array_equal(one, other), (m, n, k, batch, out)
    for length in (1, 2, 3, 6):  # four products at a time would read beyond the end of a block
        row, ones = replace(SPECS["V100"], block_length=length), np.ones((7, 5), np.float32)
        one, other = both(monkeypatch, ones, ones.T, None, row)
        assert np.array_equal(one, other), length
        assert (one.view(np.float32) == 5).all(), length


@needs_numba
def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, threads = torch.randn(3, 40, 30).half(), torch.randn(3, 30, 90).half(), torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr("labkit.gemm.blocks.PIECE", 64)
    try:
        one, other = both(monkeypatch, a, b, None, SPECS["V100"])
    finally:
        torch.set_num_threads(threads)
    assert np.array_equal(one, other)


def test_which_of_them_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "numpy")
    assert emulator() == "numpy"
    monkeypatch.setenv(VARIABLE, "cuda")
    with pytest.raises(ValueError, match=r"expected .numba., .numpy. or nothing in LABKIT_EMULATOR, got 'cuda'"):
        emulate(np.ones((1, 1)), np.ones((1, 1)), None, SPECS["V100"])


def test_without_numba_the_lab_uses_numpy_and_says_what_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)  # as if it were not installed
    monkeypatch.delenv(VARIABLE, raising=False)
    assert emulator() == "numpy"
    assert emulate(np.ones((1, 5)), np.ones((5, 1)), None, SPECS["V100"]).item() == 5.0
    monkeypatch.setenv(VARIABLE, "numba")
    with pytest.raises(RuntimeError, match=r'pip install "fp16-lab\[fast\]"'):
        emulator()
