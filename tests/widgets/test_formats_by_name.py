"""Widgets take the name of a format in place of the format."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import traitlets
from torch import nn

from labkit.formats import BF16
from labkit.instrument import snapshot
from labkit.widgets import (
    AdditionPlayer,
    BitExplorer,
    CastLedger,
    CastPasses,
    NumberLine,
    UnderflowHistogram,
)

LINEAR = nn.Linear(2, 2)
GRADIENTS = snapshot({"layer": torch.tensor([1.0, 2.0**-30])}, step=0, kind="activation gradients")
WIDGETS: dict[str, Callable[[Any], Any]] = {
    "addition": lambda format: AdditionPlayer(1.0, 0.5, format),
    "bits": BitExplorer,
    "bits, compared": lambda format: BitExplorer(compare=[format]),
    "ledger": lambda format: CastLedger(LINEAR, torch.ones(1, 2), format=format),
    "line": NumberLine,
    "passes": lambda format: CastPasses(format=format),
    "underflow": lambda format: UnderflowHistogram(GRADIENTS, format),
}


@pytest.fixture(params=WIDGETS)
def widget(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return WIDGETS[request.param]


def state_of(widget: Any) -> dict[str, Any]:
    """Return what the page gets, without the layout, which each widget has of its own."""
    state: dict[str, Any] = widget.get_state()
    widget.close()
    return {name: value for name, value in state.items() if name != "layout"}


def test_a_name_gives_the_widget_of_its_format(widget: Callable[[Any], Any]) -> None:
    assert state_of(widget("bf16")) == state_of(widget(BF16))


def test_another_format_gives_another_widget(widget: Callable[[Any], Any]) -> None:
    assert state_of(widget("FP16")) != state_of(widget(BF16))


def test_an_unknown_name_is_refused_with_those_that_are_known(
    widget: Callable[[Any], Any],
) -> None:
    with pytest.raises(ValueError, match=r"expected one of FP64, FP32, .*got 'FP17'"):
        widget("FP17")


@pytest.mark.parametrize("make", [BitExplorer, NumberLine])
def test_a_trait_takes_the_name_of_a_format(make: Callable[[], Any]) -> None:
    widget = make()
    widget.format = "bf16"
    assert widget.format is BF16
    with pytest.raises(traitlets.TraitError, match=r"expected one of FP64, FP32, .*got 'FP17'"):
        widget.format = "FP17"
    assert widget.format is BF16
    widget.close()
