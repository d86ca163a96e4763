"""The passes under a learner's hands: what each position says. No browser is needed."""

import pytest
import torch
from torch import Tensor, nn

from labkit.widgets import CastPasses
from labkit.widgets.graph.widget import PASSES


@pytest.fixture(scope="module")
def passes() -> CastPasses:
    return CastPasses()


def test_each_pass_looks_at_each_operation_once(passes: CastPasses) -> None:
    state, operations = passes.get_state(), len(passes.explanation.rows)
    names = [said.partition(":")[0] for said in state["_said"][1:-1]]
    assert names == [name for name in PASSES for _ in range(operations)][:-1]
    assert [row["op"] for row in state["_rows"]] == ["linear", "linear", "T", "matmul", "softmax", "matmul", "linear"]


def test_what_is_said_at_a_position(passes: CastPasses) -> None:
    for position, said in (
        (0, "A forward pass as it was called. Five passes decide its casts, once."),
        (5, "colour: softmax is on the deny list. Sums or multiplies many elements."),
        (12, "propagate: softmax returns FP32."),
        (19, "insert: softmax asks for input FP16 → FP32: 0.4 KiB to read and write."),  # 64 numbers, 2 + 4 bytes each
        (21, "insert: linear asks for weight FP32 → FP16, bias FP32 → FP16: 0.4 KiB to read and write."),  # 68 of 4 + 2
        (27, "cancel: at matmul, input FP32 → FP16 gives what is there already, and goes."),
        (29, "hoist: the weight of linear is cast here, for all its uses; "),
        (30, "hoist: the weight of linear was cast already; "),
        (35, "Autocast makes 9 casts here, and the graph 7; "),
    ):
        passes.position = position
        assert passes.sentence.startswith(said), position


def test_a_network_without_a_graph_is_refused_with_the_line() -> None:
    class Asks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * x.max().item()

    with (
        pytest.warns(UserWarning, match="no graph of this network"),
        pytest.raises(ValueError, match=r"there is no graph: .*test_graph.py:\d+: item tells Python"),
    ):
        CastPasses(Asks(2, 2), torch.ones(2, 2))
