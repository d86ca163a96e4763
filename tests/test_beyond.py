"""Statements of lessons 11, 11b and 11c, against runs of their cells and against the records."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from labkit.amp import RECIPES, rotate, round_to_blocks
from labkit.formats import BF16, FP16, FP32, NVFP4
from labkit.train import TASKS, Comparison, recorded
from labkit.widgets import predictions
from tests.lesson_cells import cells_of, defined_in

BEYOND_FP16 = "11_beyond_fp16"
EIGHT_BITS = "11b_eight_and_four_bits"
POSITIONS = "11c_order_and_positions"
BEYOND = (
    "BF16 stochastic",
    "BF16 Kahan",
    "FP8 current",
    "FP8 delayed",
    "MXFP8",
    "NVFP4",
    "unit scaled",
)


def answer(word: str) -> str:
    """Return the answer of the prediction beyond.WORD."""
    return predictions()[f"beyond.{word}"].answer


@pytest.mark.slow
def test_no_gain_moves_in_bf16_and_most_do_in_fp32() -> None:
    learn = defined_in(BEYOND_FP16, "gains", "touch-gains")["learn_gains"]
    assert learn("BF16 no master")[1] == 0.0
    assert answer("gains") == "none"
    assert learn("FP32")[1] > 0.5
    assert torch.tensor([1.001, 0.999]).bfloat16().tolist() == [1, 1]


def test_bf16_disagrees_eight_times_as_much_as_fp16() -> None:
    log_probabilities = defined_in(BEYOND_FP16, "touch-mismatch")["log_probabilities"]

    def mismatch(dtype: torch.dtype) -> float:
        difference = log_probabilities(dtype, True) - log_probabilities(dtype, False)
        return float(difference.square().mean().sqrt())

    bf16 = mismatch(torch.bfloat16)
    fp16 = mismatch(torch.float16)
    assert bf16 / fp16 == pytest.approx(8, rel=0.25)
    assert answer("mismatch") == "BF16"


def test_model_born_in_bf16_overflows_first_in_down() -> None:
    names = defined_in(BEYOND_FP16, "born", "born-training", "touch-born", "touch-rescues")
    model, characters, following = names["born_in_bf16"](steps=60)
    outputs = names["largest_outputs"](copy.deepcopy(model).half(), characters)
    # An output beyond the largest value of FP16 is inf, and what is computed from it may be NaN.
    overflowed = [name for name, largest in outputs.items() if not largest < FP16.max]
    assert overflowed[0] == "blocks.0.down"
    exact = model(characters)
    moved = names["moved"](model, 2)
    assert torch.equal(moved(characters), exact)
    result = moved.half()(characters).float()
    assert (result - exact).abs().max() < 0.02
    # At a loss of 0 a model with wrong outputs could be as near.
    assert torch.nn.functional.cross_entropy(exact, following) > 0.02
    assert model.half()(characters).isnan().any()
    assert answer("born") == "NaN"


@pytest.mark.slow
def test_delayed_scale_survives_a_bad_batch() -> None:
    names = defined_in(EIGHT_BITS, "touch-outlier")
    delayed = RECIPES["FP8 delayed"]
    run = names["with_a_bad_batch"]
    # The bad batch is that of step 50.
    losses = {recipe: run(recipe) for recipe in ("FP32", "FP8 current", "FP8 delayed")}
    assert losses["FP8 delayed"][50] < 2
    assert losses["FP32"][50] > 5
    assert losses["FP8 current"][50] > 5
    for step in (55, 69):
        assert losses["FP8 delayed"][step] < losses["FP32"][step]
        assert losses["FP8 delayed"][step] < losses["FP8 current"][step]
    assert answer("outlier") == "FP8, delayed scales"
    assert delayed.products is not None
    assert delayed.products.history == 16
    long = replace(delayed, name="history 1024", products=replace(delayed.products, history=1024))
    # the function looks recipes up in the globals of its cell
    names["RECIPES"] = {**RECIPES, "history 1024": long}
    losses["history 1024"] = run("history 1024")
    after = {recipe: float(np.mean(of[51:])) for recipe, of in losses.items()}
    assert after["history 1024"] == pytest.approx(after["FP8 delayed"], rel=0.05)
    assert after["history 1024"] < after["FP8 current"] / 2


def test_a_second_moment_in_bf16_falls_unless_beta2_is_near_1() -> None:
    moments = defined_in(BEYOND_FP16, "touch-ratchet")["second_moments"]
    for beta2, ratio in {0.99: 1.47, 0.95: 1.04}.items():
        last = moments(beta2, BF16)[-1] / moments(beta2, FP32)[-1]
        assert last == pytest.approx(ratio, abs=0.005)
    never_falls = moments(0.999, BF16)
    assert never_falls[99] == never_falls[-1]
    assert never_falls[-1] > 10 * moments(0.999, FP32)[-1]


def test_autocast_rounds_positions_and_angles() -> None:
    """Rounding the angles alone fails at later positions than rounding the positions."""
    right = defined_in(POSITIONS, "touch-positions")["right_ones"]
    starts = (0, 200, 300, 1000, 2100, 5000, 9000)
    rows = {
        name: [round(right(start, **formats), 2) for start in starts]
        for name, formats in {
            "FP32": {},
            "rotation": {"rotation": BF16},
            "ids": {"ids": BF16},
            "angles": {"angles_in": BF16},
            "autocast": {"by_product_in": BF16},
        }.items()
    }
    assert rows["FP32"] == [1.0] * 7
    assert rows["rotation"] == [1.0] * 7
    assert rows["angles"] == [1.0, 1.0, 1.0, 1.0, 0.97, 0.74, 0.42]
    assert rows["autocast"] == [1.0, 1.0, 0.55, 0.26, 0.1, 0.06, 0.03]
    assert rows["ids"] == [1.0, 1.0, 0.55, 0.26, 0.1, 0.06, 0.03]


def test_rotating_makes_the_error_larger_and_the_zeros_fewer() -> None:
    x = torch.randn(512, 256, generator=torch.Generator().manual_seed(0))
    x[:, 7] *= 30
    errors = []
    zeros = []
    for tensor in (x, rotate(x, -1)):
        # 2688 is the largest value of NVFP4: 6, the largest of E2M1, by a scale of 448.
        scale = 2688 / tensor.abs().max()
        rounded = round_to_blocks(tensor * scale, NVFP4) / scale
        errors.append(float(((rounded - tensor).square().mean() / tensor.square().mean()).sqrt()))
        zeros.append(float((rounded == 0).float().mean()))
    assert errors[0] < errors[1]
    assert zeros[0] > zeros[1]
    assert answer("rotated") == "a larger error, fewer zeros"


def test_order_changes_most_sums_of_2048_products() -> None:
    """Both orders are written out, since numpy and torch may use any order."""
    numbers = np.random.default_rng(0)
    products = (numbers.standard_normal((2048, 1)) * numbers.standard_normal((2048, 512))).astype(
        np.float32
    )
    in_turn = np.add.accumulate(products, axis=0)[-1]
    halves = (
        np.add.accumulate(products[:1024], axis=0)[-1]
        + np.add.accumulate(products[1024:], axis=0)[-1]
    )
    assert (in_turn != halves).mean() > 0.8
    assert np.abs(in_turn - halves).max() < 1e-3
    assert np.abs(in_turn).max() > 1
    assert answer("rows") == "few, and the others differ in the last digits"


def test_the_first_position_that_is_rounded() -> None:
    places = torch.arange(5000)
    first = {
        dtype: int((places.to(dtype).int() != places).nonzero()[0])
        for dtype in (torch.bfloat16, torch.float16)
    }
    assert first == {torch.bfloat16: 257, torch.float16: 2049}
    assert answer("positions") == "257"


def test_wider_layers_lose_more_gradients_in_e4m3() -> None:
    names = defined_in(EIGHT_BITS, "touch-width")
    shares = [
        f"{names['zeros_in_e4m3'](names['activation_gradients'](width)[1]):.0%}"
        for width in (64, 1024)
    ]
    assert ", then ".join(shares) == answer("width")


def compared(task: str, recipes: tuple[str, ...], seeds: int) -> Comparison:
    """Return the comparison of recorded trainings with FP32, over the first seeds."""
    runs = tuple(
        recorded(task, recipe, seed) for recipe in ("FP32", *recipes) for seed in range(seeds)
    )
    return Comparison(task, runs, margin=TASKS[task].margin)


def test_table_of_four_tasks_matches_the_records() -> None:
    verdicts = {}
    for task in ("digits", "char_lstm", "gpt", "segmentation_small"):
        comparison = compared(task, BEYOND, 3)
        verdicts[task] = {recipe: comparison.difference(recipe).verdict for recipe in BEYOND}
    segmentation = verdicts.pop("segmentation_small")
    for task, by_recipe in verdicts.items():
        assert set(by_recipe.values()) == {"as good"}, task
    assert [recipe for recipe in BEYOND if segmentation[recipe] == "as good"] == ["FP8 current"]
    text = " ".join("\n".join(cells_of(EIGHT_BITS).values()).split())
    assert "is *as good* as FP32" in text


def test_three_seeds_of_segmentation_do_not_decide() -> None:
    difference = compared("segmentation_small", ("BF16 Kahan",), 3).difference("BF16 Kahan")
    assert difference.verdict == "cannot tell"
    assert difference.interval_90 == pytest.approx(0.05, abs=0.005)


def test_twenty_four_seeds_of_segmentation_decide() -> None:
    difference = compared("segmentation_small", ("BF16 Kahan",), 24).difference("BF16 Kahan")
    assert difference.verdict == "as good"
    assert difference.interval_90 < 0.01
