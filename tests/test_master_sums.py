"""Section 7 of lesson 07: sums of micro-batches by its own cell, as its table and its prediction state them."""

from typing import Any

from labkit.widgets import predictions
from notebooks import build

CELLS = {cell["id"]: "".join(cell["source"]) for cell in build.learners(build.lesson("07_master_weights"))["cells"]}


def test_bf16_loses_half_of_2048_micro_batches_in_turn_and_little_in_pairs() -> None:
    names: dict[str, Any] = {}
    exec("import torch\n" + CELLS["touch-micro"], names)
    parts = names["micro_batches"]
    exact = {count: sum(part.double() for part in parts[:count]) for count in (8, 512, 2048)}

    def error(name: str, count: int) -> float:
        add, dtype = names["WAYS"][name]
        return float((add(parts[:count], dtype) - exact[count]).norm() / exact[count].norm())

    assert {name: round(error(name, 2048), 3) for name in names["WAYS"]} == {
        "BF16": 0.468, "FP16": 0.006, "FP32": 0.0, "BF16 in pairs": 0.003,
    }  # fmt: skip
    assert [round(error("BF16", count), 3) for count in (8, 512)] == [0.003, 0.040]
    assert predictions()["master.micro"].answer == "almost half of it is lost"
