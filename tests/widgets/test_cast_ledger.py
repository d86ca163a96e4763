"""The ledger of casts: the operations of a forward pass, and moves of them between the lists."""

import pytest
import torch
import traitlets
from torch import nn

from labkit.train import TASKS
from labkit.widgets import CastLedger
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


def test_a_row_of_an_operation_on_its_own_list(board):
    expected = {
        "list": "deny",
        "takes": ["FP16"],
        "ran": "FP32",
        "gives": "FP32",
        "cast": True,
        "moved": False,
        "error": "exact",
        "bar": 0.0,
        "flag": "",
    }
    row = view(board, "exp")
    assert {name: row[name] for name in expected} == expected


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
        assert board.sentence == (
            "With exp on the allow list, exp overflows: 4 of its 4 results are inf or NaN, "
            "where FP32 has up to 268000. It reaches the last result."
        )

    def test_a_row_of_an_operation_on_another_list(self, board):
        board.move("exp", "allow")
        expected = {
            "moved": True,
            "gives": "FP16",
            "flag": "4 inf or NaN",
            "bar": 1.0,
            "why": "you moved it here; its own list is deny",
        }
        row = view(board, "exp")
        assert {name: row[name] for name in expected} == expected

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
        assert view(board, "exp")["gives"] == "BF16"
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

    def test_a_move_may_allow_what_was_refused(self):
        def loss(x):
            return nn.functional.binary_cross_entropy((x @ x).sigmoid(), torch.full((4, 4), 0.5))

        board = CastLedger(loss, torch.ones(4, 4))
        assert board.sentence.startswith("binary_cross_entropy is refused: ")
        board.move("binary_cross_entropy", "deny")
        assert board.sentence.endswith("(refused when every operation is on its own list).")

    def test_a_name_moves_all_its_calls(self):
        board = CastLedger(
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.rand(2, 4)
        )
        board.move("linear", "deny")
        assert board.overrides == {"linear 1": "deny", "linear 2": "deny"}
        assert board.sentence.startswith(
            "With linear on the deny list, all 3 operations run in FP32"
        )

    @pytest.mark.parametrize("name", ["digits_cnn", "char_lstm", "gpt"])
    def test_networks_of_tasks_in_fp32_equal_fp32(self, name):
        task = TASKS[name]
        board = CastLedger(task.make_model(), task.make_data().train_inputs[:2])
        assert not any(row.problem for row in board.rows)
        board.overrides = {row.key: "deny" for row in board.rows}
        assert "in FP32; the last result equals FP32's" in board.sentence

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


def test_details_of_an_operation_state_its_shape_range_and_error(board):
    expected = "exp returns 2 × 2, up to 268000 in FP32; the error is 0 ulp of FP16."
    assert view(board, "exp")["detail"] == expected


def test_details_count_the_elements_that_overflow(board):
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


class TestPageWithoutAKernel:
    """A page without a kernel shows what Python would."""

    @pytest.fixture
    def board(self):
        return CastLedger(lambda x: (x @ x).exp().sum(), torch.full((2, 2), 2.5))

    def assert_as_in_python(self, page, root, board):
        assert page.trait("sentence") == board.sentence
        assert root.locator(".lk-sentence").get_attribute("data-text") == board.sentence

    def put(self, root, operation, name):
        """Put an operation on the list of this name."""
        row = root.locator(f"tr:has(.lg-op:text-is('{operation}'))")
        row.locator(f"input[value={name}]").check(force=True)

    def test_an_operation_can_be_moved(self, page: Page, board) -> None:
        root = page.show(board)
        self.put(root, "exp", "allow")
        board.move("exp", "allow")
        self.assert_as_in_python(page, root, board)

    def test_a_second_move_takes_back_the_first(self, page: Page, board) -> None:
        root = page.show(board)
        self.put(root, "exp", "allow")
        self.put(root, "sum", "keep")
        board.overrides = {"sum": "keep"}
        assert page.trait("overrides") == board.overrides
        self.assert_as_in_python(page, root, board)

    def test_a_moved_operation_can_run_in_another_format(self, page: Page, board) -> None:
        root = page.show(board)
        self.put(root, "sum", "keep")
        root.get_by_role("radio", name="BF16").check(force=True)
        board.overrides = {"sum": "keep"}
        board.format_name = "BF16"
        self.assert_as_in_python(page, root, board)

    def test_all_operations_can_be_allowed(self, page: Page, board) -> None:
        root = page.show(board)
        root.get_by_role("button", name="All allowed").click()
        board.overrides = {"exp": "allow", "sum": "allow"}
        self.assert_as_in_python(page, root, board)

    def test_all_operations_can_be_put_back(self, page: Page, board) -> None:
        root = page.show(board)
        root.get_by_role("button", name="All allowed").click()
        root.get_by_role("button", name="As the lists say").click()
        self.assert_as_in_python(page, root, board)
