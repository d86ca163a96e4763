"""Captures of Tensor Cores, checked without a GPU.

Register layouts are compared with the formulas of the PTX manual, and recorded answers with the
emulator. In most tests the emulator stands in for the GPU.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.bench import DeviceReport
from labkit.formats import FP16, FP32, TF32
from labkit.gemm import SPECS, emulate
from labkit.machine.device import GENERATIONS
from tests.gpu.capture import tiles
from tests.gpu.capture.kernel import INSTRUCTIONS, Instruction, kernel
from tests.gpu.capture.tiles import a_registers, b_registers, c_registers, draw_tiles, families

DATA = Path(__file__).parents[3] / "data"
WARP = Instruction("mma.sync", FP16, FP32, 16, (8, 0))


def numbered(rows, words):
    """Return words that encode their position: row * 1000 + word."""
    return (np.arange(rows)[:, None] * 1000 + np.arange(words)).astype(np.uint32)[None]


# Elements a_i, b_i, c_i of thread `lane`, as the PTX ISA writes them, for i = 0, 1, ...: rows and
# columns [lane, i]. g = lane >> 2, t = lane % 4. (PTX ISA, "Matrix fragments for mma.m16n8k16 with
# floating point type".)
G = np.arange(32)[:, None] >> 2
T = np.arange(32)[:, None] % 4
A_OF = {
    "16 bits": lambda i: (G + 8 * np.isin(i, (2, 3, 6, 7)), T * 2 + (i & 1) + 8 * (i >= 4)),
    "tf32": lambda i: (G + 8 * np.isin(i, (1, 3)), T + 4 * (i >= 2)),
    "8 bits": lambda i: (G + 8 * ((i >= 4) & (i < 8) | (i >= 12)), T * 4 + (i & 3) + 16 * (i >= 8)),
}
B_OF = {  # k, column
    "16 bits": lambda i: (T * 2 + (i & 1) + 8 * (i >= 2), G),
    "tf32": lambda i: (T + 4 * i, G),
    "8 bits": lambda i: (T * 4 + (i & 3) + 16 * (i >= 4), G),
}


def c_of(i):
    return G + 8 * (i >= 2), T * 2 + (i & 1)


@pytest.mark.parametrize(
    ("element", "per_word", "words"),
    [("16 bits", 2, 8), ("16 bits", 2, 4), ("tf32", 1, 8), ("8 bits", 4, 8)],
)
def test_registers_of_a_have_the_layout_of_the_ptx_manual(element, per_word, words):
    row, column = A_OF[element](np.arange(words // 2) * per_word)
    expected = row * 1000 + column // per_word
    assert np.array_equal(a_registers(numbered(16, words))[0], expected)


@pytest.mark.parametrize(("element", "per_word"), [("16 bits", 2), ("tf32", 1), ("8 bits", 4)])
def test_registers_of_b_have_the_layout_of_the_ptx_manual(element, per_word):
    k, column = B_OF[element](np.arange(2) * per_word)
    expected = column * 1000 + k // per_word
    assert np.array_equal(b_registers(numbered(8, 8), WARP)[0], expected)


@pytest.mark.parametrize(("result", "per_word"), [("FP32", 1), ("FP16", 2)])
def test_registers_of_c_have_the_layout_of_the_ptx_manual(result, per_word):
    row, column = c_of(np.arange(0, 4, per_word))
    expected = row * 1000 + column // per_word
    assert np.array_equal(c_registers(numbered(16, 8 // per_word))[0], expected)


def test_warps_take_sixteen_rows_each():
    registers = a_registers(numbered(64, 8))[0]
    for warp in range(4):
        rows = np.unique(registers[32 * warp : 32 * warp + 32] // 1000)
        assert list(rows) == list(range(16 * warp, 16 * warp + 16))


def test_from_registers_undoes_c_registers():
    # FP32 and FP16 results.
    for words in (8, 4):
        d = numbered(64, words)
        assert np.array_equal(tiles.from_registers(c_registers(d)), d)


def test_wgmma_reads_b_as_two_pieces():
    grouped = next(row for row in INSTRUCTIONS if row.grouped)
    # A piece has eight columns by sixteen bytes.
    panel = b_registers(numbered(8, 8), grouped)[0]
    assert list(panel[:8]) == [0, 1, 2, 3, 1000, 1001, 1002, 1003]
    assert list(panel[32:36]) == [4, 5, 6, 7]


def test_a_kernel_has_one_multiply_instruction():
    for row in INSTRUCTIONS:
        lines = kernel(row).splitlines()
        (line,) = [line for line in lines if line.startswith(("mma.", "wgmma.mma_async"))]
        assert f"m{row.m}n8k{row.k}." in line


def test_a_kernel_stores_its_results_once():
    for row in INSTRUCTIONS:
        lines = kernel(row).splitlines()
        assert sum(line.startswith("st.v") for line in lines) == 1, row.name


def test_the_target_of_a_kernel_is_the_first_capability():
    for row in INSTRUCTIONS:
        target = kernel(row).splitlines()[1]
        digits = target.removeprefix(".target sm_").removesuffix("a")
        assert tuple(map(int, digits)) == row.first, row.name


def test_a_kernel_loads_registers_as_the_host_writes_them():
    """A load moves as many words as the host writes for a thread, at a stride of the same number.

    The registers of a thread are adjacent in memory.
    """
    for row in INSTRUCTIONS:
        lines = kernel(row).splitlines()
        a, b, c = draw_tiles("normal", row, 2, 0)
        laid_out = {"a": a_registers(a), "c": c_registers(c), "d": c_registers(c)}
        # For wgmma, B goes to shared memory, one word at a time.
        if not row.grouped:
            laid_out["b"] = b_registers(b, row)
        for name, registers in laid_out.items():
            at = lines.index(f"ld.param.u64 %base, [{name}];")
            _, threads, count = registers.shape
            assert lines[at + 1] == f"mad.wide.u32 %at, %i, {4 * count}, %base;", row.name
            assert (f".v{count}." in lines[at + 2]) == (count > 1), row.name
            assert threads == row.threads, row.name
        assert f"mad.lo.u32 %i, %tile, {row.threads}, %lane;" in lines


def test_every_generation_since_turing_is_asked_its_formats():
    for generation in GENERATIONS[1:]:
        for capability in generation.capabilities:
            names = {row.operands.name for row in INSTRUCTIONS if row.runs_on(capability)}
            eight_bits = (
                {"E4M3", "E5M2"} & set(generation.formats)
                if generation.name in ("Ada", "Hopper")
                else set()
            )
            assert names == {"FP16", "BF16", "TF32"} & set(generation.formats) | eight_bits, (
                generation.name
            )


def test_no_instruction_runs_on_volta_or_without_a_gpu():
    assert not any(row.runs_on((7, 0)) or row.runs_on(None) for row in INSTRUCTIONS)


# The questions


def test_questions_have_the_shape_of_the_instruction():
    for row in INSTRUCTIONS:
        shapes = [(3, row.m, row.words), (3, 8, row.words), (3, row.m, row.result_words)]
        for family in (*families(row), "whole numbers"):
            words = draw_tiles(family, row, 3, seed=1)
            assert [part.shape for part in words] == shapes, (row.name, family)


def test_questions_follow_from_their_seed():
    for row in INSTRUCTIONS:
        for family in (*families(row), "whole numbers"):
            words, again, others = (draw_tiles(family, row, 3, seed) for seed in (1, 1, 2))
            assert all(map(np.array_equal, words, again)), (row.name, family)
            assert not np.array_equal(words[0], others[0]), (row.name, family)


@pytest.fixture
def values():
    """A, B and C of 8 tiles of each family, as values."""
    formats = (FP16, FP16, FP32)
    return {
        family: list(map(tiles.from_words, draw_tiles(family, WARP, 8, 0), formats))
        for family in families(WARP)
    }


def test_tiny_operands_include_subnormal_numbers(values):
    magnitudes = np.abs(values["tiny"][0])
    assert magnitudes.max() < 2.0**-9
    assert (magnitudes < FP16.smallest_normal).any()


def test_any_operands_are_finite(values):
    assert np.isfinite(values["any"][0]).all()


def test_special_operands_include_inf_and_nan(values):
    assert np.isnan(values["special"][0]).any()
    assert np.isinf(values["special"][0]).any()


def test_half_of_the_sums_that_may_cancel_do(values):
    a, b, c = values["cancel"]
    exact = a @ b.transpose(0, 2, 1)
    cancelled = np.abs(exact + c) <= np.abs(exact) * 2.0**-24
    # C cancels the products but for the rounding of FP32.
    assert 0.4 < cancelled.mean() < 0.6


@pytest.mark.parametrize(("earlier", "later"), [("V100", "A100"), ("A100", "H100")])
@pytest.mark.parametrize("family", ["normal", "near", "cancel"])
def test_questions_tell_generations_apart(values, family, earlier, later):
    a, b, c = values[family]
    results = [emulate(a, b.transpose(0, 2, 1), c, SPECS[name]) for name in (earlier, later)]
    assert (results[0] != results[1]).any()


# The emulator as a stand-in for the GPU


def stand_in(spec, wrong=()):
    """Return a stand-in for a GPU of `spec` that sets a wrong bit in the tiles `wrong`."""

    def answer(row, a, b, c):
        operands = tiles.stored_as(row.operands)
        # The emulator itself truncates FP32 numbers to TF32.
        dtype = np.float32 if row.operands is TF32 else np.float64
        a, b = (tiles.from_words(words, operands).astype(dtype) for words in (a, b))
        matrices = a, b.transpose(0, 2, 1), tiles.from_words(c, row.result)
        words = (
            emulate(*matrices, spec.for_operands(row.operands), out=row.result).view("<u4").copy()
        )
        for tile in wrong:
            if tile < len(words):
                words[tile, 0, 0] ^= 1
        return words

    return answer


HOPPER = DeviceReport("cuda", "A stand-in", 0, 1, (9, 0), GENERATIONS[5], driver="1.0")


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(tiles, "device_report", lambda _: HOPPER)
    return lambda wrong=(): monkeypatch.setattr(tiles, "capture", stand_in(SPECS["H100"], wrong))


@pytest.fixture(params=INSTRUCTIONS[:6], ids=lambda row: row.name)
def answers(request, hopper):
    """The answers of a stand-in to the questions about an instruction."""
    hopper()
    return tiles.ask(request.param, tiles=2)


def test_saved_answers_can_be_loaded(answers, tmp_path):
    path = tmp_path / "answers.npz"
    path.write_bytes(answers.to_bytes())
    loaded = tiles.load_capture(path)
    assert all(np.array_equal(getattr(loaded, name), getattr(answers, name)) for name in "abcd")
    origin = ("instruction", "spec", "device", "versions")
    assert [getattr(loaded, name) for name in origin] == [getattr(answers, name) for name in origin]


def test_answers_have_their_origin(answers):
    assert (answers.spec, answers.device) == ("H100", "A stand-in")
    assert answers.versions["driver"] == "1.0"


def test_answers_of_the_emulator_match_it(answers):
    spec = SPECS["H100"].for_operands(answers.instruction.operands)
    assert answers.mismatches(spec) == dict.fromkeys(families(answers.instruction), 0)


def test_answers_differ_from_an_emulator_that_keeps_one_bit_less(answers):
    spec = SPECS["H100"].for_operands(answers.instruction.operands)
    other = replace(spec, fraction_bits=spec.fraction_bits - 1)
    assert sum(answers.mismatches(other).values()) > 0


def test_a_wrong_bit_is_counted_in_its_family(hopper):
    # The family of whole numbers has 4 tiles, which are all right.
    hopper(wrong=(5,))
    counted = tiles.ask(INSTRUCTIONS[0], tiles=4).mismatches(SPECS["H100"])
    assert counted == {**dict.fromkeys(families(INSTRUCTIONS[0]), 0), "near": 1}


def test_answers_with_wrong_sums_of_integers_are_refused(hopper):
    hopper(wrong=(0,))
    with pytest.raises(
        RuntimeError, match="multiplied small whole numbers wrong; its answers are not kept"
    ):
        tiles.ask(INSTRUCTIONS[0], tiles=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to ask")
def test_without_a_gpu_it_says_so():
    with pytest.raises(RuntimeError, match="torch reaches no GPU here"):
        tiles.capture(WARP, *draw_tiles("normal", WARP, 1, 0))


# Recorded answers


RECORDED = sorted((DATA / "mma").glob("*/*.npz"))
# The folders of GPUs, which have other records.
GPUS = {
    file.parent.name
    for kind in ("gemm", "checks")
    for file in (DATA / kind).glob("*/*.json*")
    if not file.parent.name.startswith("cpu")
}


@pytest.mark.skipif(not RECORDED, reason="data/mma has no answers of a Tensor Core")
def test_recorded_answers_of_tensor_cores_equal_the_emulator():
    for path in RECORDED:
        answers = tiles.load_capture(path)
        # Without a spec, no row of SPECS models the GPU.
        if answers.spec:
            spec = SPECS[answers.spec].for_operands(answers.instruction.operands)
            assert answers.mismatches(spec) == dict.fromkeys(families(answers.instruction), 0), path


@pytest.mark.skipif(not GPUS, reason="data has no records of a GPU")
def test_each_gpu_with_other_records_has_recorded_answers():
    assert {path.parent.name for path in RECORDED} >= GPUS
