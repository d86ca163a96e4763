"""A router with rounded scores: the page's choices against Python, and its knobs by keyboard."""

from itertools import product

import numpy as np
import pytest
import torch

from labkit.formats import E5M2, next_up
from labkit.interop import round_tensor
from labkit.widgets import RouterScores
from labkit.widgets.router.widget import (
    EXPERTS,
    FORMATS,
    ROUNDED,
    SPREADS,
    TOKENS,
    chosen_experts,
    quantiles,
    router_logits,
)

FOLDERS = ("playground", "router")
CHANGED = """(tokens, settings, quantiles) => changedTokens(tokens, settings, quantiles)"""
LOGITS = """(token, settings, quantiles) =>
  Array.from(tokenLogits(token, settings, quantiles))"""
CHOICE = """(token, settings, quantiles) => {
  const choice = tokenChoice(token, settings, quantiles);
  const changed = changedTokens(50, settings, quantiles);
  return [choice, routerSentence(choice, token, changed, settings)];
}"""
LARGEST = "(values, count) => largest(values, count)"


def settings(**changes):
    return {
        "experts": 256,
        "chosen": 8,
        "spread": 1.0,
        "format": "BF16",
        "rounded": "scores",
    } | changes


@pytest.mark.parametrize("experts", EXPERTS)
def test_the_page_has_the_same_logits_to_the_bit(js, experts):
    for token, spread in ((0, 1.0), (17, 0.05), (TOKENS - 1, 3.0)):
        found = js.run(LOGITS, token, settings(experts=experts, spread=spread), list(quantiles()))
        assert found == router_logits(experts, spread)[token].tolist()


def test_the_page_changes_the_same_tokens(js):
    for format, rounded, spread in product(FORMATS, ROUNDED, (SPREADS[0], 1.0, SPREADS[-1])):
        board = RouterScores(format, spread=spread, rounded=rounded)
        page_settings = settings(format=format, rounded=rounded, spread=spread)
        assert js.run(CHANGED, TOKENS, page_settings, list(quantiles())) == board.changed.tolist()


def test_ticks_are_all_numbers_of_the_format(js):
    # Above -4, -2, -1 and -0.5 the numbers are twice as dense as below.
    found = js.run("(low, high) => formatNumbers(low, high, 'E5M2')", -5.0, -0.25)
    expected = [-5.0]
    while expected[-1] < -0.25:
        expected.append(float(next_up(expected[-1], E5M2)))
    assert found == expected


@pytest.mark.parametrize(("tied", "says"), [([6, 7], False), ([7, 8], True)])
def test_the_lower_number_wins_only_if_a_tied_expert_is_left_out(js, tied, says):
    choice = {"after": list(range(8)), "leaving": [], "coming": [], "tied": tied}
    script = "(choice, settings) => routerSentence(choice, 0, [false], settings)"
    assert ("the lower number wins" in js.run(script, choice, settings())) == says


def test_the_changed_tokens_are_those_of_torch():
    """The oracle uses torch's sigmoid, rounding and top k, for logits without ties at the cut."""
    board = RouterScores("FP16", experts=64, chosen=4)
    scores = torch.from_numpy(router_logits(64, 1.0)).sigmoid()
    rounded = scores.half().float()
    assert torch.equal(rounded, round_tensor(scores, FORMATS["FP16"]))
    exact = torch.zeros(scores.shape, dtype=torch.bool).scatter(1, scores.topk(4)[1], True)
    after = torch.sort(rounded, dim=1, descending=True, stable=True)[1][:, :4]
    new = torch.zeros(scores.shape, dtype=torch.bool).scatter(1, after, True)
    different = (exact != new).any(1).numpy()
    # torch's sigmoid may differ by an ulp, which may affect one token.
    assert np.mean(different != board.changed) <= 1 / TOKENS


@pytest.mark.parametrize(
    ("values", "count", "wanted"),
    [
        ([1, 3, 2], 2, [1, 2]),
        ([2, 2, 2], 2, [0, 1]),
        ([1, 2, 2, 1], 3, [1, 2, 0]),
        ([0, -1], 2, [0, 1]),
    ],
)
def test_of_equal_scores_the_lower_index_is_chosen(js, values, count, wanted):
    assert js.run(LARGEST, values, count) == wanted
    assert np.flatnonzero(chosen_experts(np.array([values]), count)[0]).tolist() == sorted(wanted)


def test_without_rounding_no_token_changes():
    assert not RouterScores("FP32").changed.any()


def test_the_sentence_names_the_experts_that_change(js):
    choice, sentence = js.run(CHOICE, 1, settings(), list(quantiles()))
    assert choice["leaving"] == [203]
    assert choice["coming"] == [85]
    assert "Token 1 loses expert 203 and gets expert 85" in sentence
    assert "3 experts have the score of the last place" in sentence


def test_the_sentence_of_an_unchanged_token_says_so(js):
    assert "Token 0 keeps its experts." in js.run(CHOICE, 0, settings(), list(quantiles()))[1]


def test_one_chosen_expert_is_named_in_the_singular(js):
    sentence = js.run(CHOICE, 0, settings(chosen=1), list(quantiles()))[1]
    assert "get another expert." in sentence


def test_the_knobs_work_by_keyboard_without_a_kernel(page):
    root = page.show(RouterScores())
    keys = page.page.keyboard
    root.locator("input[value=BF16]").focus()
    keys.press("ArrowLeft")
    assert page.trait("format") == "FP16"
    root.get_by_label("Standard deviation of the logits").focus()
    keys.press("Home")
    assert page.trait("spread") == SPREADS[0]
    root.get_by_role("button", name="Next token that changes").focus()
    keys.press("Enter")
    board = RouterScores("FP16", spread=SPREADS[0])
    assert page.trait("token") == np.flatnonzero(board.changed)[0]
    assert f"{board.changed.sum()} of {TOKENS} tokens" in page.trait("sentence")


def test_a_click_on_the_map_selects_a_token(page):
    root = page.show(RouterScores())
    box = root.locator(".rt-map canvas").bounding_box()
    page.page.mouse.click(box["x"] + box["width"] - 2, box["y"] + 2)
    assert page.trait("token") == 44


def test_the_still_says_the_share():
    board = RouterScores("FP16")
    assert f"{board.changed.mean():.1%} of 900 tokens" in str(board.still())
