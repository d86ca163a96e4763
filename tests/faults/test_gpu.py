"""Cards for faults that only a GPU shows: published evidence, and code that runs on a simulated
card.
"""

import pytest
import torch

from labkit.bench import published
from labkit.faults import FAULTS, GPU_CARDS, cards, code_of, explain
from labkit.gpu.measure import cards as items
from labkit.gpu.worker import answer

WITHOUT_ROWS = {"scaler_for_bf16", "eager_unlike_compiled"}  # which threads report


def test_card_is_found_by_its_error() -> None:
    (card,) = explain(
        'RuntimeError: "_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for '
        "'BFloat16'"
    )
    assert card.id == "scaler_for_bf16"
    assert "enabled=not False" not in code_of(GPU_CARDS[card.id].function, fixed=False)
    shown = {(100.0, 140.0): True, (100.0, 110.0): False, (None, 1.0): True, (None, None): False}
    assert {pair: GPU_CARDS["sides_miss_8"].shows(*pair) for pair in shown} == shown


def test_each_gpu_card_is_complete() -> None:
    assert len(cards()) == len(FAULTS) + len(GPU_CARDS), "no card has the name of a fault"
    sources = {row.source for row in published()}
    for name, card in GPU_CARDS.items():
        sentences = card.published()
        assert bool(sentences) == (name not in WITHOUT_ROWS), name
        assert all(any(source in sentence for source in sources) for sentence in sentences), name
        assert card.threads, name
        for text in (card.title, card.symptom, card.cause, card.reading, card.repair):
            assert text.rstrip()[-1] in ".?!", (name, text)
        assert code_of(card.function, fixed=False) != code_of(card.function, fixed=True), name
        assert card.title not in code_of(card.function, fixed=False), (
            "a card's code does not name its fault"
        )


@pytest.mark.slow
def test_the_check_runs_both_forms_of_every_card_and_tells_them() -> None:
    before = torch.get_float32_matmul_precision()
    lines = {item.name: answer(item, "cpu") for item in items([*GPU_CARDS.values()], 64)}
    assert set(lines) == {f"card {name}" for name in GPU_CARDS}
    assert torch.get_float32_matmul_precision() == before
    assert all(line["outcome"] == "done" and line["summary"] for line in lines.values())
    said = lines["card memory_not_halved"]["summary"]
    assert said == "not measured, RuntimeError: torch counts the memory of a GPU only"
