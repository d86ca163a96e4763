"""The ledger of casts, the passes over a cast graph, and the step debugger."""

import copy
from dataclasses import replace

import pytest
import torch
import traitlets
from torch import Tensor, nn

from labkit.amp import RECIPES
from labkit.train import STAGES, TASKS, TrainingRun
from labkit.widgets import CastLedger, CastPasses, StepDebugger
from labkit.widgets.graph.widget import PASSES
from labkit.widgets.ledger.widget import relative, row_view
from tests.widgets.pages import Page


def scores(x, w):
    return (x @ w).exp().sum(-1).log()


@pytest.fixture
def board():
    """Return a ledger in which all elements of x @ w are 12.5, whose exp overflows FP16."""
    return CastLedger(scores, torch.full((2, 2), 2.5), torch.full((2, 2), 2.5))


def view(board, op):
    """Return the row that the page has of an operation."""
    return next(row for row in board.get_state()["_rows"] if row["op"] == op)


def test_a_row_of_an_operation(board):
    row = view(board, "exp")
    assert row["list"] == "deny"
    assert row["takes"] == ["FP16"]
    assert row["ran"] == "FP32"
    assert row["gives"] == "FP32"
    assert (row["cast"], row["moved"], row["error"], row["bar"], row["flag"]) == (
        True,
        False,
        "exact",
        0.0,
        "",
    )


def test_operations_of_the_list_set_dtype_are_shown_as_denied(board):
    assert view(board, "sum")["list"] == "deny"
    assert view(board, "sum")["why"].startswith("set dtype: ")


def test_the_bar_of_an_error_is_logarithmic():
    board = CastLedger(scores, torch.rand(8, 8), torch.rand(8, 8))
    row = view(board, "matmul")
    error = board.rows[0].error
    assert 2**-13 < error < 2**-10
    assert row["bar"] == pytest.approx(1 + torch.tensor(error).log2().item() / 24, abs=1e-5)
    assert row["error"] == relative(error)


class TestMoved:
    def test_an_overflow_of_exp_is_reported(self, board):
        board.move("exp", "allow")
        assert board.overrides == {"exp 1": "allow"}
        assert board.sentence == (
            "With exp on the allow list, exp overflows: 4 of its 4 results are inf or NaN, "
            "where FP32 has up to 268000. It reaches the last result."
        )
        row = view(board, "exp")
        assert (row["moved"], row["gives"], row["flag"], row["bar"]) == (
            True,
            "FP16",
            "4 inf or NaN",
            1.0,
        )
        assert row["why"] == "you moved it here; its own list is deny"

    def test_exp_on_its_own_list_again_leaves_the_first_state(self, board):
        before = board.sentence, board.get_state()["_rows"]
        board.move("exp", "allow")
        board.move("exp", "deny")
        assert board.overrides == {}
        assert (board.sentence, board.get_state()["_rows"]) == before

    def test_exp_does_not_overflow_in_bf16(self, board):
        """BF16 has the range of FP32."""
        board.move("exp", "allow")
        board.format_name = "BF16"
        assert view(board, "matmul")["gives"] == "BF16"
        assert "overflows" not in board.sentence

    def test_reset_leaves_the_first_state(self, board):
        before = board.sentence, board.get_state()["_rows"]
        board.move("exp", "allow")
        board.reset()
        assert (board.sentence, board.get_state()["_rows"]) == before

    def test_all_operations_can_run_in_fp32(self, board):
        board.overrides = {row.key: "deny" for row in board.rows}
        # The other operations run in FP32 already.
        assert board.overrides == {"matmul 1": "deny"}
        assert board.sentence == (
            "With matmul on the deny list, all 4 operations run in FP32; the last result equals "
            "FP32's (exact when every operation is on its own list)."
        )

    def test_a_name_moves_all_its_calls(self):
        board = CastLedger(
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.rand(2, 4)
        )
        board.move("linear", "deny")
        assert board.overrides == {"linear 1": "deny", "linear 2": "deny"}
        assert board.sentence.startswith(
            "With linear on the deny list, all 3 operations run in FP32"
        )

    def test_networks_of_tasks_have_no_refusal(self):
        for name in ("digits_cnn", "char_lstm", "gpt"):
            task = TASKS[name]
            data = TASKS[name].make_data()
            board = CastLedger(task.make_model(), data.train_inputs[:2])
            assert not any(row.problem for row in board.rows), name
            board.overrides = {row.key: "deny" for row in board.rows}
            assert "in FP32; the last result equals FP32's" in board.sentence, name

    def test_a_refusal_of_torch_is_shown(self):
        board = CastLedger(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU()), torch.rand(2, 4)
        )
        board.move("linear 2", "keep")
        assert board.sentence.startswith("With linear on the keep list, linear is refused: ")
        assert board.sentence.endswith("Nothing below it was reached.")
        rows = board.get_state()["_rows"]
        assert [(row["flag"], row["gives"]) for row in rows] == [
            ("", "FP16"),
            ("refused", ""),
            ("not reached", ""),
        ]


def test_an_unknown_operation_is_refused(board):
    with pytest.raises(
        traitlets.TraitError, match=r"operation: expected one of matmul, exp, sum.*got 'softmax'"
    ):
        board.move("softmax", "allow")
    assert board.overrides == {}


def test_an_unknown_list_is_refused(board):
    with pytest.raises(
        traitlets.TraitError, match="list: expected one of allow, deny, promote, keep, got 'white'"
    ):
        board.move("exp", "white")
    assert board.overrides == {}


def test_a_ledger_of_integers_is_refused():
    with pytest.raises(ValueError, match="expected a forward pass that computes floating-point"):
        CastLedger(lambda x: x + 1, torch.tensor([1, 2]))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda x: x @ x, "The one operation runs in FP16"),
        (lambda x: (x @ x).exp(), "1 of these 2 operations runs in FP16 and 1 in FP32"),
        (lambda x: (x @ x @ x).exp(), "2 of these 3 operations run in FP16 and 1 in FP32"),
    ],
)
def test_the_sentence_counts_the_operations_of_each_format(model, expected):
    assert CastLedger(model, torch.ones(2, 2)).sentence.startswith(f"{expected};")


def test_a_detail_counts_one_element():
    lost = CastLedger(lambda x: (x @ x) * 1e-9, torch.ones(1, 1))
    assert row_view(lost.rows[-1])["detail"].endswith("; 1 element is 0 here and not in FP32.")


def test_details_of_an_operation(board):
    assert (
        view(board, "exp")["detail"]
        == "exp returns 2 × 2, up to 268000 in FP32; the error is 0 ulp of FP16."
    )
    board.move("exp", "allow")
    assert view(board, "exp")["detail"].endswith("; 4 elements are inf or NaN.")


def test_details_count_the_elements_that_are_lost():
    lost = CastLedger(lambda x: (x @ x) * 1e-9, torch.full((2, 2), 2.0))
    assert "4 elements are 0 here and not in FP32" in row_view(lost.rows[-1])["detail"]


def test_a_still_has_a_line_for_each_operation(board):
    assert board.still()["text/plain"].splitlines()[:3] == [
        "operation  takes  list   gives  error",
        "matmul     FP32   allow  FP16   exact",
        "exp        FP16   deny   FP32   exact",
    ]


def test_each_pass_visits_each_operation_once() -> None:
    passes = CastPasses()
    state = passes.get_state()
    operations = len(passes.explanation.rows)
    names = [sentence.partition(":")[0] for sentence in state["_said"][1:-1]]
    assert names == [name for name in PASSES for _ in range(operations)][:-1]


def test_rows_of_passes_name_what_each_operation_takes() -> None:
    state = CastPasses().get_state()
    # Two operations read the input, number -1.
    assert [row["takes"] for row in state["_rows"]] == [
        [-1],
        [-2],
        [1],
        [0, 2],
        [3],
        [4, -1],
        [5],
    ]
    assert [row["op"] for row in state["_rows"]] == [
        "linear",
        "linear",
        "T",
        "matmul",
        "softmax",
        "matmul",
        "linear",
    ]


def test_worked_example_of_the_sentences_of_passes() -> None:
    passes = CastPasses()
    for position, expected in (
        (0, "A forward pass as it was called. Five passes decide its casts, once."),
        (5, "colour: softmax is on the deny list. Sums or multiplies many elements."),
        (12, "propagate: softmax returns FP32."),
        # 64 numbers of 2 and 4 bytes.
        (19, "insert: softmax asks for input FP16 → FP32: 0.4 KiB to read and write."),
        # 68 numbers of 4 and 2 bytes.
        (
            21,
            "insert: linear asks for weight FP32 → FP16, bias FP32 → FP16: 0.4 KiB to read and "
            "write.",
        ),
        (27, "cancel: at matmul, input FP32 → FP16 repeats an existing cast, and goes."),
        (29, "hoist: the weight of linear is cast here, for all its uses; "),
        (30, "hoist: the weight of linear was cast already; "),
        (35, "Autocast makes 9 casts here, and the graph 7; "),
    ):
        passes.position = position
        assert passes.sentence.startswith(expected), position


def test_a_page_without_a_kernel_has_all_single_moves(page: Page) -> None:
    board = CastLedger(lambda x: (x @ x).exp().sum(), torch.full((2, 2), 2.5))
    root = page.show(board)
    root.locator("tr:has(.lg-op:text-is('exp')) input[value=allow]").check(force=True)
    board.move("exp", "allow")
    assert page.trait("sentence") == board.sentence
    assert root.locator(".lk-sentence").get_attribute("data-text") == board.sentence
    # A page without a kernel has one move at a time.
    root.locator("tr:has(.lg-op:text-is('sum')) input[value=keep]").check(force=True)
    board.overrides = {"sum": "keep"}
    assert page.trait("sentence") == board.sentence
    assert page.trait("overrides") == board.overrides
    root.get_by_role("radio", name="BF16").check(force=True)
    board.format_name = "BF16"
    assert page.trait("sentence") == board.sentence
    for button, overrides in (
        ("All allowed", {"exp": "allow", "sum": "allow"}),
        ("As the lists say", {}),
    ):
        root.get_by_role("button", name=button).click()
        board.overrides = overrides
        assert page.trait("sentence") == board.sentence


def test_a_network_without_a_graph_is_refused_with_the_line() -> None:
    class ReadsItem(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * x.max().item()

    with (
        pytest.warns(UserWarning, match="no graph of this network"),
        pytest.raises(
            ValueError, match=r"there is no graph: .*test_operations.py:\d+: item tells Python"
        ),
    ):
        CastPasses(ReadsItem(2, 2), torch.ones(2, 2))


DIGITS = replace(TASKS["digits"], batch_size=16)


@pytest.fixture
def steps():
    return StepDebugger(DIGITS)


def sentences(steps):
    """Return the sentence of each stage of a step."""
    return dict(zip(STAGES, steps.get_state()["_view"]["sentences"], strict=True))


class TestStages:
    def test_debugger_begins_before_the_first_step(self, steps):
        assert steps.recipe_name == "O2"
        assert steps.log2_scale == 16
        assert steps.stage == 0
        assert steps.watched.step == 1
        assert steps.sentence == "The model computes with FP16 copies of FP32 master weights."

    def test_each_stage_has_its_own_sentence(self, steps):
        for number, sentence in enumerate(sentences(steps).values()):
            steps.stage = number
            assert steps.sentence == sentence
        assert len(set(sentences(steps).values())) == 8

    def test_a_still_has_all_stages(self, steps):
        text = steps.still()["text/plain"]
        assert all(f"{number} {name}: " in text for number, name in enumerate(STAGES, 1))

    def test_the_watched_step_is_that_of_a_training_run(self, steps):
        record = TrainingRun(DIGITS, RECIPES["O2"], measure_every=0).step()
        assert steps.watched.loss == record.loss

    def test_the_sentences_have_the_numbers_of_the_step(self, steps):
        loss = f"{steps.watched.loss:.3g}"
        assert f"The loss is {loss}, in FP32. Times the scale 2^16" in sentences(steps)["loss"]
        assert sentences(steps)["check for inf"].startswith("All 26,122 gradients are finite")

    def test_fp32_casts_nothing(self, steps):
        steps.recipe_name = "FP32"
        words = sentences(steps)
        assert steps.log2_scale == 0
        assert words["cast weights"] == "Nothing is cast: everything in this step is FP32."
        assert words["loss"].endswith("in FP32, and nothing scales it.")
        assert words["scaled backward"].startswith("Nothing is scaled: they go from ")
        assert "6 return FP32" in words["forward"]

    def test_each_power_of_two_moves_a_bar_by_one_place_of_68(self, steps):
        steps.recipe_name = "FP32"
        plain = steps.get_state()["_view"]["stages"][3][-1]["bar"]
        steps.log2_scale = 4
        scaled = steps.get_state()["_view"]["stages"][3][-1]["bar"]
        assert [b - a for a, b in zip(plain, scaled, strict=True)] == pytest.approx([4 / 68] * 2)

    def test_o1_copies_no_weight_back(self, steps):
        steps.recipe_name = "O1"
        assert "every weight stays in FP32" in sentences(steps)["cast weights"]
        assert sentences(steps)["copy back"].startswith("Nothing to copy")
        assert "of 26,122 FP32 weights" in sentences(steps)["step"]

    def test_o3_has_no_master_weights(self, steps):
        steps.recipe_name = "O3"
        assert (
            sentences(steps)["cast weights"]
            == "The weights are FP16, and there is no FP32 master behind them."
        )

    def test_norms_keep_fp32(self):
        steps = StepDebugger(replace(TASKS["segmentation_small"], batch_size=2))
        assert sentences(steps)["cast weights"].endswith("; 3 normalisation layers keep FP32.")

    def test_o3_with_adam_loses_its_model_in_one_step(self):
        steps = StepDebugger(replace(TASKS["segmentation_small"], batch_size=2))
        steps.recipe_name = "O3"
        # Adam divides by the root of squared gradients plus 1e-8, and in FP16 both are 0.
        assert sentences(steps)["step"].endswith("25,152 of its 25,152 updates are inf or NaN.")
        lost = "inf or NaN: this model is lost, and no later step repairs it."
        assert sentences(steps)["copy back"] == f"Every weight is {lost}"

    def test_too_high_scale_is_skipped(self, steps):
        steps.log2_scale = 40
        words = sentences(steps)
        assert not steps.watched.stepped
        assert "gradients overflow" in words["scaled backward"]
        assert words["check for inf"].startswith("found_inf: ")
        assert words["check for inf"].endswith(
            "The step is skipped, and the scale goes down to 2^39."
        )
        assert words["step"] == "Skipped: the weights and the optimizer's state stay as they were."
        assert words["copy back"] == "Nothing moved, so nothing changes."

    def test_the_step_after_a_skipped_one_has_half_the_scale(self, steps):
        steps.log2_scale = 40
        steps.another_step()
        assert steps.log2_scale == 39
        assert steps.watched.scale == 2.0**39
        assert steps.watched.step == 2

    def test_reset_returns_to_the_first_step(self, steps):
        first = steps.watched.loss
        steps.another_step()
        steps.another_step()
        assert steps.watched.step == 3
        steps.reset()
        assert steps.watched.step == 1
        assert steps.watched.loss == first


def test_a_step_whose_gradients_are_all_zero_says_so():
    """Every output is multiplied by 0."""
    dead = replace(DIGITS, loss=lambda outputs, _targets: (outputs * 0).sum())
    steps = StepDebugger(dead)
    assert sentences(steps)["scaled backward"].endswith(
        "of them are zero: no weight will learn from this step."
    )
    assert "no finite gradient other than zero is left" in sentences(steps)["unscale"]


def test_showing_passes_changes_no_model_and_no_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    inputs = torch.randn(8, 2)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    CastPasses()
    CastPasses(model, inputs)
    assert torch.equal(torch.rand(3), expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
