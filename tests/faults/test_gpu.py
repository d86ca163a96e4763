"""Cards of faults that only a GPU shows: their texts, their published evidence and their code."""

import pytest
import torch

from labkit.bench import published
from labkit.faults import FAULTS, GPU_CARDS, Card, cards, code_of, explain
from labkit.faults.fault import address
from labkit.gpu.measure import cards as items
from labkit.gpu.worker import answer

# Faults that threads report, without published measurements.
WITHOUT_MEASUREMENTS = {"scaler_for_bf16", "eager_unlike_compiled"}


def test_card_is_found_by_its_error() -> None:
    (card,) = explain(
        'RuntimeError: "_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for '
        "'BFloat16'"
    )
    assert card.id == "scaler_for_bf16"


def test_code_shows_the_value_of_a_switch() -> None:
    function = GPU_CARDS["scaler_for_bf16"].function
    assert "enabled=True" in code_of(function, fixed=False)
    assert "enabled=False" in code_of(function, fixed=True)


@pytest.mark.parametrize(
    ("broken", "fixed", "shows"),
    [(100.0, 140.0, True), (100.0, 110.0, False), (None, 1.0, True), (None, None, False)],
)
def test_a_gpu_shows_a_fault_by_a_large_ratio(
    broken: float | None, fixed: float | None, shows: bool
) -> None:
    """None is the result of code that fails."""
    assert GPU_CARDS["sides_miss_8"].shows(broken, fixed) is shows


def test_no_card_has_the_name_of_a_fault() -> None:
    assert len(cards()) == len(FAULTS) + len(GPU_CARDS)


@pytest.mark.parametrize("name", GPU_CARDS)
def test_texts_of_a_card_are_sentences(name: str) -> None:
    card = GPU_CARDS[name]
    for text in (card.title, card.symptom, card.cause, card.reading, card.repair):
        assert text.rstrip()[-1] in ".?!", text


@pytest.mark.parametrize("name", GPU_CARDS)
def test_published_measurements_of_a_card_have_sources(name: str) -> None:
    sources = {row.source for row in published()}
    sentences = GPU_CARDS[name].published()
    assert bool(sentences) == (name not in WITHOUT_MEASUREMENTS)
    for sentence in sentences:
        assert any(source in sentence for source in sources), sentence


def test_evidence_of_emulation_is_slower_than_fp32_on_a_card_without_bf16() -> None:
    without_bf16 = ("GTX 10", "GTX 16", "RTX 20", "P40", "P100", "T4", "V100")
    rows = [row for row in published() if GPU_CARDS["emulated_bf16"].evidence(row)]
    assert rows
    for row in rows:
        assert row.reference == "FP32"
        assert any(card in row.gpu for card in without_bf16), row.gpu


@pytest.mark.parametrize("name", GPU_CARDS)
def test_a_card_names_a_thread(name: str) -> None:
    for thread in GPU_CARDS[name].threads:
        assert address(thread).startswith("https://")
    assert GPU_CARDS[name].threads


@pytest.mark.parametrize("thread", ["apex", "apex#1052", "NVIDIA/apex#", "a/b#1#2", "torch 2 13"])
def test_a_text_that_is_no_thread_has_no_address(thread: str) -> None:
    with pytest.raises(ValueError, match=f"thread: expected .*, got '{thread}'"):
        address(thread)


def test_a_card_without_a_report_has_no_threads() -> None:
    assert Card(function=address).threads == ()


@pytest.mark.parametrize("name", GPU_CARDS)
def test_code_of_a_card_has_two_forms_without_its_title(name: str) -> None:
    card = GPU_CARDS[name]
    broken = code_of(card.function, fixed=False)
    assert broken != code_of(card.function, fixed=True)
    assert card.title not in broken


@pytest.mark.slow
def test_the_check_runs_both_forms_of_every_card() -> None:
    precision = torch.get_float32_matmul_precision()
    lines = {item.name: answer(item, "cpu") for item in items([*GPU_CARDS.values()], 64)}
    assert set(lines) == {f"card {name}" for name in GPU_CARDS}
    assert torch.get_float32_matmul_precision() == precision
    for name, line in lines.items():
        assert line["outcome"] == "done", name
        assert line["summary"], name
    reason = "RuntimeError: torch counts the memory of a GPU only"
    message = f"not measured, the repaired form failed: {reason}"
    assert lines["card memory_not_halved"]["summary"] == message


def test_a_decorator_is_on_the_line_above_its_function() -> None:
    """The code of a card that decorates a function of its own."""
    lines = code_of(GPU_CARDS["batch_of_one"].function, fixed=False).splitlines()
    at = lines.index("@torch.no_grad()")
    assert lines[at - 1] == ""
    assert lines[at + 1].startswith("def answer")
