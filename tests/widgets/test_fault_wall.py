"""The wall of faults: cards with their runs, and faults found by a pasted error."""

import asyncio
import math
import threading

import pytest

from labkit.faults import FAULTS, Kind, TrainingOutcome, cards, run
from labkit.widgets import FaultWall
from labkit.widgets.fault_wall.widget import find, outcome_view


@pytest.fixture
def wall() -> FaultWall:
    return FaultWall()


def test_error_finds_its_card_which_fails_and_is_cured(wall: FaultWall) -> None:
    wall.query = (
        "Traceback ...\nRuntimeError: value cannot be converted to type c10::Half without overflow"
    )
    assert wall.shown == ["mask_constant"]
    assert wall.run("mask_constant", "broken")["failed"]
    cured = wall.run("mask_constant", "cured")
    assert not cured["failed"]
    assert cured["losses"] == list(run(FAULTS["mask_constant"], fixed=True).losses)
    assert set(wall.outcomes["mask_constant"]) == {"broken", "cured"}


def test_every_card_is_there(
    wall: FaultWall,
) -> None:
    assert wall.shown == list(cards())
    seen = []
    for kind in wall.get_state()["_kinds"][1:]:
        wall.kind = kind
        assert {cards()[id].kind for id in wall.shown} == {Kind(kind)}
        seen += wall.shown
    assert sorted(seen) == sorted(cards())
    wall.kind = "all"
    text = wall.still()["text/plain"]
    assert all(
        words in text for words in ("labkit explain", *(card.symptom for card in cards().values()))
    )
    for card in wall.get_state()["_cards"]:
        fault = cards()[card["id"]]
        assert set(card) == {"id", "symptom", "errors", "kind", "runs"}
        assert fault.title not in str(card)


def test_findings_are_shown() -> None:
    for query, kind, words in (
        (
            "no such words anywhere",
            "all",
            "No card is known by this message, and none has all of these words.",
        ),
        ("IndexError: list index out of range", "all", "No card"),
        ("layernorm", "all", "1 card with this word."),
        (
            "Attempting to unscale FP16 gradients.",
            Kind.NOT_FINITE.value,
            "2 cards known by this message",
        ),
    ):
        assert find(cards(), query, kind)[1].startswith(words)


def test_outcome_of_a_run_is_shown_with_its_warning(wall: FaultWall) -> None:
    fault = FAULTS["log_of_epsilon"]
    view = outcome_view(fault, TrainingOutcome((2.0, math.inf, math.nan), 0.1))
    assert view["losses"] == [2.0, None, None]
    assert view["sentence"] == (
        "3 steps, loss 2 at first and 2 at last, inf or NaN in 2; its score is 0.1, and it is "
        "well from 0.88 on."
    )

    seen = wall.run("schedule_counts_skips", "broken")
    assert "It warned: Detected call of `lr_scheduler.step()`" in seen["sentence"]


def test_back_of_a_card_has_both_forms_or_evidence(
    wall: FaultWall,
) -> None:
    broken, cured = wall.turn("mask_constant")["code"]
    assert [line.strip() for line, differs in broken if differs] == ["lowest = -1000000000.0"]
    assert [line.strip() for line, differs in cured if differs] == [
        "lowest = torch.finfo(scores.dtype).min"
    ]

    told = dict(wall.turn("emulated_bf16")["told"])
    assert "T4 16GB" in told["Published"]
    assert "Not run here" in told["Here"]
    with pytest.raises(KeyError):
        wall.run("emulated_bf16", "broken")


def test_what_a_lesson_treats_itself_is_left_out() -> None:
    wall = FaultWall(without=["mask_constant"])
    assert set(wall.shown) == cards().keys() - {"mask_constant"}
    wall.query = "value cannot be converted to type c10::Half without overflow"
    assert wall.shown == []
    with pytest.raises(ValueError, match="no card mask_constnat to leave out"):
        FaultWall(without=["mask_constnat"])


def test_in_a_notebook_a_run_waits_until_the_cell_has_ended() -> None:
    async def cell() -> tuple[float, dict[str, object]]:
        wall = FaultWall()
        message = {"run": "mask_constant", "form": "broken"}
        page = threading.Thread(target=wall._on_message, args=(None, message, None))
        page.start()
        page.join()  # the cell is still at work
        before = dict(wall.outcomes)
        await asyncio.sleep(0)
        return before, wall.outcomes

    before, after = asyncio.run(cell())
    assert before == {}
    assert after["mask_constant"]["broken"]["failed"]
