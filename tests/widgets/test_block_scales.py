"""Numbers in blocks: the page's numbers against labkit.formats and labkit.amp."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from labkit.amp import rotate, round_to_blocks
from labkit.formats import FP16, Overflow, Rounding, decode, decode_blocks, round_blocks, round_to
from labkit.widgets import BlockScales
from labkit.widgets.block_scales.widget import (
    COUNT,
    FORMATS,
    choices,
    night,
    random_draws,
    rotation,
    round_row,
)

FOLDERS = ("exact", "block_scales")
ROUND = """(values, row, up, random, matrix) => {
  const found = roundRow(values, blockFormat(row), { up, random, matrix });
  const texts = values.map((_, i) => arithmeticText(found, i));
  return [found.tensorScale, found.scales, found.values, rowSentence(found), texts];
}"""
# The values of scale_up, stochastic and rotated.
SWITCHES = list(product((False, True), repeat=3))


def blocks() -> list[list[float]]:
    """Return blocks of FP16 numbers of many sizes, with outliers, ties, and signed zeros."""
    generator = np.random.default_rng(1)
    rows = [generator.standard_normal(COUNT) * 2.0 ** generator.integers(-20, 12) for _ in range(8)]
    for row in rows[::2]:
        row[generator.integers(COUNT)] *= 30
    ties = np.arange(COUNT) / 8 - 2
    edges = np.where(np.arange(COUNT) % 2, -0.0, FP16.max)
    return [
        np.clip(round_to(row, FP16), -FP16.max, FP16.max).tolist()
        for row in (*rows, ties, edges, np.zeros(COUNT))
    ]


def bits(values: Any) -> bytes:
    return np.asarray(values, np.float64).tobytes()


def test_the_page_has_the_same_numbers_to_the_bit(js):
    rows = {row["name"]: row for row in choices([1.0])["formats"]}
    draws = random_draws()
    for (draw, values), name, (up, stochastic, rotated) in product(
        enumerate(blocks()), FORMATS, SWITCHES
    ):
        random = draws[draw] if stochastic else None
        found = round_row(values, name, scale_up=up, random_bits=random, rotated=rotated)
        sent = None if random is None else random.tolist()
        matrix = rotation().tolist() if rotated else None
        tensor, scales, becomes, sentence, texts = js.run(
            ROUND, values, rows[name], up, sent, matrix
        )
        case = (draw, name, up, stochastic, rotated)
        assert bits([tensor, *scales, *becomes]) == bits(
            [found.tensor_scale, *found.scales, *found.values]
        ), case
        assert not any("NaN" in text or "undefined" in text for text in (sentence, *texts)), case


def test_numbers_equal_round_blocks_and_the_engine():
    for values, name in product(blocks(), FORMATS):
        numbers = np.asarray(values, np.float32)
        format = FORMATS[name]
        tensor = (
            np.float32(2688 / np.abs(numbers).max())
            if name == "NVFP4" and numbers.any()
            else np.float32(1)
        )
        rounded = round_blocks(numbers * tensor, format)
        found = round_row(values, name)
        assert bits(found.scales) == bits(decode(rounded.scales, format.scale))
        assert bits(found.values) == bits(decode_blocks(rounded) / float(tensor))
        turned = rotate(torch.from_numpy(numbers)[None], -1)
        for up, rotated in product((False, True), repeat=2):
            if name == "NVFP4" and rotated:
                # The engine's FP32 sums may differ by one ulp, and so may the tensor's scale.
                continue
            start = turned if rotated else torch.from_numpy(numbers)[None]
            engine = round_to_blocks(start * float(tensor), format, scale_up=up).double().numpy()[0]
            stored = (engine.reshape(-1, 16) @ rotation()).ravel() if rotated else engine
            ours = round_row(values, name, scale_up=up, rotated=rotated).values
            np.testing.assert_array_equal(ours, stored / float(tensor))


def test_values_of_a_widget_are_rounded_to_fp16():
    board = BlockScales([0.1] * 31 + [-2.0], "NVFP4", rotated=True)
    assert board.values[0] == float(np.float16(0.1))
    assert board.selected == 31
    assert "x[31]  -2 -> " in board.still()["text/plain"]


def test_picture_is_rounded_as_one_tensor(js):
    rows = {row["name"]: row for row in choices([1.0])["formats"]}
    pixels = night()
    zeros = {}
    for name in FORMATS:
        found = round_row(pixels, name)
        assert bits(js.run(ROUND, pixels, rows[name], False, None, None)[2]) == bits(found.values)
        picture = np.reshape(found.values, (COUNT, COUNT))
        zeros[name] = [int(count) for count in (picture == 0).sum(axis=1)]
    # Only rows with a bright lamp have zeros.
    assert set(np.flatnonzero(zeros["MXFP4"])) <= {10, 19, 24, 28}
    assert sum(zeros["MXFP8"]) == 0
    assert sum(zeros["MXFP8"]) < sum(zeros["NVFP4"])
    assert sum(zeros["NVFP4"]) < sum(zeros["MXFP4"])


def test_stochastic_rounding_uses_the_bits_of_the_draw():
    values = np.round(16 * np.random.default_rng(2).standard_normal(COUNT)) / 16
    found = round_row(values.tolist(), "MXFP4", random_bits=random_draws()[3])
    element = FORMATS["MXFP4"].element
    (scale,) = found.scales
    rounded = round_to(
        values / scale, element, Rounding.STOCHASTIC, Overflow.SATURATE, random_draws()[3]
    )
    assert bits(found.values) == bits(rounded * scale)


def test_the_sentence_and_the_arithmetic_of_a_row(js):
    rows = {row["name"]: row for row in choices([1.0])["formats"]}
    board = BlockScales()
    *_, sentence, texts = js.run(ROUND, board.values, rows["MXFP4"], False, None, None)
    values = np.asarray(board.values)
    error = np.sqrt(
        np.square(np.asarray(board.rounded.values) - values).sum() / np.square(values).sum()
    )
    assert sentence == (
        "13 of 32 numbers become 0. x[11] = 13 makes the scale 2^1. It is cut to 12. "
        f"The error of the whole row is {error:.0%} (root mean square)."
    )
    assert texts[11] == "x[11] = 13 / 2^1 = 6.5; E2M1 has 6; 6 × 2^1 = 12: error −1."
    sentence = js.run(ROUND, board.values, rows["NVFP4"], False, None, None)[3]
    assert sentence.startswith(
        "5 of 32 numbers become 0. The scales of the blocks are 448 and 48; x[11] = 13 is in the"
    )
    assert (
        js.run(ROUND, [0.0] * COUNT, rows["MXFP8"], True, None, None)[3]
        == "All numbers are 0. Drag one up."
    )


def test_keys_on_a_bar_change_its_number_without_a_kernel(page):
    bars = page.show(BlockScales()).locator("[role=slider]")
    bars.nth(11).focus()
    page.page.keyboard.press("End")
    assert page.trait("values")[11] == 64
    assert "makes the scale 2^4" in page.trait("sentence")


def test_left_arrow_moves_to_the_bar_before(page):
    bars = page.show(BlockScales()).locator("[role=slider]")
    bars.nth(11).focus()
    page.page.keyboard.press("End")
    page.page.keyboard.press("ArrowLeft")
    assert page.trait("selected") == 10
    # beside a number of 64, this one is too small for the block's scale
    assert bars.nth(10).get_attribute("aria-valuetext").endswith("becomes 0")


def test_tab_stops_at_one_bar_only(page):
    bars = page.show(BlockScales()).locator("[role=slider]")
    assert bars.evaluate_all("all => all.filter((one) => one.tabIndex === 0).length") == 1


def test_reset_restores_the_first_numbers(page):
    root = page.show(BlockScales())
    root.locator("[role=slider]").nth(11).focus()
    page.page.keyboard.press("End")
    assert page.trait("values") != BlockScales().values
    root.get_by_role("button", name="Reset").click()
    assert page.trait("values") == BlockScales().values


def test_reset_of_a_second_view_restores_the_first_numbers(page):
    board = BlockScales()
    first = board.values
    board.values = [64.0, *first[1:]]
    root = page.show(board)
    root.get_by_role("button", name="Reset").click()
    assert page.trait("values") == first


def drag_to_the_top(page, bar, button="left"):
    """Press a button of the mouse on a bar, and move to just above it."""
    box = bar.bounding_box()
    mouse = page.page.mouse
    mouse.move(box["x"] + 5, box["y"] + box["height"] / 2)
    mouse.down(button=button)
    mouse.move(box["x"] + 5, box["y"] - 2)
    mouse.up(button=button)


def test_dragged_bar_follows_the_mouse(page):
    bars = page.show(BlockScales()).locator("[role=slider]")
    drag_to_the_top(page, bars.nth(20))
    assert page.trait("values")[20] == 64
    assert page.trait("selected") == 20


def test_right_button_drags_no_bar(page):
    bars = page.show(BlockScales()).locator("[role=slider]")
    drag_to_the_top(page, bars.nth(20), button="right")
    assert page.trait("values") == BlockScales().values


def test_numbers_are_rounded_again_only_if_at_random(page):
    root = page.show(BlockScales())
    again = root.get_by_role("button", name="Round again")
    assert not again.is_enabled()
    root.get_by_role("switch", name="Stochastic rounding").check()
    again.click()
    assert page.trait("draw") == 1


def test_nvfp4_has_no_choice_of_a_rounded_scale(page):
    root = page.show(BlockScales())
    up = root.locator("input[value=up]")
    up.check(force=True)
    assert page.trait("scale_up") is True
    root.locator("input[value=NVFP4]").check(force=True)
    assert not up.is_enabled()


def test_rotation_shows_the_rotated_numbers_below(page):
    root = page.show(BlockScales())
    rotated = root.locator(".bs-second")
    assert not rotated.is_visible()
    root.get_by_role("switch", name="Hadamard rotation").check()
    rotated.wait_for(state="visible")


def test_page_shows_the_numbers_that_a_kernel_rounds(page):
    """The page draws and rotates as the kernel does."""
    root = page.show(BlockScales())
    root.get_by_role("switch", name="Stochastic rounding").check()
    root.get_by_role("switch", name="Hadamard rotation").check()
    root.get_by_role("button", name="Round again").click()
    root.locator("input[value=up]").check(force=True)
    root.locator("input[value=NVFP4]").check(force=True)
    board = BlockScales()
    board.draw = 1
    board.format = "NVFP4"
    board.scale_up = True
    board.stochastic = True
    board.rotated = True
    texts = root.locator("[role=slider]").evaluate_all(
        "all => all.map((one) => one.getAttribute('aria-valuetext').split(' becomes ')[1])"
    )
    shown = [float(text.replace("−", "-").rstrip("…")) for text in texts]
    assert shown == pytest.approx(board.rounded.values, rel=1e-5)


def test_pictures_of_the_formats_open_without_a_kernel(page):
    root = page.show(BlockScales())
    root.locator("input[value=NVFP4]").check(force=True)
    root.get_by_text("The same switches on a picture").click()
    root.locator(".bs-pictures .lk-sentence[data-text*='each row is two blocks']").wait_for(
        state="attached"
    )
