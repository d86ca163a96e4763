"""A Tensor Core's block, bit by bit: what is drawn is what the arithmetic says, and the sentence belongs to it."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import traitlets

from labkit.formats import FP16, FP32
from labkit.gemm import SPECS, emulate
from labkit.widgets import MmaBlock, predictions
from labkit.widgets.mma_block.errors import sum_errors, sum_errors_figure, sum_errors_sentence
from labkit.widgets.mma_block.presets import PRESETS
from labkit.widgets.mma_block.view import results, sheet, walk
from labkit.widgets.mma_block.words import exact_sum, told

EVERY = [(name, knob) for name, preset in PRESETS.items() for knob in range(preset.low, preset.high + 1)]


def rows(board: MmaBlock) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in board._view["rows"]}


def value_of(row: dict[str, str], top: int, kinds: str = "zk") -> Fraction:
    """Read a row of bits as a number; only columns of these kinds."""
    size = sum(
        (Fraction(2) ** (top - i) for i, (bit, kind) in enumerate(zip(row["bits"], row["kinds"], strict=True))
         if bit == "1" and kind in kinds),
        Fraction(0),
    )  # fmt: skip
    return -size if row["sign"] else size


class TestTheThreeSeeds:
    """Four generations, different answers: the sums that tell how many bits each keeps."""

    @pytest.mark.parametrize(
        ("preset", "knob", "answers"),
        [
            ("1 and small terms", -24, {"V100": 1.0, "A100": 1 + 2.0**-20, "H100": 1 + 2.0**-20}),
            ("1 and small terms", -25, {"V100": 1.0, "A100": 1.0, "H100": 1 + 2.0**-21}),
            ("large, small, minus large", -7, {"V100": 2.0**-7, "A100": 2.0**-7, "H100": 2.0**-7}),
            ("large, small, minus large", -8, {"V100": 0.0, "A100": 2.0**-8, "H100": 2.0**-8}),
            ("large, small, minus large", -9, {"V100": 0.0, "A100": 0.0, "H100": 2.0**-9}),
        ],
    )
    def test_answers(self, preset, knob, answers):
        for gpu, answer in answers.items():
            board = MmaBlock(preset, gpu, knob)
            assert board.value == board.found[gpu] == answer

    def test_what_is_said(self):
        board = MmaBlock("1 and small terms", "V100")
        assert board.sentence == (
            "The V100, block 1 of 4, aligns 4 products and C to 2^0 and keeps 23 bits behind the point, down to 2^-23: "
            "4 terms are cut off altogether. After all 4 blocks D = 1, where the exact sum is 1 + 2^-20. T4, A100, "
            "Ada, H100, H200 and B200 get 1 + 2^-20."
        )
        board.gpu = "H100"
        assert board.sentence == (
            "The H100 aligns 16 products and C to 2^0 and keeps 25 bits behind the point, down to 2^-25: nothing is "
            "cut off. D = 1 + 2^-20, exactly. V100 gets 1."
        )

    def test_where_the_bits_stand(self):
        row = rows(MmaBlock("1 and small terms", "V100"))["a0·b0"]
        assert (row["bits"].strip(), row["kinds"].strip()) == ("0" * 25 + "1", "z" * 25 + "c")
        row = rows(MmaBlock("1 and small terms", "A100"))["a0·b0"]
        assert (row["bits"].strip(), row["kinds"].strip()) == ("0" * 25 + "1", "z" * 25 + "k")


def test_an_fp16_result_of_ones_stops_later_than_one_by_one():
    """One after another stops at 2048; blocks of 4, 8 and 16 ones, each added exactly, at 4, 8 and 16 times that."""
    for gpu, stops in (("V100", 13), ("A100", 14), ("H100", 15)):
        below, at = MmaBlock("ones", gpu, stops - 1), MmaBlock("ones", gpu, stops)
        assert below.value == 2.0 ** (stops - 1) + 16
        assert at.value == 2.0**stops
        assert "more bit than FP16 holds and is rounded down" in at.sentence


@pytest.mark.parametrize("out", [FP32, FP16], ids=lambda format: format.name)
@pytest.mark.parametrize("gpu", ["V100", "A100", "H100"])
def test_every_row_is_its_term_and_every_sum_adds_up(gpu, out):
    for name, knob in EVERY:
        terms = PRESETS[name].make(knob)
        blocks = walk(terms, SPECS[gpu], out)
        assert blocks[-1].result == results(terms, out)[gpu]
        for block in blocks:
            view = sheet(block, 0)
            lengths = {len(row[part]) for row in view["rows"] for part in ("bits", "kinds")}
            assert lengths == {view["columns"]}
            top = block.unit_exponent + view["edge"] - 1
            *added, total, result = view["rows"]
            values = [value_of(row, top) for row in added]
            assert sum(values) == value_of(total, top)
            exact = sorted(Fraction(term.value) for term in block.terms)
            assert all(
                abs(abs(kept) - abs(value)) < Fraction(2) ** block.unit_exponent
                for kept, value in zip(sorted(values), exact, strict=True)
            )
            if out is FP32 or abs(block.result) >= 2.0**-14:
                assert abs(value_of(result, top)) == abs(Fraction(block.result))


def test_what_is_cut_and_dropped_is_what_is_missing():
    board = MmaBlock("random", "H100", 3)
    top = board.blocks[0].unit_exponent + board._view["edge"] - 1
    *added, total, result = board._view["rows"]
    everything = sum(value_of(row, top, "zkc") for row in added)
    assert everything == exact_sum(board.terms)
    assert value_of(result, top, "kd") == value_of(total, top)


class TestState:
    @pytest.fixture
    def board(self):
        return MmaBlock()

    def test_a_preset_begins_where_it_tells_most(self, board):
        for name, preset in PRESETS.items():
            board.preset = name
            assert (board.knob, board.result) == (preset.start, preset.result)

    def test_fewer_blocks_never_leave_the_block_behind(self, board):
        board.block = 3
        assert "block 4 of 4" in board.sentence
        assert rows(board)["a12·b12"]
        board.gpu = "H100"
        assert (board.block, len(board.blocks)) == (0, 1)

    def test_the_next_block_begins_with_the_last_result(self, board):
        board.preset, board.gpu = "random", "A100"
        assert board.blocks[1].terms[-1].value == board.blocks[0].result

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("gpu", "P100", "no gpu 'P100' here; there are 'V100', 'T4'"),
            ("preset", "zeros", "no preset 'zeros' here; there are '1 and small terms'"),
            ("result", "BF16", "no result 'BF16' here; there are 'FP32', 'FP16'"),
            ("knob", 3, "knob goes from -30 to -12 here; it was given 3"),
            ("block", 4, "block goes from 0 to 3 here; it was given 4"),
        ],
    )
    def test_what_is_not_there_is_refused(self, board, name, value, says):
        with pytest.raises(traitlets.TraitError, match=says):
            setattr(board, name, value)
        assert board.value == 1.0

    def test_what_is_sent_is_plain_json(self, board):
        json.loads(json.dumps({name: value for name, value in board.get_state().items() if name != "layout"}))

    def test_a_host_without_widgets_gets_a_table_as_text(self, board):
        data, _ = board._repr_mimebundle_()
        assert str(board.blocks[0]) in data["text/plain"]
        assert "do not run here" in data["text/plain"]


@pytest.mark.parametrize(("name", "knob"), EVERY)
def test_operands_are_fp16_numbers(name, knob):
    a, b, c = PRESETS[name].make(knob)
    emulate(*_matrices(a, b, c), SPECS["H100"], FP16)  # refuses what FP16 does not hold


def _matrices(a, b, c):
    return np.array([a]), np.array([b]).T, np.array([[c]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (65536.0, "65536"),
        (2.0**-30, "2^-30"),
        (2.0**30, "2^30"),
        (-1 - 2.0**-9, "-1 - 2^-9"),
        (1.5, "1.5"),
    ],
)
def test_told(value, text):
    assert told(value) == text


@pytest.fixture(scope="module")
def found():
    return sum_errors([16, 256, 2048])


class TestErrorsAgainstLength:
    def test_they_are_those_of_other_peoples_sums(self, found):
        generator = torch.Generator().manual_seed(0)
        a, b = (torch.rand(17, 2048, generator=generator).half().numpy() for _ in range(2))
        for i, k in enumerate(found.lengths):
            left, right = a[:, :k].astype(np.float64), b[:, :k].astype(np.float64)
            exact = np.array([math.fsum(row) for row in left * right])
            in_fp32 = np.add.accumulate((left * right).astype(np.float32), axis=1)[:, -1]  # products are exact in FP32
            in_fp16 = np.zeros(17, np.float16)
            for term in (left * right).T:
                in_fp16 = (in_fp16 + term).astype(np.float16)  # one rounding: in_fp16 is widened to FP64 first
            for name, sums in (("FP32, one by one", in_fp32), ("FP16, one by one", in_fp16)):
                assert found.errors[name][i] == pytest.approx(np.median(abs(sums - exact) / exact), rel=1e-6)

    def test_newer_tensor_cores_are_nearer_and_fp32_is_nearest(self, found):
        last = {name: each[-1] for name, each in found.errors.items()}
        order = [
            "FP32, in pairs",
            "FP32, one by one",
            "H100",
            "A100",
            "V100",
            "V100, C and D in FP16",
            "FP16, one by one",
        ]
        assert sorted(last, key=last.__getitem__) == order

    def test_the_sentence_and_the_figure(self, found):
        words = sum_errors_sentence(found)
        assert words.startswith("At K = 2,048 the same sums are off by ")
        figure = sum_errors_figure(found)
        assert " ".join(figure.get_supxlabel().split()) == words
        assert [line.get_label() for line in figure.axes[0].lines] == list(found.errors)

    @pytest.mark.parametrize("lengths", [[], [0, 4]])
    def test_no_length_no_sum(self, lengths):
        with pytest.raises(ValueError, match="lengths of 1 and more"):
            sum_errors(lengths)


class TestWhatTheLessonSays:
    """Numbers in the replies and texts of lesson 03: by numpy, or by the emulator where that is the subject."""

    @staticmethod
    def says(id: str, choice: str, *texts: str) -> None:
        reply = predictions()[id].choices[choice]
        assert [text for text in texts if text not in reply] == []

    def test_a_product_has_22_bits_and_is_no_fp16_number(self):
        assert float(emulate(*_matrices([300.0], [300.0], 0.0), SPECS["V100"])[0, 0]) == 90_000
        with np.errstate(over="ignore"):
            assert np.isinf(np.float16(300) * np.float16(300))
            assert np.isinf(emulate(*_matrices([300.0], [300.0], 0.0), SPECS["V100"], FP16))
        assert (2047 * 2047).bit_length() == 22
        assert predictions()["tensor.product"].answer == "90,000"
        self.says("tensor.product", "90,000", "all 22 bits", "Only a D in FP16 would overflow")

    def test_4096_ones_one_by_one_are_2048(self):
        assert np.add.accumulate(np.ones(4096, np.float16))[-1] == 2048
        assert predictions()["tensor.ones"].answer == "2048"

    @pytest.mark.parametrize(("gpu", "millions"), [("V100", 16.8), ("A100", 33.6), ("H100", 67.1)])
    def test_how_far_an_fp32_accumulator_counts(self, gpu, millions):
        spec, stop = SPECS[gpu], 2.0 ** (SPECS[gpu].fraction_bits + 1)
        ones = [1.0] * spec.block_length
        at, below = (float(emulate(*_matrices(ones, ones, c), spec)[0, 0]) for c in (stop, stop / 2))
        assert (at, below) == (stop, stop / 2 + spec.block_length)
        assert f"{stop / 1e6:.1f}" == str(millions)

    def test_only_the_h100_finds_sixteen_times_2_to_the_minus_25(self):
        board = MmaBlock("1 and small terms", "V100", -25)
        assert {gpu for gpu, value in board.found.items() if value == 1 + 2.0**-21} == {"H100", "H200", "B200"}
        assert float(np.float32(1 + 2.0**-21)) == 1 + 2.0**-21  # which FP32 can hold beside 1
        total = np.float32(1)
        for _ in range(16):
            total += np.float32(2.0**-25)
        assert total == 1  # one after another in FP32 would lose them all
        assert predictions()["tensor.same"].answer == "the H100 only"

    def test_a_batch_of_16_waits_for_memory_and_one_of_128_does_not(self):
        def layer(batch):
            return torch.empty(batch, 1024).half(), torch.empty(4096, 1024).half(), torch.empty(batch, 4096).half()

        def flop_per_byte(batch):
            return 2 * batch * 1024 * 4096 / sum(tensor.nbytes for tensor in layer(batch))

        assert round(flop_per_byte(16)) == 16
        assert flop_per_byte(128) > 100 > flop_per_byte(112)
        assert (2 * 16 * 1024 * 4096) // 10**6 == 134
        assert f"{layer(16)[1].nbytes / 1e6:.1f}" == "8.4"
        self.says("tensor.bound", "the multipliers", "134 million FLOP", "8.4 million bytes", "16 FLOP for each byte")

    def test_a_v100_is_a_thousand_times_better_than_an_fp16_accumulator(self):
        last = {name: each[-1] for name, each in sum_errors([8192]).errors.items()}
        assert last["FP16, one by one"] > 1000 * last["V100"]
        assert last["V100"] < 2.0**-11

    def test_errors_pile_up_with_the_number_of_blocks(self):
        last = {name: each[-1] for name, each in sum_errors([8192]).errors.items()}
        assert last["V100"] / last["A100"] == pytest.approx(2, rel=0.2)  # twice the blocks
        assert last["A100"] / last["H100"] == pytest.approx(2, rel=0.2)
