"""The block of a Tensor Core, bit by bit, and the sentence about it."""

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from labkit.formats import FP16, FP32
from labkit.gemm import SPECS
from labkit.widgets import MmaBlock
from labkit.widgets.mma_block.errors import sum_errors, sum_errors_figure, sum_errors_sentence
from labkit.widgets.mma_block.widget import PRESETS, choices, results, walk
from tests.widgets.pages import Scripts

FOLDERS = ("exact", "mma_block")
EVERY = [
    (name, knob) for name, preset in PRESETS.items() for knob in range(preset.low, preset.high + 1)
]


BLOCKS = """(terms, gpu, name, specs) => {
  const all = Object.fromEntries(
    specs.map((spec) => [spec.name, blocksOf(terms, spec, F.FP16, F[name])]),
  );
  const found = Object.fromEntries(specs.map((spec) => [spec.name, all[spec.name].at(-1).result]));
  return all[gpu].map((block, i) => {
    const sheet = blockSheet(block, i * block.spec.block_length);
    const sentence = blockSentence(all[gpu], i, exactSum(terms), found);
    return { ...sheet, result: block.result, found, sentence };
  });
}"""


def shown(js: Scripts, terms: Any, gpu: str, out: str = "FP32") -> list[dict[str, Any]]:
    """Return what the page shows of each block."""
    found: list[dict[str, Any]] = js.run(BLOCKS, terms, gpu, out, choices()["specs"])
    return found


def rows(block: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in block["rows"]}


def value_of(row: dict[str, str], top: int, kinds: str = "zk") -> Fraction:
    """Return the number that a row of bits represents, by its columns of some kinds."""
    columns = enumerate(zip(row["bits"], row["kinds"], strict=True))
    size = sum(
        (Fraction(2) ** (top - i) for i, (bit, kind) in columns if bit == "1" and kind in kinds),
        Fraction(0),
    )
    return -size if row["sign"] else size


def test_four_generations_answer_differently():
    """The first sums show how many bits a generation keeps behind the point: 23, 24 and 25.

    The sums of ones show where C in FP16 stops: one by one at 2048, and in exact blocks of 4, 8 and
    16 ones at 4, 8 and 16 times as much.
    """
    for preset, knob, answers in (
        ("1 and small terms", -24, (1.0, 1 + 2.0**-20, 1 + 2.0**-20)),
        ("1 and small terms", -25, (1.0, 1.0, 1 + 2.0**-21)),
        ("large, small, minus large", -7, (2.0**-7, 2.0**-7, 2.0**-7)),
        ("large, small, minus large", -8, (0.0, 2.0**-8, 2.0**-8)),
        ("large, small, minus large", -9, (0.0, 0.0, 2.0**-9)),
        ("ones", 12, (4112.0, 4112.0, 4112.0)),
        ("ones", 13, (8192.0, 8208.0, 8208.0)),
        ("ones", 14, (16384.0, 16384.0, 16400.0)),
        ("ones", 15, (32768.0, 32768.0, 32768.0)),
    ):
        boards = [MmaBlock(preset, gpu, knob) for gpu in ("V100", "A100", "H100")]
        assert tuple(board.value for board in boards) == answers, (preset, knob)
        assert all(board.found[board.gpu] == board.value for board in boards)


ONE_AND_SMALL_TERMS = PRESETS["1 and small terms"].make(-24)


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (
            "V100",
            "The V100, block 1 of 4, aligns 4 products and C to 2^0 and keeps 23 bits behind the "
            "point, down to 2^-23: 4 terms are cut off altogether. After all 4 blocks D = 1, where "
            "the exact sum is 1 + 2^-20. T4, A100, Ada, H100, H200 and B200 get 1 + 2^-20.",
        ),
        (
            "H100",
            "The H100 aligns 16 products and C to 2^0 and keeps 25 bits behind the point, down to "
            "2^-25: nothing is cut off. D = 1 + 2^-20, exactly. V100 gets 1.",
        ),
    ],
)
def test_the_sentence_of_a_block_states_what_is_cut_off(js, gpu, expected):
    assert shown(js, ONE_AND_SMALL_TERMS, gpu)[0]["sentence"] == expected


@pytest.mark.parametrize(("gpu", "kind"), [("V100", "c"), ("A100", "k")])
def test_the_bit_of_a_small_term_is_cut_off_or_kept(js, gpu, kind):
    row = rows(shown(js, ONE_AND_SMALL_TERMS, gpu)[0])["a0·b0"]
    assert row["bits"].strip() == "0" * 25 + "1"
    assert row["kinds"].strip() == "z" * 25 + kind


class TestPageWithoutAKernel:
    def test_a_preset_has_the_ends_of_its_gpus(self, page):
        root = page.show(MmaBlock())
        root.get_by_role("radio", name="ones").check(force=True)
        assert [page.trait(name) for name in ("preset", "knob", "result")] == ["ones", 13, "FP16"]
        ends = root.locator(".mm-gpus .mm-end").all_inner_texts()
        assert [end.replace("\n", "") for end in ends[:3]] == ["8192", "8208", "8208"]

    def test_the_sentence_follows_the_slider_and_the_gpu(self, page):
        root = page.show(MmaBlock())
        root.get_by_role("radio", name="ones").check(force=True)
        root.get_by_role("slider").fill("15")
        root.locator("input[value=H100]").check(force=True)
        assert "more bit than FP16 holds and is rounded down" in page.trait("sentence")

    def test_a_tour_begins_with_its_settings(self, page):
        root = page.show(MmaBlock())
        root.get_by_role("radio", name="ones").check(force=True)
        root.get_by_role("button", name="Tour").click()
        settings = [page.trait(name) for name in ("preset", "gpu", "knob")]
        assert settings == ["1 and small terms", "V100", -22]

    def test_a_chosen_block_is_drawn(self, page):
        root = page.show(MmaBlock("1 and small terms", "V100"))
        root.get_by_role("radio", name="4", exact=True).check(force=True)
        assert "block 4 of 4" in page.trait("sentence")
        assert root.locator("[data-name='a12·b12']").count() == 1

    def test_another_gpu_begins_with_its_first_block(self, page):
        root = page.show(MmaBlock("1 and small terms", "V100"))
        root.get_by_role("radio", name="4", exact=True).check(force=True)
        page.set(gpu="H100")
        assert page.trait("block") == 0


def test_a_result_with_the_digits_of_the_sum_may_be_inexact(page):
    """Both are written with eight digits, in which draw 12 of the V100 equals the exact sum."""
    root = page.show(MmaBlock("random", "V100", 12))
    mark = root.locator(".mm-gpus label", has_text="V100").locator(".mm-end")
    exact = root.locator(".mm-knob + span")
    assert f"exact sum: {mark.text_content()}".replace("−", "-") == exact.text_content()
    assert mark.get_attribute("data-exact") == "false"


def test_rows_of_bits_have_the_values_of_terms_and_sums(js):
    for (name, knob), gpu, out in product(EVERY[::3], ("V100", "A100", "H100"), (FP32, FP16)):
        terms = PRESETS[name].make(knob)
        case = (name, knob, gpu, out.name)
        # `walk` refuses operands that are no FP16 numbers.
        blocks = walk(terms, SPECS[gpu], out)
        views = shown(js, terms, gpu, out.name)
        assert [view["result"] for view in views] == [block.result for block in blocks], case
        assert views[-1]["found"] == results(terms, out), case
        for block, view in zip(blocks, views, strict=True):
            assert {len(row[part]) for row in view["rows"] for part in ("bits", "kinds")} == {
                view["columns"]
            }, case
            top = block.unit_exponent + view["edge"] - 1
            *added, total, result = view["rows"]
            values = [value_of(row, top) for row in added]
            assert sum(values) == value_of(total, top), case
            exact = sorted(Fraction(term.value) for term in block.terms)
            unit = Fraction(2) ** block.unit_exponent
            pairs = zip(sorted(values), exact, strict=True)
            assert all(abs(abs(kept) - abs(value)) < unit for kept, value in pairs), case
            if out is FP32 or abs(block.result) >= 2.0**-14:
                assert abs(value_of(result, top)) == abs(Fraction(block.result)), case


def test_dropped_bits_complete_the_exact_sum(js):
    board = MmaBlock("random", "H100", 3)
    (view,) = shown(js, board.terms, "H100")
    top = board.blocks[0].unit_exponent + view["edge"] - 1
    *added, total, result = view["rows"]
    a, b, c = board.terms
    exact = Fraction(c) + sum(
        (Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0)
    )
    assert sum(value_of(row, top, "zkc") for row in added) == exact
    assert value_of(result, top, "kd") == value_of(total, top)


def test_texts_of_values(js):
    values = (0.0, 65536.0, 2.0**-30, 2.0**30, -1 - 2.0**-9, 1.5)
    assert [js.run("shownValue", value) for value in values] == [
        "0",
        "65536",
        "2^-30",
        "2^30",
        "-1 - 2^-9",
        "1.5",
    ]


def test_a_preset_sets_its_first_position():
    board = MmaBlock()
    for name, preset in PRESETS.items():
        board.preset = name
        assert board.knob == preset.start
        assert board.result == preset.result


def test_a_still_shows_the_block_that_was_chosen():
    board = MmaBlock("1 and small terms", "V100")
    board.block = 3
    assert str(board.blocks[3]) in board.still()["text/plain"]


def test_a_gpu_with_fewer_blocks_shows_the_first_one():
    board = MmaBlock("1 and small terms", "V100")
    board.block = 3
    board.gpu = "H100"
    assert len(board.blocks) == 1
    assert board.block == 0


def test_c_of_a_block_is_the_result_of_the_block_before():
    board = MmaBlock("random", "A100")
    assert board.blocks[1].terms[-1].value == board.blocks[0].result


@pytest.fixture(scope="module")
def found():
    """Errors of sums of three lengths."""
    return sum_errors([16, 256, 2048])


def test_errors_of_sums_equal_those_of_numpy(found):
    generator = torch.Generator().manual_seed(0)
    a, b = (
        torch.rand(17, 2048, generator=generator).half().numpy().astype(np.float64)
        for _ in range(2)
    )
    for i, k in enumerate(found.lengths):
        # The products are exact, in FP32 too.
        products = (a * b)[:, :k]
        exact = np.array([math.fsum(row) for row in products])
        in_fp32 = np.add.accumulate(products.astype(np.float32), axis=1)[:, -1]
        in_fp16 = np.zeros(17, np.float16)
        for term in products.T:
            # numpy adds in FP64, so this rounds once.
            in_fp16 = (in_fp16 + term).astype(np.float16)
        for name, sums in (("FP32, one by one", in_fp32), ("FP16, one by one", in_fp16)):
            assert found.errors[name][i] == pytest.approx(
                np.median(abs(sums - exact) / exact), rel=1e-6
            )


def test_sums_in_pairs_err_least_and_in_fp16_most(found):
    last = {name: errors[-1] for name, errors in found.errors.items()}
    assert sorted(last, key=last.__getitem__) == [
        "FP32, in pairs",
        "FP32, one by one",
        "H100",
        "A100",
        "V100",
        "V100, C and D in FP16",
        "FP16, one by one",
    ]


def test_the_picture_of_errors_has_its_sentence(found):
    words = sum_errors_sentence(found)
    assert words.startswith("At K = 2,048 the same sums are off by ")
    figure = sum_errors_figure(found)
    assert " ".join(figure.get_supxlabel().split()) == words


def test_the_picture_of_errors_has_a_line_for_each_way(found):
    figure = sum_errors_figure(found)
    assert [line.get_label() for line in figure.axes[0].lines] == list(found.errors)


def test_invalid_lengths_of_sums_are_refused():
    for lengths in ([], [0, 4]):
        with pytest.raises(ValueError, match="expected 1 and more"):
            sum_errors(lengths)
