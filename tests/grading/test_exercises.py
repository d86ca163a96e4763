"""Each exercise: its reference agrees with somebody else's code, and each known mistake is caught, by name."""

from __future__ import annotations

import random

import pytest
import torch

from labkit.amp import ScalerConfig, ScalerState
from labkit.grading import EXERCISES, Exercise, Mistake, judge
from labkit.grading.judge import answers_of, cases_of, paper_of, visible_paper

SEEDS = (0, 1, 2)  # 0 makes the visible checks
ALL = list(EXERCISES.values())
MISTAKES = [
    # To judge a recipe, or a repair, is to train: not for every day.
    pytest.param(
        exercise,
        mistake,
        id=f"{exercise.id}: {mistake.name}",
        marks=pytest.mark.slow if exercise.id.startswith(("project.", "clinic.")) else (),
    )
    for exercise in ALL
    for mistake in exercise.mistakes
]


def seeds_for(exercise: Exercise) -> tuple[int, ...]:
    trains = exercise.id.startswith("project.") or exercise.entry.endswith("_training")  # an answer trains a network
    return SEEDS[1:2] if trains else SEEDS


def cases(exercise_id: str, seed: int) -> list[tuple[object, ...]]:
    exercise = EXERCISES[exercise_id]
    return [case for check in exercise.checks for case in cases_of(exercise, check, seed)]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_an_exercise_is_complete(exercise: Exercise) -> None:
    assert len({mistake.name for mistake in exercise.mistakes}) == len(exercise.mistakes) >= 5
    assert len({check.name for check in exercise.checks}) == len(exercise.checks)
    assert not any(check.hidden for check in exercise.checks) or exercise.id.startswith("project.")  # they take long
    assert exercise.difficulty in (1, 2, 3)
    assert all(check.points > 0 for check in exercise.checks)
    assert all(mistake.sentence.startswith("this ") for mistake in exercise.mistakes)
    assert all(len(cases_of(exercise, check, 5)) > 0 for check in exercise.checks)


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_the_reference_earns_full_marks(exercise: Exercise) -> None:
    for seed in seeds_for(exercise):
        paper = paper_of(exercise, seed)
        grade = judge(paper, answers_of(paper, exercise.reference))
        assert (grade.points, grade.mistake) == (grade.out_of, None)


@pytest.mark.parametrize(("exercise", "mistake"), MISTAKES)
def test_every_mistake_loses_points_and_is_called_by_name(exercise: Exercise, mistake: Mistake) -> None:
    for seed in seeds_for(exercise):
        paper = paper_of(exercise, seed)
        grade = judge(paper, answers_of(paper, mistake.answer))
        assert grade.points < grade.out_of
        assert grade.mistake is mistake


@pytest.mark.parametrize(("exercise", "mistake"), MISTAKES)
def test_every_mistake_shows_in_the_notebook_and_is_called_by_its_own_name_there(
    exercise: Exercise, mistake: Mistake
) -> None:
    paper = visible_paper(exercise)
    grade = judge(paper, answers_of(paper, mistake.answer))
    assert grade.mistake is mistake
    assert "Solved" not in str(grade)


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_only_a_right_answer_ends_with_solved_in_the_notebook(exercise: Exercise) -> None:
    paper = visible_paper(exercise)
    assert "Solved." in str(judge(paper, answers_of(paper, exercise.reference))).splitlines()[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_advance_is_what_torch_does(seed: int) -> None:
    for state, found_inf, config in cases("scaling.advance", seed):
        assert isinstance(state, ScalerState)
        assert isinstance(config, ScalerConfig)
        scaler = torch.amp.GradScaler(
            "cpu",
            init_scale=state.scale,
            growth_factor=config.growth_factor,
            backoff_factor=config.backoff_factor,
            growth_interval=config.growth_interval,
        )
        scaler.scale(torch.zeros(1))
        scaler._growth_tracker.fill_(state.growth_tracker)  # type: ignore[union-attr]
        weight = torch.nn.Parameter(torch.zeros(1))
        weight.grad = torch.tensor([torch.inf if found_inf else 0.0])
        scaler.step(torch.optim.SGD([weight], lr=0.0))
        scaler.update()
        answer = EXERCISES["scaling.advance"].reference(state, found_inf, config)
        # torch keeps the scale in FP32, where 1.5 or 3 to these powers is exact: both are equal, not close.
        assert answer == ScalerState(scaler.get_scale(), scaler._get_growth_tracker())


@pytest.mark.parametrize("seed", SEEDS)
def test_static_step_is_what_torchs_sgd_does_with_the_true_gradient(seed: int) -> None:
    exercise = EXERCISES["scaling.static_step"]
    for check in exercise.checks:
        for weight, gradient_of, scale, lr in cases_of(exercise, check, seed):
            parameter = torch.nn.Parameter(weight.clone())  # type: ignore[attr-defined]
            parameter.grad = gradient_of.gradient.clone()  # type: ignore[attr-defined]
            if not check.name.endswith("skips the step"):
                torch.optim.SGD([parameter], lr=lr).step()  # type: ignore[arg-type]
            assert torch.equal(exercise.reference(weight, gradient_of, scale, lr), parameter.detach())  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", SEEDS)
def test_clip_is_what_clip_grad_norm_does_after_unscaling(seed: int) -> None:
    exercise = EXERCISES["scaling.clip"]
    for check in exercise.checks:
        for scaled_grads, scale, max_norm in cases_of(exercise, check, seed):
            parameters = [torch.nn.Parameter(torch.zeros_like(g, dtype=torch.float32)) for g in scaled_grads]  # type: ignore[attr-defined]
            for parameter, gradient in zip(parameters, scaled_grads, strict=True):  # type: ignore[call-overload]
                parameter.grad = gradient.float() / scale
            norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)  # type: ignore[arg-type]
            answer = exercise.reference(scaled_grads, scale, max_norm)
            if check.name.endswith("skips the step"):
                assert answer is None
                assert not torch.isfinite(norm)
            else:
                for ours, parameter in zip(answer, parameters, strict=True):  # type: ignore[call-overload]
                    torch.testing.assert_close(ours, parameter.grad, rtol=64 * 2.0**-24, atol=0)


@pytest.mark.parametrize("seed", range(20))
def test_clip_cases_are_what_their_tolerance_was_derived_for(seed: int) -> None:
    """Near the limit and beyond the norm is above 1, so torch's 1e-6 stays below 17 ulps; see scaling_clip."""
    for scaled_grads, scale, max_norm in cases("scaling.clip", seed):
        flat = torch.cat([gradient.double().flatten() for gradient in scaled_grads]) / scale  # type: ignore[attr-defined]
        norm = float(flat.norm())
        assert len(flat) <= 9
        assert norm > 1.0 or norm < 0.9 * max_norm or not torch.isfinite(flat).all()  # type: ignore[type-var, operator]


def test_cases_depend_on_the_seed_and_on_nothing_else() -> None:
    first = cases("scaling.advance", 5)
    random.seed(99)
    assert cases("scaling.advance", 5) == first
    assert cases("scaling.advance", 6) != first
