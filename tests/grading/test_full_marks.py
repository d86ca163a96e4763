"""Right answers in unusual styles, which earn full marks."""

import math
from collections import Counter, defaultdict, deque, namedtuple
from collections.abc import Callable
from fractions import Fraction
from heapq import nlargest
from typing import Any

import numpy as np
import torch

from labkit.amp import ScalerState
from labkit.grading import EXERCISES, check, judge
from labkit.grading.judge import answers_of, grading_cases
from tests.grading.test_single_faults import Answer

RIGHT: list[tuple[str, Answer]] = []


def earns(exercise_id: str) -> Callable[[Answer], Answer]:
    """Add the decorated function to RIGHT, as an answer to this exercise."""

    def add(answer: Answer) -> Answer:
        RIGHT.append((exercise_id, answer))
        return answer

    return add


@earns("gradients.lost")
def a_mean_in_fp32(in_fp32: Any, in_fp16: Any, noise: float) -> object:
    exact, half = (
        torch.cat([torch.zeros(1), *(t.float().flatten() for t in some)])
        for some in (in_fp32, in_fp16)
    )
    lost = half[exact.abs() > noise] == 0
    return lost.float().mean().item() if len(lost) else 0


@earns("beyond.history")
def times_the_reciprocal(largest: Any, length: int, top: float) -> object:
    window = deque([0.0], maxlen=length)
    found = []
    for magnitude in largest:
        found.append(top * (1 / max(window)) if max(window) else 1)
        window.append(magnitude)
    return tuple(found)


Pair = namedtuple("Pair", ["grads", "found_inf"])


@earns("scaling.unscale")
def unscale_in_torch(scaled_grads: Any, scale: float, limit: float) -> Any:
    grads = [grad.float() / scale for grad in scaled_grads]
    good = [bool((torch.isfinite(grad) & (grad.abs() <= limit)).all()) for grad in grads]
    return Pair(grads, ~torch.tensor(good).all())


@earns("scaling.advance")
def advance_in_numpys_numbers(state: Any, found_inf: bool, config: Any) -> ScalerState:
    if found_inf:
        return ScalerState(np.float64(state.scale * config.backoff_factor), np.int64(0))
    if (state.growth_tracker + 1) % config.growth_interval == 0:
        return ScalerState(np.float64(state.scale * config.growth_factor), np.int64(0))
    return ScalerState(state.scale, np.int64(state.growth_tracker + 1))


@earns("master.groups")
def groups_in_a_defaultdict(parameters: Any) -> Any:
    found = defaultdict(list, {"decay": [], "no decay": []})
    for name, shape, trainable in parameters:
        if trainable:
            found["decay" if len(shape) > 1 else "no decay"].append(name)
    return found


@earns("tensor.intensity")
def intensity_in_fractions(
    batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float
) -> Any:
    flops = 2 * batch * inputs * outputs
    moved = bytes_each * (batch * inputs + inputs * outputs + batch * outputs)
    return flops, moved, "compute" if Fraction(flops, moved) >= Fraction(ridge) else "bandwidth"


@earns("numbers.decode")
def decode_in_fractions(code: int, exponent_bits: int, significand_bits: int, bias: int) -> Any:
    code, significand = divmod(code, 1 << significand_bits)
    negative, exponent = divmod(code, 1 << exponent_bits)
    sign = -1 if negative else 1
    unit = Fraction(2) ** (1 - bias - significand_bits)
    if exponent == (1 << exponent_bits) - 1:
        return math.nan if significand else sign * math.inf
    if exponent == 0:
        return sign * significand * unit
    return sign * ((1 << significand_bits) + significand) * unit * 2 ** (exponent - 1)


@earns("numbers.decode")
def decode_from_letters(code: int, exponent_bits: int, significand_bits: int, bias: int) -> Any:
    bits = format(code, f"0{1 + exponent_bits + significand_bits}b")
    exponent = int(bits[1 : 1 + exponent_bits], 2)
    rest = int(bits[1 + exponent_bits :] or "0", 2)
    sign = (-1.0) ** int(bits[0])
    if "0" not in bits[1 : 1 + exponent_bits]:
        return sign * float("nan" if rest else "inf")
    hidden = 1 if exponent else 0
    value = hidden + rest / (1 << significand_bits)
    return math.copysign(math.ldexp(value, max(exponent, 1) - bias), sign)


@earns("numbers.ulp")
def ulp_by_frexp(x: float, significand_bits: int, emin: int) -> float:
    exponent = math.frexp(x)[1] - 1 if x else emin
    return math.ldexp(1.0, max(exponent, emin) - significand_bits)


@earns("numbers.next_up")
def next_up_by_cases(code: int, exponent_bits: int, significand_bits: int, steps: int) -> int:
    top = 1 << (exponent_bits + significand_bits)
    infinity = ((1 << exponent_bits) - 1) << significand_bits
    below = code - top if code & top else 0
    if below and steps <= below:
        return code - steps
    start = 0 if code & top else code
    return min(start + steps - below, infinity)


@earns("rounding.nearest_even")
def round_in_fractions(x: float, significand_bits: int, emin: int, largest: float) -> float:
    if math.isinf(x):
        return x
    exponent = max(math.frexp(x)[1] - 1 if x else emin, emin)
    found = round(Fraction(x) / Fraction(2) ** (exponent - significand_bits))
    value = float(found * Fraction(2) ** (exponent - significand_bits))
    return value if -largest <= value <= largest else math.copysign(math.inf, x)


@earns("rounding.kahan")
def kahan_backwards(values: Any, total: Any, lost: Any) -> Any:
    missing = -lost
    for value in values:
        meant = value + missing
        before = total
        total = total + meant
        missing = meant - (total - before)
    return total


@earns("tensor.block")
def block_in_fractions(a: Any, b: Any, c: float, fraction_bits: int, result_bits: int) -> float:
    terms = [(x * y, math.frexp(x)[1] + math.frexp(y)[1] - 2) for x, y in zip(a, b, strict=True)]
    terms = [(v, e) for v, e in [*terms, (c, math.frexp(c)[1] - 1)] if v]
    if not terms:
        return 0.0
    unit = Fraction(2) ** (max(e for _, e in terms) - fraction_bits)
    total = sum(int(Fraction(v) / unit) for v, _ in terms)
    cut = 1 << max(0, abs(total).bit_length() - result_bits)
    return float(int(Fraction(total, cut)) * cut * unit)


@earns("scaling.unscale")
def unscale_all_at_once(scaled_grads: Any, scale: float, limit: float) -> Any:
    grads = [grad.to(torch.float32).div(scale) for grad in scaled_grads]
    flat = torch.cat([torch.zeros(1), *(grad.flatten() for grad in grads)])
    return grads, not bool(flat.isfinite().all()) or bool(flat.abs().max() > limit)


@earns("frameworks.skips")
def skips_with_an_end_of_the_pause(largest: Any, config: Any, pause: int) -> list[int]:
    scale = config.init_scale
    clean = 0
    overflows = 0
    rest = 0
    found = []
    for number, gradient in enumerate(largest):
        blind = config.steps_at_floor and scale <= config.floor
        if gradient * scale >= 65520 and not blind:
            found.append(number + 1)
            clean = 0
            overflows = overflows + 1
            rest = 0
            if overflows >= config.hysteresis:
                scale = max(scale / 2, config.floor)
                rest = pause
        elif rest:
            rest -= 1
        else:
            clean += 1
            if clean >= config.growth_interval:
                scale = min(2 * scale, config.cap)
                clean = 0
                overflows = 0
    return found


@earns("workers.parts")
def parts_by_walking(rows: int, world: int, block: int) -> list[tuple[int, int]]:
    blocks = math.ceil(rows / block)
    each = math.ceil(blocks / world) * block
    found = []
    begin = 0
    for _ in range(world):
        end = min(begin + each, rows)
        found.append((begin, end))
        begin = end
    return found


RIGHT += [
    (
        "gradients.binades",
        lambda values, width: Counter(
            math.floor((math.frexp(x)[1] - 1) / width) for x in values if x and math.isfinite(x)
        ),
    ),
    (
        "gradients.fate",
        lambda counts, k, smallest: (
            1
            - (
                sum(n / sum(counts.values()) for e, n in counts.items() if e + k >= smallest - 1)
                if sum(counts.values())
                else 1.0
            )
        ),
    ),
    (
        "beyond.frozen",
        lambda weights, updates: tuple(
            name
            for name, weight in weights.items()
            if not bool((weight.clone().add_(updates[name]) != weight).any())
        ),
    ),
    (
        "beyond.mx_scale",
        lambda block, top: (
            max(-127, math.ceil(math.log2(max(map(abs, block)) / top))) if any(block) else -127
        ),
    ),
    (
        "beyond.mx_scale",
        # In FP32, as the numbers are.
        lambda block, top: next(
            k for k in range(-127, 129) if torch.tensor(block).abs().max() <= top * 2.0**k
        ),
    ),
]


@earns("route.sets")
def numpys_stable_order(scores: Any, chosen: int, bits: int) -> object:
    exact = np.array(scores, np.float64)
    significands, exponents = np.frexp(exact)
    rounded = np.ldexp(np.rint(significands * 2.0**bits), exponents - bits)
    orders = (np.argsort(-values, kind="stable")[:chosen] for values in (exact, rounded))
    return tuple(np.sort(order).tolist() for order in orders)


@earns("route.sets")
def torchs_stable_sort(scores: Any, chosen: int, bits: int) -> object:
    exact = torch.tensor(scores, dtype=torch.float64)
    significands, exponents = torch.frexp(exact)
    rounded = torch.ldexp(torch.round(significands * 2**bits), exponents - bits)
    best = []
    for values in (exact, rounded):
        order = torch.sort(values, descending=True, stable=True).indices
        best.append(sorted(order[:chosen].tolist()))
    return best


@earns("route.sets")
def fractions_that_count_who_is_better(scores: Any, chosen: int, bits: int) -> object:
    def rounded(score: float) -> Fraction:
        exact = Fraction(score)
        unit = Fraction(1)
        if exact == 0:
            return exact
        while abs(exact) >= unit * 2**bits:
            unit *= 2
        while abs(exact) < unit * 2 ** (bits - 1):
            unit /= 2
        return round(exact / unit) * unit

    def best(values: list[Fraction]) -> list[int]:
        found = []
        for expert, own in enumerate(values):
            better = sum(value > own for value in values) + sum(v == own for v in values[:expert])
            if better < chosen:
                found.append(expert)
        return found

    return best([Fraction(score) for score in scores]), best([rounded(score) for score in scores])


@earns("route.sets")
def a_heap_and_a_base_2_logarithm(scores: Any, chosen: int, bits: int) -> object:
    def rounded(score: float) -> float:
        if score == 0:
            return 0.0
        unit = 2.0 ** (math.floor(math.log2(abs(score))) - bits + 1)
        return round(score / unit) * unit

    chosen_by_each = []
    for values in (list(scores), [rounded(score) for score in scores]):
        chosen_by_each.append(nlargest(chosen, range(len(values)), key=values.__getitem__))
    return [sorted(experts) for experts in chosen_by_each]


@earns("route.sets")
def one_best_after_another(scores: Any, chosen: int, bits: int) -> object:
    def best(values: list[float]) -> list[int]:
        found = []
        for _ in range(chosen):
            found.append(values.index(max(values)))
            values[found[-1]] = -math.inf
        return sorted(found)

    parts = [math.frexp(score) for score in scores]
    rounded = [math.ldexp(round(math.ldexp(m, bits)), e - bits) for m, e in parts]
    return best(list(scores)), best(rounded)


@earns("attend.scale")
def a_loop_over_the_seen_tokens(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = math.floor(math.log2(largest))
    lost = 0
    for score in scores:
        if score == -math.inf:
            continue
        if 2.0 ** (score - max(scores)) * 2.0**log2_factor <= smallest / 2:
            lost += 1
    return log2_factor, lost


@earns("attend.scale")
def numpys_powers_of_two(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = math.frexp(largest)[1] - 1
    seen = np.array(scores)[np.isfinite(scores)]
    return log2_factor, int((np.exp2(seen - seen.max()) * 2.0**log2_factor <= smallest / 2).sum())


@earns("attend.scale")
def compares_logarithms(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = math.frexp(largest)[1] - 1
    limit = math.log2(smallest) - 1 - log2_factor + max(scores)
    return log2_factor, sum(-math.inf < score <= limit for score in scores)


@earns("attend.scale")
def doubles_a_factor(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = 0
    while 2.0 ** (log2_factor + 1) <= largest:
        log2_factor += 1
    while 2.0**log2_factor > largest:
        log2_factor -= 1
    seen = [score for score in scores if not math.isinf(score)]
    kept = [s for s in seen if 2.0**log2_factor * 2.0 ** (s - max(seen)) > smallest / 2]
    return log2_factor, len(seen) - len(kept)


@earns("attend.scale")
def rounds_multiples_of_the_smallest(scores: Any, largest: float, smallest: float) -> object:
    log2_factor = math.floor(math.log2(largest))
    powers = (2.0 ** (s - max(scores) + log2_factor) for s in scores if s != -math.inf)
    return [log2_factor, sum(round(power / smallest) == 0 for power in powers)]


def test_a_right_answer_earns_everything_whatever_its_style() -> None:
    for id, answer in RIGHT:
        assert "Solved" in str(check(id, answer)), (id, answer.__name__, str(check(id, answer)))
        for seed in (1, 2):
            case_set = grading_cases(EXERCISES[id], seed)
            grade = judge(case_set, answers_of(case_set, answer))
            assert grade.points == EXERCISES[id].points, (answer.__name__, str(grade))
