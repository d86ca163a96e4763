"""Projects: recipes as data, their training and judgement, and the leader board."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from labkit.amp import RECIPES, Recipe, ScalerConfig, WeightRounding, static
from labkit.formats import BF16, FP16, FP32
from labkit.gemm import SPECS
from labkit.grading import EXERCISES, Grade, check
from labkit.grading.exercise import Key
from labkit.grading.sandbox import isolation
from labkit.grading.sandbox.runner import NotStarted, Runner, scratch
from labkit.grading.sandbox.supervisor import Reply
from labkit.grading.sandbox.wire import Failure, Instance, dump, load
from labkit.grading.sandbox.worker import Limits
from labkit.grading.trainings import Trainings
from labkit_lessons.lesson_12_project import FAILING, PROJECT_TASKS, enter, show
from tests.grading.cases import lesson_module

project_tasks, runs = (lesson_module("12_project", stem) for stem in ("cases", "runs"))
HIDDEN, VISIBLE, keeps, reaches, recipe_of = (
    runs.HIDDEN,
    runs.VISIBLE,
    runs.keeps,
    runs.reaches,
    runs.recipe_of,
)
run_of, spread = runs.run_of, runs.spread

SEEDS = (*VISIBLE, *HIDDEN)


def off_the_wire(value: object) -> object:
    return load(json.loads(json.dumps(dump(value))))


# --- recipes travel as data ---


def test_a_recipe_comes_back_as_it_was() -> None:
    for recipe in (
        RECIPES["FP32"],
        RECIPES["O1"],
        RECIPES["FP8"],
        RECIPES["FP16 Kahan"],
        Recipe("mine", model=BF16, master_weights=False, rounding=WeightRounding.STOCHASTIC),
        Recipe(
            "mine",
            autocast=FP16,
            scaler=ScalerConfig(init_scale=2.0**5, growth_interval=7, hysteresis=2),
        ),
    ):
        assert recipe_of(off_the_wire(recipe)) == replace(recipe, name="yours")


def test_what_is_not_a_recipe_is_refused_with_the_reason() -> None:
    class Liar(Recipe):
        """A recipe that is equal to everything."""

        def __eq__(self, other: object) -> bool:
            return True

    def bent(**changes: object) -> Instance:
        record = off_the_wire(RECIPES["O2"])
        assert isinstance(record, Instance)
        return Instance(record.name, {**record.fields, **changes})

    for answer, says in (
        ("FP16", "expected a Recipe, got 'FP16'"),
        (off_the_wire(FP16), "expected a Recipe"),
        (off_the_wire(Liar("liar")), "an object of the class Liar"),
        (bent(model="FP16"), "model: expected a format of the lab"),
        (bent(model=None), "model: expected a format of the lab"),
        (bent(autocast=off_the_wire(FP16)), "autocast keeps the model in FP32"),
        (bent(scaler=None), "cannot be read"),
        (
            bent(scaler=Instance("ScalerConfig", {"init_scale": "much"})),
            "init_scale must be a number",
        ),
        (bent(rounding=Instance("WeightRounding", {"name": "UP"})), "cannot be read"),
        (bent(more=1), "cannot be read"),
        (
            off_the_wire(Recipe("slow", model=FP16, accumulator=SPECS["V100"])),
            "leave accumulator=None",
        ),
        (off_the_wire(RECIPES["FP8 current"]), "leave products=None here"),
    ):
        with pytest.raises(ValueError, match=says):
            recipe_of(answer)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "did you forget `return`"),
        (5, "expected a Recipe"),
        (FP16, "expected a Recipe"),
    ],
)
def test_an_answer_without_a_recipe_earns_nothing(answer: object, says: str) -> None:
    grade = check("project.digits", lambda seeds: answer)
    assert grade.points == 0
    assert says in str(grade)


def test_what_stops_in_the_call_is_a_failure_and_not_trained() -> None:
    grade = check(
        "project.digits",
        lambda seeds: Recipe("mine", model=FP32, master_weights=True, optimizer=FP16),
    )
    assert "expected an optimizer in FP32" in str(grade)
    (first, *_) = EXERCISES["project.digits"].checks
    failure = Failure("error", "it stopped")
    assert first.outcome(failure, (VISIBLE,)) is failure


# --- the tasks ---


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=pytest.mark.slow if task == "drift" else ())
        for task in PROJECT_TASKS
    ],
)
def test_failing_run_fails_and_the_reference_does_not(task: str) -> None:
    """As at grading, the metric is the mean over two seeds.

    The margins leave room for the rounding of other machines.
    """
    recipe = EXERCISES[f"project.{task}"].reference(VISIBLE)
    assert isinstance(recipe, Recipe)
    fp32 = {seed: run_of(task, RECIPES["FP32"], seed).metric for seed in SEEDS}
    behind = {seed: fp32[seed] - run_of(task, recipe, seed).metric for seed in SEEDS}
    assert spread(task) == pytest.approx(max(fp32.values()) - min(fp32.values()), abs=1e-6)
    assert min(fp32.values()) > 0.5
    assert all(run_of(task, FAILING[task], seed).metric < fp32[seed] / 4 for seed in VISIBLE)
    for pair in (VISIBLE, HIDDEN[:2], HIDDEN[1:]):
        assert sum(behind[seed] for seed in pair) / 2 < spread(task) / 2, pair


def test_the_memory_bill_is_that_of_lesson_07() -> None:
    for task, recipe, bytes_a_weight in (
        ("targets", "FP32", 4 + 4),
        ("targets", "FP16 static", 2 + 4 + 2),
        ("drift", "FP32", 4 + 4 + 8),
        ("drift", "FP16 Kahan", 2 + 2 + 2 + 8),
        ("drift", "FP16 stochastic", 2 + 2 + 8),
        ("digits", "O3", 2 + 2 + 4),
    ):
        assert keeps(task, RECIPES[recipe], VISIBLE, bytes_a_weight).passed
        assert not keeps(task, RECIPES[recipe], VISIBLE, bytes_a_weight - 1).passed
        assert f"{bytes_a_weight} bytes a weight" in keeps(task, RECIPES[recipe], VISIBLE, 0).says


def test_a_first_step_that_is_skipped_hides_no_memory() -> None:
    skips_first = replace(RECIPES["O2"], scaler=ScalerConfig(init_scale=2.0**40))
    assert not run_of("digits", skips_first, 0).stepped[0]
    assert (
        run_of("digits", skips_first, 0).memory
        == run_of("digits", RECIPES["FP16 static"], 0).memory
    )


@pytest.fixture(scope="module")
def in_fp32() -> Grade:
    """The grade of a recipe that keeps everything in FP32."""
    return check("project.digits", lambda seeds: RECIPES["FP32"])


def test_feedback_counts_the_bytes_of_a_weight(in_fp32: Grade) -> None:
    assert "16 bytes a weight: 4 weights + 4 gradients + 8 optimizer state" in str(in_fp32)
    assert "it keeps at most 8 bytes a weight" in in_fp32.reason


def test_feedback_states_the_format_of_the_run(in_fp32: Grade) -> None:
    assert "all of it is computed in FP32" in str(in_fp32)


def test_feedback_names_the_mistake(in_fp32: Grade) -> None:
    assert in_fp32.mistake is not None
    assert in_fp32.mistake.name == "FP32 between steps"


def test_feedback_compares_the_metric_with_fp32() -> None:
    in_autocast = check("project.targets", lambda seeds: RECIPES["FP16 static"])
    assert "as good: " in str(in_autocast)


def test_a_recipe_of_bf16_alone_earns_everything() -> None:
    """Small gradients need no scale."""
    pure = Recipe("pure BF16", model=BF16, master_weights=False, optimizer=BF16)
    grade = check("project.targets", lambda seeds: pure)
    assert all(verdict.passed for verdict in grade.verdicts)
    assert "4 bytes a weight: 2 weights + 2 gradients" in str(grade)


def test_a_training_that_ends_in_nan_reaches_nothing() -> None:
    unchecked = replace(FAILING["targets"], scaler=static(2.0**60, skip_on_inf=False))
    assert not reaches("targets", unchecked, VISIBLE).passed


@pytest.mark.parametrize("output", [1e6, torch.nan])
def test_a_drift_that_is_not_followed_is_worth_nothing(output: float) -> None:
    targets = torch.zeros(200, project_tasks.OUTPUTS)
    assert project_tasks.recovered_share(torch.full_like(targets, output), targets) == 0.0


# --- the leader board ---


def graded(recipe: Recipe) -> Grade:
    return check("project.digits", lambda seeds: recipe)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A board with four entries, of which two are equal."""
    pure = EXERCISES["project.digits"].reference(VISIBLE)
    assert isinstance(pure, Recipe)
    folder = tmp_path_factory.mktemp("board")
    entries = (
        ("Grace", RECIPES["FP16 no master"]),
        ("Ada", pure),
        ("Alan", RECIPES["FP32"]),
        ("Mary", pure),
    )
    for name, recipe in entries:
        enter(folder, name, [graded(recipe)])
    return show(folder)


def test_entries_are_ordered_by_points(board: Any) -> None:
    assert [entrant.name for entrant in board.entrants] == ["Ada", "Mary", "Grace", "Alan"]
    assert [entrant.points for entrant in board.entrants] == [6, 6, 4, 1]


def test_equal_entries_share_a_place(board: Any) -> None:
    assert board.places == (1, 1, 3, 4)


def test_entries_have_their_bytes(board: Any) -> None:
    weights = sum(p.numel() for p in PROJECT_TASKS["digits"].make_model().parameters())
    assert [round(entrant.bytes / weights) for entrant in board.entrants] == [8, 8, 12, 16]


def test_a_board_is_shown_as_text_and_as_html(board: Any) -> None:
    assert "6 of 8" in str(board)
    assert "<td>Grace</td>" in board._repr_html_()


def test_a_board_without_entries_says_so(tmp_path: Path) -> None:
    empty = show(tmp_path / "nowhere")
    assert str(empty) == "This board has no entries yet."
    assert "no entries yet" in empty._repr_html_()


def test_entering_again_replaces_the_first_entry(tmp_path: Path) -> None:
    enter(tmp_path, "Ada", [graded(RECIPES["FP32"])])
    second = enter(tmp_path, "Ada", [graded(RECIPES["FP16 no master"])])
    assert list(tmp_path.iterdir()) == [second]
    assert [entrant.name for entrant in show(tmp_path).entrants] == ["Ada"]


def test_boards_are_merged_by_copying_their_files(tmp_path: Path) -> None:
    here = tmp_path / "here"
    there = tmp_path / "there"
    enter(here, "Ada", [graded(RECIPES["FP32"])])
    path = enter(there, "Zoë", [graded(RECIPES["FP32"])])
    (here / path.name).write_bytes(path.read_bytes())
    assert [entrant.name for entrant in show(here).entrants] == ["Ada", "Zoë"]


def test_invalid_file_name_is_refused(tmp_path: Path) -> None:
    grades = [graded(RECIPES["FP32"])]
    for name in ("", " ", "../ada", "a/b", "a\\b", "C:", ".ada", "ada.", "a\nb", "a\0b", "x" * 41):
        with pytest.raises(ValueError, match="1 to 40 letters"):
            enter(tmp_path, name, grades)
    with pytest.raises(ValueError, match="expected the grades"):
        enter(tmp_path, "Ada", [])
    assert list(tmp_path.rglob("*")) == []


def test_a_damaged_file_is_named_and_changes_no_other_rank(tmp_path: Path) -> None:
    enter(tmp_path, "Ada", [graded(RECIPES["FP32"])])
    eve = (
        b'{"schema": "labkit.leader_board/1", "name": "Eve", "points": %s, "out_of": 8, "bytes": 0}'
    )
    for content, says in (
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "its schema is not"),
        (b'{"schema": "labkit.leader_board/1"}', "expected name, points, out_of and bytes"),
        (eve.replace(b"Eve", b"../Eve") % b"8", "name: expected 1 to 40 letters"),
        (eve % b"9", "points: expected at most 8, got 9"),
        (eve % b'"8"', "points: expected a whole number from 0 on, got '8'"),
        (b"[" * 60_000, "left out"),
        (b" " * 70_000, "expected a file of at most"),
    ):
        (tmp_path / "Eve.json").write_bytes(content)
        board = show(tmp_path)
        assert [entrant.name for entrant in board.entrants] == ["Ada"]
        assert "Eve.json is left out" in str(board)
        assert says in str(board)


# --- trainings that fail: the recipe is blamed, unless FP32 fails, too ---
YOUR_FP32, YOUR_O3 = (replace(RECIPES[name], name="yours") for name in ("FP32", "O3"))
TRAINED = EXERCISES["project.digits"].trained


@pytest.fixture
def no_results() -> Iterator[None]:
    """Empty the stored results for a test, and restore them."""
    stored = dict(runs.RESULTS)
    runs.RESULTS.clear()
    yield
    runs.RESULTS.clear()
    runs.RESULTS.update(stored)


def train(runner: object, *keys: Key) -> None:
    trainings = Trainings(runner)
    trainings._missing |= dict.fromkeys(keys, TRAINED)
    with ThreadPoolExecutor(1) as pool:
        trainings.run(pool, lambda line: None)


def out_of_reach(questions: object, limits: object) -> dict[str, Reply]:
    return {"training": Reply("training", note="FileNotFoundError: digits.npz")}


@pytest.mark.usefixtures("no_results")
def test_a_recipe_whose_training_fails_gets_the_reason() -> None:
    train(SimpleNamespace(limits=Limits(), run=out_of_reach), ("digits", YOUR_O3, 0))
    with pytest.raises(RuntimeError, match=r"digits\.npz"):
        runs.run_of("digits", YOUR_O3, 0)


@pytest.mark.usefixtures("no_results")
def test_where_not_even_fp32_trains_no_recipe_is_blamed() -> None:
    with pytest.raises(
        NotStarted, match="'digits' cannot be trained here, not even in FP32: FileNotFoundError"
    ):
        train(
            SimpleNamespace(limits=Limits(), run=out_of_reach),
            ("digits", YOUR_O3, 0),
            ("digits", YOUR_FP32, 0),
        )


@pytest.mark.usefixtures("no_results")
def test_the_time_is_announced_before_the_first_training() -> None:
    """900 recipes, two at a time, with an estimate of 0.6 seconds each, take 4.5 minutes."""
    events: list[str] = []

    def trained(questions: object, limits: object) -> dict[str, Reply]:
        events.append("a training")
        return {"training": Reply("training", note="not now")}

    trainings = Trainings(SimpleNamespace(limits=Limits(), run=trained), workers=2)
    # On a machine with one core, it would be 1.
    trainings.at_once = 2
    recipes = [replace(YOUR_O3, scaler=static(2.0**10 + number)) for number in range(900)]
    trainings._missing |= dict.fromkeys((("digits", recipe, 0) for recipe in recipes), TRAINED)
    with ThreadPoolExecutor(2) as pool:
        trainings.run(pool, events.append)
    assert events[0] == "900 recipes: 900 trainings, about 4.5 minutes"
    assert events.count("a training") == 900


@pytest.mark.slow
@pytest.mark.usefixtures("no_results")
def test_the_data_of_the_lab_are_in_sight_of_a_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The digits are read from a file. If it is missing, nobody is graded."""
    with scratch() as folder, Runner(Limits(), folder) as runner:
        isolation.isolate(runner, [], folder)
        train(runner, ("digits", YOUR_FP32, 0))
    assert runs.run_of("digits", YOUR_FP32, 0).metric > 0.6
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    with (
        scratch() as folder,
        Runner(Limits(), folder) as runner,
        pytest.raises(NotStarted, match=r"digits\.npz"),
    ):
        train(runner, ("digits", YOUR_FP32, 1))
