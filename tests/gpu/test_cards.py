"""On a GPU: the cards of what only a GPU shows are run, both forms of each. Written without one at hand."""

import pytest

from labkit.gpu.checks import cards
from labkit.gpu.checks.progress import complete


@pytest.mark.gpu
def test_the_scaler_refuses_bf16_and_every_repaired_form_runs():
    answers = complete(cards.main("cuda", width=1024))["cards"]
    assert answers["scaler_for_bf16"]["shows"]
    assert all(card["cured"] is not None for card in answers.values())
