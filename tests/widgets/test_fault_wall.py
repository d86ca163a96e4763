"""The wall of faults: cards with their runs, and faults found by a pasted error."""

import asyncio
import math
import threading

import pytest

from labkit.faults import FAULTS, Kind, TrainingOutcome, cards, run
from labkit.widgets import FaultWall
from labkit.widgets.fault_wall.widget import find, outcome_view
from tests.widgets.pages import Page


@pytest.fixture
def wall() -> FaultWall:
    return FaultWall()


def test_an_error_message_finds_its_card(wall: FaultWall) -> None:
    wall.query = (
        "Traceback ...\nRuntimeError: value cannot be converted to type c10::Half without overflow"
    )
    assert wall.shown == ["mask_constant"]


def test_a_card_runs_broken_and_cured(wall: FaultWall) -> None:
    assert wall.run("mask_constant", "broken")["failed"]
    cured = wall.run("mask_constant", "cured")
    assert not cured["failed"]
    assert cured["losses"] == list(run(FAULTS["mask_constant"], fixed=True).losses)
    assert set(wall.outcomes["mask_constant"]) == {"broken", "cured"}


def test_cards_of_all_kinds_are_all_cards(wall: FaultWall) -> None:
    assert wall.shown == list(cards())
    shown = []
    for kind in wall.get_state()["_kinds"][1:]:
        wall.kind = kind
        assert {cards()[id].kind for id in wall.shown} == {Kind(kind)}
        shown += wall.shown
    assert sorted(shown) == sorted(cards())


def test_a_still_has_the_symptoms_of_all_cards(wall: FaultWall) -> None:
    text = wall.still()["text/plain"]
    for words in ("labkit explain", *(card.symptom for card in cards().values())):
        assert words in text


def test_a_card_does_not_name_its_fault(wall: FaultWall) -> None:
    for card in wall.get_state()["_cards"]:
        fault = cards()[card["id"]]
        assert set(card) == {"id", "symptom", "errors", "kind", "runs"}
        assert fault.title not in str(card)


def test_the_sentence_of_a_search() -> None:
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


def test_outcome_of_a_run_is_told_in_a_sentence() -> None:
    fault = FAULTS["log_of_epsilon"]
    view = outcome_view(fault, TrainingOutcome((2.0, math.inf, math.nan), 0.1))
    assert view["losses"] == [2.0, None, None]
    assert view["sentence"] == (
        "3 steps, loss 2 at first and 2 at last, inf or NaN in 2; its score is 0.1, and it is "
        "well from 0.88 on."
    )


def test_outcome_of_a_run_is_shown_with_its_warning(wall: FaultWall) -> None:
    outcome = wall.run("schedule_counts_skips", "broken")
    assert "It warned: Detected call of `lr_scheduler.step()`" in outcome["sentence"]


def test_the_back_of_a_card_has_both_forms_of_the_code(wall: FaultWall) -> None:
    broken, cured = wall.turn("mask_constant")["code"]
    assert [line.strip() for line, differs in broken if differs] == ["lowest = -1000000000.0"]
    assert [line.strip() for line, differs in cured if differs] == [
        "lowest = torch.finfo(scores.dtype).min"
    ]


def test_the_back_of_a_card_without_code_has_evidence(wall: FaultWall) -> None:
    evidence = dict(wall.turn("emulated_bf16")["told"])
    assert "T4 16GB" in evidence["Published"]
    assert "Not run here" in evidence["Here"]


def test_a_card_without_code_is_not_run(wall: FaultWall) -> None:
    with pytest.raises(KeyError):
        wall.run("emulated_bf16", "broken")


def test_cards_can_be_left_out() -> None:
    wall = FaultWall(without=["mask_constant"])
    assert set(wall.shown) == cards().keys() - {"mask_constant"}
    wall.query = "value cannot be converted to type c10::Half without overflow"
    assert wall.shown == []


def test_an_unknown_card_to_leave_out_is_refused() -> None:
    with pytest.raises(ValueError, match="without: expected ids of cards, got 'mask_constnat'"):
        FaultWall(without=["mask_constnat"])


def test_a_run_waits_for_the_end_of_the_cell() -> None:
    async def cell() -> tuple[float, dict[str, object]]:
        wall = FaultWall()
        message = {"run": "mask_constant", "form": "broken"}
        page = threading.Thread(target=wall._on_message, args=(None, message, None))
        page.start()
        # The cell is still running.
        page.join()
        before = dict(wall.outcomes)
        await asyncio.sleep(0)
        return before, wall.outcomes

    before, after = asyncio.run(cell())
    assert before == {}
    assert after["mask_constant"]["broken"]["failed"]


def test_the_page_is_told_of_each_run_that_has_ended(
    wall: FaultWall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run has the same outcome and changes no trait, but the page waits for its end."""
    sent: list[object] = []
    monkeypatch.setattr(wall, "send", sent.append)
    for _ in range(2):
        wall._on_message(None, {"run": "mask_constant", "form": "broken"}, None)
    assert sent == [{"ran": "mask_constant", "form": "broken"}] * 2


def test_the_page_is_told_of_a_run_that_raised(
    wall: FaultWall, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    monkeypatch.setattr(wall, "send", sent.append)
    with pytest.raises(KeyError):
        wall._on_message(None, {"run": "emulated_bf16", "form": "broken"}, None)
    assert sent == [{"ran": "emulated_bf16", "form": "broken"}]


@pytest.mark.browser
def test_a_page_searches_what_the_cards_say(page: Page) -> None:
    page.show(FaultWall())
    page.set(query="layernorm")
    assert 0 < len(page.trait("shown")) < 10
    # These are words of the page's data alone.
    for query in ("threads", "errors symptom told"):
        page.set(query=query)
        assert len(page.trait("shown")) < 10
