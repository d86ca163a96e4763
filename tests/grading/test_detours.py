"""Detours: answers that call a library, or compute something else, earn less than full marks.

Exercises ask for more than a library function provides, such as formats with any number of bits.
An earlier form of some exercises asked for FP16 only, which many library functions answer;
`labkit grade --old-forms` grades answers in that form.
"""

import functools
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import labkit.amp
import labkit.formats
import labkit.gemm
import labkit.instrument
from labkit.formats import FP16, Format, Specials
from labkit.grading import EXERCISES, judge
from labkit.grading.former import former_of
from labkit.grading.judge import answers_of, grading_cases
from tests.grading.hand_ins import code, graded, notebook, put

Answer = Callable[..., Any]
TABLE = np.arange(65536, dtype=np.uint16).view(np.float16).astype(float).tolist()


def halves(x: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(x, np.float32).astype(np.float16)


def steps_by_steps(c: int, e: int, s: int, steps: int) -> int:
    """Take single steps, at most 100: in the sandbox, the time limit would end a longer loop."""
    for _ in range(min(steps, 100)):
        c = int(labkit.formats.next_up(c, Format("drawn", e, s)))
    return c


def histogram(values: Any) -> dict[int, int]:
    found = labkit.instrument.exponent_histogram(torch.tensor(values, dtype=torch.float32))
    return {k: found.count(k, k) for k in range(-149, 128) if found.count(k, k)}


def on_a_gpu(gpu: str, a: Any, b: Any, c: float, fraction_bits: int, result_bits: int) -> float:
    rows = torch.tensor([a]).half()
    columns = torch.tensor([b]).half().T
    total = labkit.gemm.accumulate(rows, columns, torch.tensor([[c]]), accumulator=gpu)
    return float(total)


def of_bits(scores: Any, bits: int, whole: Callable[[float], int] = round) -> list[float]:
    """Round scores to `bits` significant bits; `whole` rounds to an integer."""
    parts = [math.frexp(score) for score in scores]
    return [math.ldexp(whole(math.ldexp(m, bits)), e - bits) for m, e in parts]


def sets(exact: Any, chosen: int, rounded: Any) -> tuple[list[int], list[int]]:
    def best(values: Any) -> list[int]:
        return sorted(sorted(range(len(values)), key=lambda i: -values[i])[:chosen])

    return best(exact), best(rounded)


def lost(row: Any, largest: float, smallest: float, base: float = 2.0) -> tuple[int, int]:
    """Return the base-2 logarithm of the factor, and how many elements become 0.

    Args:
        row: The scores of a row.
        largest: The largest number of the format.
        smallest: The smallest number of the format.
        base: The base of the exponential; 2 is right.
    """
    k = math.floor(math.log2(largest))
    elements = [base ** (score - max(row)) * 2.0**k for score in row if score > -math.inf]
    return k, sum(element <= smallest / 2 for element in elements)


def to_e4m3(x: Any) -> Any:
    return np.asarray(x).astype(ml_dtypes.float8_e4m3fn).astype(float)


class Skipping:
    """The lab's scaler, run step by step."""

    def __call__(self, largest: Any, config: Any, pause: int) -> list[int]:
        state = labkit.amp.initial(config)
        skipped = []
        for number, gradient in enumerate(largest, start=1):
            found = state.scale * gradient >= 65520
            if labkit.amp.must_skip(state, found, config):
                skipped.append(number)
            state = labkit.amp.advance(state, found, config)
        return skipped


DETOURS: dict[str, list[Answer]] = {
    "numbers.decode": [
        lambda c, e, s, b: float(np.uint16(c & 0xFFFF).view(np.float16)),
        lambda c, e, s, b: float(np.array(c & 0xFFFF, np.uint16).view("float16")),
        lambda c, e, s, b: struct.unpack("<e", struct.pack("<H", c & 0xFFFF))[0],
        lambda c, e, s, b: struct.Struct("<e").unpack((c & 0xFFFF).to_bytes(2, "little"))[0],
        lambda c, e, s, b: torch.tensor([c & 0xFFFF]).to(torch.uint16).view(torch.half).item(),
        lambda c, e, s, b: {"type": np.half}["type"](TABLE[c & 0xFFFF]),
        lambda c, e, s, b: TABLE[c & 0xFFFF],
        lambda c, e, s, b: float(labkit.formats.decode(c, Format("drawn", e, s))),
        lambda c, e, s, b: float(labkit.formats.decode(c & 0xFFFF, FP16)),
        lambda c, e, s, b: float(
            labkit.formats.decode(c, Format("drawn", e, s, specials=Specials.NONE))
        ),
        lambda c, e, s, b: float(np.uint16(c & 0xFFFF).view(ml_dtypes.bfloat16)),
        lambda c, e, s, b: eval(
            "labkit.formats.decode(c, F)", {"labkit": labkit, "c": c, "F": FP16}
        ),
    ],
    "numbers.ulp": [
        lambda x, s, emin: float(np.spacing(np.float16(abs(x)))),
        lambda x, s, emin: float(np.spacing(np.float32(abs(x)))),
        lambda x, s, emin: float(np.spacing(abs(x))),
        lambda x, s, emin: float(np.nextafter(abs(x), np.inf) - abs(x)),
        lambda x, s, emin: float(labkit.formats.ulp(float(np.float16(x)), FP16)),
        lambda x, s, emin: float(np.finfo(np.float16).eps) * abs(x),
        lambda x, s, emin: float(torch.finfo(torch.float16).eps),
        lambda x, s, emin: float(np.spacing(np.float32(abs(x)))) * 2.0 ** (23 - s),
    ],
    "numbers.next_up": [
        lambda c, e, s, steps: int(
            np.nextafter(halves(TABLE[c & 0xFFFF]), np.float16(np.inf)).view(np.uint16)
        ),
        lambda c, e, s, steps: int(labkit.formats.next_up(c, Format("drawn", e, s))),
        lambda c, e, s, steps: int(labkit.formats.next_up(c & 0xFFFF, FP16)),
        steps_by_steps,
        lambda c, e, s, steps: int(np.uint32(c % 2**32) + np.uint32(steps % 2**32)),
        functools.partial(steps_by_steps),
        lambda c, e, s, steps: c + steps,
    ],
    "rounding.nearest_even": [
        lambda x, s, emin, top: float(halves(x)),
        lambda x, s, emin, top: float(np.float64(x).astype("e")),
        lambda x, s, emin, top: torch.tensor(x, dtype=torch.float16).item(),
        lambda x, s, emin, top: struct.unpack("<e", struct.pack("<e", max(-6e4, min(x, 6e4))))[0],
        lambda x, s, emin, top: float(labkit.formats.round_to(x, FP16)),
        lambda x, s, emin, top: float(labkit.formats.round_to(x, Format("drawn", 8, s))),
        lambda x, s, emin, top: float(labkit.formats.round_to(x, Format("drawn", 11, s))),
        lambda x, s, emin, top: float(np.float64(x).astype(ml_dtypes.float8_e4m3fn)),
        lambda x, s, emin, top: float(
            labkit.formats.round_to(x, Format("drawn", max(2, (2 - emin).bit_length()), s))
        ),
    ],
    "rounding.kahan": [
        lambda v, total, lost: np.float16(labkit.formats.sum_compensated(v, FP16).value),
        lambda v, total, lost: total + np.float16(labkit.formats.sum_compensated(v, FP16).value),
        lambda v, total, lost: v.sum() + total,
        lambda v, total, lost: np.float16(sum(map(float, v)) + float(total)),
        lambda v, total, lost: np.float16(labkit.formats.sum_sequential([total, *v], FP16).value),
        lambda v, total, lost: np.float16(labkit.formats.sum_compensated([total, *v], FP16).value),
    ],
    "tensor.block": [
        functools.partial(on_a_gpu, "V100"),
        functools.partial(on_a_gpu, "A100"),
        functools.partial(on_a_gpu, "H100"),
        lambda a, b, c, f, r: float(np.float32(np.dot(a, b) + c)),
        lambda a, b, c, f, r: c + sum(x * y for x, y in zip(a, b, strict=True)),
    ],
    "gradients.binades": [
        lambda values, width: histogram(values),
        lambda values, width: {k * width: n for k, n in histogram(values).items()},
        lambda values, width: {int(k / width): n for k, n in histogram(values).items()},
    ],
    "gradients.fate": [
        lambda counts, k, smallest: (
            labkit.instrument.fate(
                labkit.instrument.exponent_histogram(
                    torch.tensor(
                        [2.0 ** (e + k) for e, n in counts.items() for _ in range(n)] or [0.0]
                    )
                ),
                FP16,
            ).underflowed
        ),
        lambda counts, k, smallest: float(
            (
                halves([1.5 * 2.0 ** (e + k) for e, n in counts.items() for _ in range(n)] or [1])
                == 0
            ).mean()
        ),
    ],
    "gradients.lost": [
        lambda a, b, noise: labkit.instrument.underflow(
            dict(enumerate(a)),
            dict(enumerate(b)),
        ),
        lambda a, b, noise: labkit.instrument.zeros_inside(dict(enumerate(b))),
        lambda a, b, noise: (
            float(np.mean([float((x == 0).float().mean()) for x in b])) if b else 0.0
        ),
    ],
    "scaling.unscale": [
        lambda grads, scale, limit: labkit.amp.unscale(grads, scale),
        lambda grads, scale, limit: labkit.amp.unscale(grads, scale)[:2],
    ],
    "scaling.advance": [
        labkit.amp.advance,
        functools.partial(labkit.amp.advance),
        lambda state, found, config: getattr(labkit.amp, "adv" + "ance")(state, found, config),
        lambda state, found, config: labkit.amp.decide(state, found, config).after,
        lambda state, found, config: labkit.amp.advance(
            state,
            found,
            labkit.amp.ScalerConfig(
                growth_factor=config.growth_factor,
                backoff_factor=config.backoff_factor,
                growth_interval=config.growth_interval,
            ),
        ),
    ],
    "route.sets": [
        # Rounded wrongly: to one bit more, to one bit less, towards zero, to multiples of one step,
        # to decimal places, always to BF16.
        lambda scores, chosen, bits: sets(scores, chosen, of_bits(scores, bits + 1)),
        lambda scores, chosen, bits: sets(scores, chosen, of_bits(scores, max(1, bits - 1))),
        lambda scores, chosen, bits: sets(scores, chosen, of_bits(scores, bits, math.trunc)),
        lambda scores, chosen, bits: sets(scores, chosen, [round(x * 2**bits) for x in scores]),
        lambda scores, chosen, bits: sets(scores, chosen, [round(x, bits) for x in scores]),
        lambda scores, chosen, bits: sets(scores, chosen, torch.tensor(scores).bfloat16().tolist()),
        # Rounded to FP32 before, not rounded, of absolute values, in an unstable order, with all
        # experts at the threshold.
        lambda scores, chosen, bits: sets(
            scores, chosen, of_bits(torch.tensor(scores).tolist(), bits)
        ),
        lambda scores, chosen, bits: sets(scores, chosen, scores),
        lambda scores, chosen, bits: sets(
            [abs(x) for x in scores], chosen, [abs(x) for x in of_bits(scores, bits)]
        ),
        lambda scores, chosen, bits: tuple(
            sorted(torch.tensor(x).double().topk(chosen).indices.tolist())
            for x in (scores, of_bits(scores, bits))
        ),
        lambda scores, chosen, bits: tuple(
            [i for i, x in enumerate(values) if x >= sorted(values)[-chosen]]
            for values in (scores, of_bits(scores, bits))
        ),
    ],
    "attend.scale": [
        # With base e, with other factors, and with counts of something else.
        lambda row, top, low: lost(row, top, low, base=math.e),
        lambda row, top, low: lost(row, 2 * top, low),
        lambda row, top, low: lost(row, top / 2, low),
        lambda row, top, low: lost(row, math.ceil(top), low),
        lambda row, top, low: lost(row, 448.0, low),
        lambda row, top, low: lost(row, max(1.0, top), low),
        lambda row, top, low: lost(row, top, 2 * low),
        lambda row, top, low: lost(row, top, math.nextafter(low, 0)),
        lambda row, top, low: (lost(row, top, low)[0], lost(row, 1.0, low)[1]),
        lambda row, top, low: lost([max(-2000.0, score) for score in row], top, low),
        lambda row, top, low: lost(list(set(row)), top, low),
        lambda row, top, low: (
            8,
            int((to_e4m3(256 * np.exp2(np.subtract(row, max(row)))) == 0).sum()),
        ),
    ],
    "frameworks.skips": [Skipping(), lambda largest, config, pause: Skipping()(largest, config, 0)],
    "workers.parts": [
        lambda rows, world, block: [
            (int(part[0]), int(part[-1]) + 1) if len(part) else (rows, rows)
            for part in [*torch.arange(rows).chunk(world), *[[]] * world][:world]
        ],
        lambda rows, world, block: [
            (int(part[0]), int(part[-1]) + 1) if len(part) else (rows, rows)
            for part in np.array_split(np.arange(rows), world)
        ],
        lambda rows, world, block: [
            (int(part[0]), int(part[-1]) + 1) if len(part) else (rows, rows)
            for part in torch.arange(rows).tensor_split(world)
        ],
    ],
}


@pytest.mark.parametrize("id", DETOURS)
def test_no_detour_earns_full_marks(id: str) -> None:
    """A detour may pass those checks whose cases its library computes."""
    exercise = EXERCISES[id]
    case_set = grading_cases(exercise, 11)
    with np.errstate(all="ignore"):
        for number, answer in enumerate(DETOURS[id]):
            grade = judge(case_set, answers_of(case_set, answer))
            assert grade.points < exercise.points, (number, str(grade)[:800])


def test_every_exercise_with_a_former_form_has_detours() -> None:
    assert {id for id, exercise in EXERCISES.items() if exercise.former} <= DETOURS.keys()


@pytest.mark.parametrize("id", [id for id, e in EXERCISES.items() if e.former])
def test_a_former_form_is_the_new_one_with_its_last_arguments(id: str) -> None:
    exercise = EXERCISES[id]
    former = former_of(EXERCISES[id])
    case_set = grading_cases(former, 5)
    assert min(map(len, case_set.cases)) >= 2, (
        "every check has cases in the notebook and at grading"
    )
    assert former.points == exercise.points
    assert former.title == exercise.title
    grade = judge(case_set, answers_of(case_set, former.reference))
    assert grade.points == exercise.points, str(grade)
    assert len(former.parameters) == len(exercise.parameters) - len(exercise.former)


OLD = """import numpy as np
def my_decode(code):
    return float(np.uint16(code).view(np.float16))
"""


@pytest.mark.parametrize("by_request", [False, True], ids=["as it is", "--old-forms"])
def test_a_librarys_answer_to_a_former_form_needs_an_option(
    by_request: bool, tmp_path: Path
) -> None:
    put(tmp_path / "class" / "ada.ipynb", notebook(code(OLD, "numbers.decode")))
    options = ["--lesson", "01_numbers"]
    if by_request:
        options.append("--old-forms")
    row = graded(tmp_path / "class", tmp_path, *options)["ada", "numbers.decode"]
    if by_request:
        assert row["points"] == "7"
        assert "this is the form of an earlier release: graded by it" in row["reason"]
    else:
        assert row["points"] == "0"
        assert (
            "it is called as my_decode(code, exponent_bits, significand_bits, bias)"
            in row["reason"]
        )
        assert "--old-forms grades it" in row["reason"]
