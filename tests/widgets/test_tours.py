"""Guided tours: data that is whole, steps that set what they speak of, and an end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from traitlets import TraitError

from labkit.instrument import snapshot
from labkit.widgets import MmaBlock, UnderflowHistogram, Workbench
from labkit.widgets.base import widget as base
from labkit.widgets.base.widget import FOLDERS, LabWidget, script


def histogram() -> UnderflowHistogram:
    return UnderflowHistogram(snapshot({"conv": torch.tensor([2.0**-30, 1.0])}, step=0, kind="weight gradients"))


GUIDED: dict[str, Callable[[], LabWidget]] = {
    "underflow": histogram,
    "mma_block": MmaBlock,
    "workbench": lambda: Workbench("digits", "O2", steps=5, device="cpu"),
}


def test_worked_example_each_step_sets_its_state() -> None:
    board = MmaBlock("ones", "H100")
    board.tour_step = 0
    assert (board.preset, board.gpu, board.knob) == ("1 and small terms", "V100", -22)
    board.tour_step = 2
    assert board.knob == -24
    lost = board.value
    board.tour_step = 4
    assert lost == 1.0 < board.value, "the H100 finds what the V100 has lost"
    board.tour_step = -1
    assert board.gpu == "H100", "the end leaves all as it is"


def test_a_step_of_the_workbench_presses_a_button() -> None:
    bench = GUIDED["workbench"]()
    pressed: list[object] = []
    bench.driver.command = pressed.append  # type: ignore[attr-defined]
    for step in range(len(bench.tour)):
        bench.tour_step = step
    bench.close()
    assert [str(button) for button in pressed] == ["step"]


def test_a_tour_is_short_rings_what_the_page_has_and_ends() -> None:
    shared = {"workbench": ("driven", "bench"), "underflow": ("histogram",)}
    assert {path.parent.name for path in Path(str(FOLDERS)).glob("*/tour.toml")} == set(GUIDED)
    for name, make in GUIDED.items():
        page, steps, widget = script(*shared.get(name, ()), name), base.tour_of(name), make()
        assert len(steps) in base.LENGTHS
        for step in steps:
            assert len(step["text"]) < 160
            for word in re.findall(r"\.([\w-]+)", step["ring"]):
                assert re.search(rf'["\s]{word}["\s]', page), f"no element of {name} has the class {word}"
        with pytest.raises(TraitError, match=f"this tour has {len(steps)} steps"):
            widget.tour_step = len(steps)
        assert widget.tour_step == -1
        widget.close()


def test_a_tour_that_is_not_whole_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shaky").mkdir()
    monkeypatch.setattr(base, "FOLDERS", tmp_path)
    whole = '[[step]]\ntext = "Look."\nring = ".a"\n'
    for text in (6 * '[[step]]\ntext = "Look."\n', 6 * f"{whole}sets = {{}}\n", 4 * whole):
        (tmp_path / "shaky" / "tour.toml").write_text(text)
        with pytest.raises(ValueError, match="5 to 8 steps, each with text, ring"):
            base.tour_of("shaky")
