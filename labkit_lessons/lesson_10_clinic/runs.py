"""Judgement of trainings in consultations: a training must learn from all of its data.

The answer to a consultation is a training. `treat` runs it in the sandbox of learners' code and
returns numbers, which are judged here.
"""

from __future__ import annotations

import math

from labkit.grading.exercise import Case, Outcome
from labkit.grading.sandbox.wire import Instance
from labkit.train import one_thread

from .cases import CONSULTATIONS
from .replay import (
    ALIKE,
    LENGTH,
    RATES,
    TEXTS,
    Replay,
    beginning,
    bent,
    quantile,
    rebuilt,
    replay,
)
from .treatment import Treatment

# The relative room for the rounding of the first and the last learning rate.
RATE_ROUNDING = 0.01
# The largest distance of a learning rate from the straight line between the first and the last.
MOST_BENT = 0.02
# The shares of the steps whose noise may lie below and above the noise of the format: each batch
# has its own.
LOW_NOISES = 0.2
HIGH_NOISES = 0.3


def treated(name: str, answer: object, case: Case) -> object:
    """Return the judgement of a training by its weights and losses.

    Args:
        name: The name of the consultation.
        answer: What `treat` returned, as an `Instance`; a failed answer is returned as it is.
        case: The arguments of the call; the first one is the seed.

    Returns:
        An `Outcome` whose facts are the names of the observations that refuse the training.
    """
    if not isinstance(answer, Instance):
        return answer
    treatment = Treatment(**answer.fields)  # type: ignore[arg-type]
    seed = int(str(case[0]))
    score = math.nan
    problems = _problems_of_result(name, treatment)
    can_be_replayed = not problems.keys() & {"parameters", "number of losses"}
    if can_be_replayed:
        assert treatment.states is not None
        with one_thread():
            run = replay(name, seed, treatment.states, treatment.losses)
            last = rebuilt(name, seed, treatment.states[-1], treatment.buffers)
            score = CONSULTATIONS[name].score(last)
        problems |= _problems_of_replay(name, run, len(treatment.losses))
    limit = CONSULTATIONS[name].limit
    metric = CONSULTATIONS[name].metric
    # A score of NaN fails, too.
    if not score >= limit:
        problems["score"] = f"expected {metric} to be at least {limit}, got {score:.2f}"
    if not problems:
        return Outcome(True, f"score: {metric} is {score:.2f}, at least {limit}", ())
    text = "; ".join(f"{observation}: {problem}" for observation, problem in problems.items())
    return Outcome(False, text, tuple(problems))


def _problems_of_result(name: str, treatment: Treatment) -> dict[str, str]:
    """Return the problems of a training that show before it is replayed, by observation."""
    consultation = CONSULTATIONS[name]
    steps = consultation.steps
    losses = treatment.losses
    problems: dict[str, str] = {}

    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            problems["finite losses"] = f"the loss is not finite, first in step {step}"
            break
    if len(losses) != steps:
        problems["number of losses"] = f"it returns {len(losses)} losses of {steps} steps"

    model, _ = beginning(name, steps, 0)
    size = sum(parameter.numel() for parameter in model.parameters())
    shapes = [buffer.shape for buffer in model.buffers()]
    states = treatment.states
    has_states = False
    if states is not None and states.dim() == 2:
        has_states = len(states) > 0 and states.shape[1] == size
    if not has_states or [buffer.shape for buffer in treatment.buffers] != shapes:
        problems["parameters"] = "the model has other parameters than it came with"

    examples = sum(len(batch[0]) for batch in consultation.batches(steps, 0))
    if treatment.examples < examples - TEXTS[name].unread:
        problems["examples"] = (
            f"{examples - treatment.examples} of {examples} examples never went through the model: "
            "leave none out"
        )
    if treatment.half < consultation.half:
        problems["format of products"] = (
            f"{treatment.half:.0%} of its products are computed in {consultation.format}: repair "
            "the fault, and leave the rest"
        )

    # FP32 weights that are all numbers of FP16 were rounded after each step.
    are_rounded = states is not None and bool((states[-1].half().float() == states[-1]).all())
    has_other_formats = not set(treatment.weights) <= set(consultation.weights)
    if has_other_formats or (are_rounded and "float32" in treatment.weights):
        text = f"its weights are {' and '.join(treatment.weights)} in the end"
        if are_rounded:
            text += ", and each is a number of FP16"
        problems["format of weights"] = text

    scaled = sum(scale > 1 for scale in treatment.scales)
    if consultation.scaled and scaled < len(losses) - consultation.skips:
        problems["loss scale"] = (
            f"its loss is scaled up in {scaled} of {len(losses)} steps: in the others the scaler "
            "is switched off, or its scale is 1 or less"
        )
    if consultation.decided and treatment.decided < steps:
        problems["autograd function"] = (
            f"a function of yours was applied to {consultation.decided} {treatment.decided} times "
            f"in {steps} steps"
        )
    return problems


def _problems_of_replay(name: str, run: Replay, loss_count: int) -> dict[str, str]:
    """Return the problems of a training that its replay shows, by observation.

    Args:
        name: The name of the consultation.
        run: The replay of the training from its weights.
        loss_count: The number of losses that the training returned.
    """
    consultation = CONSULTATIONS[name]
    text = TEXTS[name]
    taken = len(run.taken)
    problems: dict[str, str] = {}

    if not run.begins:
        problems["first weights"] = "its first weights are not those of the model that it got"
    if run.wrong_losses:
        step, returned, right = run.wrong_losses[0]
        problems["losses"] = (
            f"{len(run.wrong_losses)} of {loss_count} losses are not those of its weights: step "
            f"{step} returns {returned:.4g}, and its weights have {right:.4g}"
        )
    if run.lost > 0:
        problems["updates"] = (
            f"{run.lost} changes of the weights are not a step of the text's optimizer on its "
            "batches"
        )
    if taken < consultation.steps - consultation.skips:
        problems["steps"] = (
            f"{taken} of {consultation.steps} steps were taken: a step that is left out, or "
            "caught, repairs nothing"
        )
    farthest = max(run.clipped, key=lambda ratio: abs(ratio - 1), default=1.0)
    if abs(farthest - 1) > LENGTH:
        problems["clipping"] = f"a step is {farthest:.2f} times as long as clipping leaves it"
    # Half of the steps may be bare by chance: in them, the penalty hardly changes the gradient.
    if 2 * run.bare > max(1, taken):
        problems["penalty"] = (
            f"{run.bare} of {taken} steps are those of the loss without its penalty"
        )

    length = quantile(run.lengths, 0.5)
    if text.rate is not None and taken > 0 and abs(length - 1) > LENGTH:
        problems["learning rate"] = (
            f"its steps are {length:.2f} times as long as a learning rate of {text.rate:g} makes "
            "them"
        )
    if text.rate is None:
        problem = _problem_of_rates(run.rates)
        if problem:
            problems["schedule"] = problem
    if run.partly:
        problems["all parameters"] = f"{' and '.join(run.partly)} did not move as the gradients say"

    # Rounding to 16 bits moves a step by a known number of roundings from a step in FP32.
    least, most = text.noise
    low = quantile(run.noises, LOW_NOISES)
    high = quantile(run.noises, 1 - HIGH_NOISES)
    has_noise = least <= low and high <= most
    if taken > 0 and not has_noise:
        problems["format of steps"] = (
            f"its steps lie {quantile(run.noises, 0.5):.3g} roundings of FP16 from those of FP32: "
            f"this is not {'BF16' if text.bfloat16 else 'FP16'}"
        )
    if run.alike and not text.bfloat16 and quantile(run.alike, 0.5) < ALIKE:
        problems["rounding of steps"] = (
            "its steps differ from those of FP32, but not as products in FP16 do: this is not FP16"
        )
    return problems


def _problem_of_rates(rates: list[float]) -> str:
    """Return why learning rates do not fall in a straight line from RATES[0] or more to RATES[1].

    The text is empty if they do.
    """
    if not rates:
        return "no step was taken, so no learning rate was used"
    if rates[0] < (1 - RATE_ROUNDING) * RATES[0]:
        return (
            f"the learning rate of the first step is {rates[0]:.3g}; it should begin at "
            f"{RATES[0]:g} or above"
        )
    if rates[-1] > (1 + RATE_ROUNDING) * RATES[1]:
        return (
            f"the learning rate goes from {rates[0]:.3g} to {rates[-1]:.3g} over the steps that "
            f"are taken; it should fall to {RATES[1]:g} or below"
        )
    if bent(rates) > MOST_BENT:
        return (
            "the learning rate does not fall in a straight line: it is up to "
            f"{bent(rates):.2g} away from one"
        )
    return ""
