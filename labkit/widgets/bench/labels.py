"""How are knobs called, what was turned, and why does one of them mean nothing where the others stand?"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from labkit.amp import WeightRounding
from labkit.train import Task
from labkit.widgets.bench.positions import ALL, EPSILONS, POSITIONS, Knobs, Scaling


def why_fixed(knobs: Knobs, task: Task, offered: Collection[str] = ALL) -> dict[str, str]:
    """Return knob -> why it means nothing where the others stand; knobs that mean something are left out.

    >>> from labkit.train import TASKS
    >>> why_fixed(Knobs(), TASKS["digits"])
    {'epsilon': 'this task is trained with SGD, which has no epsilon'}
    """
    why: dict[str, str] = {}
    if knobs.format == "FP32":
        multiplied = _multiplied(knobs)
        words = f"layers multiply {multiplied}; all else is FP32" if multiplied else "everything is FP32"
        why |= dict.fromkeys(("autocast", "norms_fp32", "accumulator"), words)
        why["masters"] = "the model itself is FP32 here, so its weights are their own master"
    elif knobs.autocast:
        why["norms_fp32"] = "autocast's lists decide what a norm computes in"
        why["masters"] = "under autocast the weights are FP32 themselves, and their own master"
    elif knobs.masters == "none" and "format" not in offered:
        why["masters"] = (
            f"this recipe's optimizer steps {knobs.format} weights, and master weights are FP32: that is another run"
        )
    if knobs.format == "BF16" and knobs.accumulator == "V100":
        why["accumulator"] = "a V100 multiplies no BF16; the sums are FP32"
    if not has_epsilon(task):
        why["epsilon"] = f"this task is trained with {optimizer_name(task)}, which has no epsilon"
    return {name: words for name, words in why.items() if name in offered}


def describe(knobs: Knobs) -> str:
    """Return the positions in words, only what matters.

    >>> describe(Knobs(autocast=True, scaling=Scaling.DYNAMIC, log2_lr=2))
    'FP16 by autocast with dynamic scaling and 4 times the learning rate'
    """
    emulated, converted = knobs.format != "FP32", knobs.format != "FP32" and not knobs.autocast
    static_scale = f"a static scale of 2^{knobs.log2_scale}"
    has = {Scaling.OFF: [], Scaling.STATIC: [static_scale], Scaling.DYNAMIC: ["dynamic scaling"]}[knobs.scaling]
    has += [f"{_an(knobs.format)} optimizer"] * (converted and knobs.masters == "none")
    has += [f"norms in {knobs.format}"] * (converted and not knobs.norms_fp32)
    forgets = converted and knobs.masters == "forgotten"
    has += [f"{knobs.given.rounding.value} rounding"] * (forgets and knobs.given.rounding is not WeightRounding.NEAREST)
    has += [f"{_multiplied(knobs)} operands"] if _multiplied(knobs) and not emulated else []
    has += [f"sums of {_sums(knobs.accumulator)}"] * (emulated and knobs.accumulator != "FP32")
    has += [f"{_times(knobs.log2_lr)} the learning rate"] * (knobs.log2_lr != 0)
    has += [] if knobs.epsilon is None else [f"epsilon {epsilon_text(knobs.epsilon)}"]
    lacks = ["scaling"] * (knobs.scaling is Scaling.OFF and knobs.format not in ("FP32", "BF16"))
    lacks += ["master weights"] * (converted and knobs.masters == "forgotten")
    said = knobs.format + " by autocast" * (knobs.autocast and emulated)
    said += f" with {_joined(has, 'and')}" * bool(has)
    return said + ("," * bool(has) + f" without {_joined(lacks, 'or')}") * bool(lacks)


def _multiplied(knobs: Knobs) -> str:
    """Return the format of what layers multiply under an FP32 recipe, "" where that is FP32 too."""
    if knobs.given.products is not None:
        return knobs.given.products.forward.name
    return "TF32" if knobs.given.tf32 else ""


def _joined(words: Sequence[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def changed(before: Knobs, after: Knobs) -> str:
    """Return what was turned, short enough for a label in the figure; an empty text for nothing.

    >>> changed(Knobs(), Knobs(scaling=Scaling.STATIC, masters="forgotten"))
    'scaling on, 2^10, master weights forgotten'
    """
    off = Scaling.OFF is after.scaling
    names = [n for n in ("scaling", *POSITIONS) if getattr(before, n) != getattr(after, n)]
    words = [_change(name, before, after) for name in names if not (name == "log2_scale" and off)]
    if not words and before.given != after.given:
        return after.given.name
    return ", ".join(dict.fromkeys(words))


def _change(name: str, before: Knobs, knobs: Knobs) -> str:
    match name:
        case "scaling" | "log2_scale":
            on = {Scaling.OFF: "scaling off", Scaling.STATIC: "scaling on, 2^{}", Scaling.DYNAMIC: "dynamic, from 2^{}"}
            words = "scale 2^{}" if before.scaling is knobs.scaling else on[knobs.scaling]
            return words.format(knobs.log2_scale)
        case "autocast":
            return "autocast on" if knobs.autocast else "autocast off"
        case "norms_fp32":
            return f"norms in {'FP32' if knobs.norms_fp32 else knobs.format}"
        case "accumulator":
            return f"sums of {_sums(knobs.accumulator)}"
        case "masters":
            return f"{knobs.format} optimizer" if knobs.masters == "none" else f"master weights {knobs.masters}"
        case "log2_lr":
            return f"learning rate × {_times(knobs.log2_lr, '')}"
        case "epsilon":
            return "the task's own epsilon" if knobs.epsilon is None else f"epsilon {epsilon_text(knobs.epsilon)}"
    return knobs.format


def _sums(accumulator: str) -> str:
    return {"FP16": "FP16", "FP32": "FP32"}.get(accumulator, f"a {accumulator}")


def _an(format: str) -> str:
    return f"{'an' if format == 'FP16' else 'a'} {format}"


def _times(exponent: int, word: str = " times") -> str:
    return f"{2**exponent}{word}" if exponent >= 0 else f"1/{2**-exponent}" + (" of" if word else "")


def epsilon_text(epsilon: float) -> str:
    """Return 1e-08 as 1e-8."""
    digits, exponent = f"{epsilon:.0e}".split("e")
    return f"{digits}e{int(exponent)}"


def optimizer_name(task: Task) -> str:
    """Return the name of the class of a task's optimizer."""
    return str(getattr(getattr(task.make_optimizer, "func", task.make_optimizer), "__name__", "its own optimizer"))


def has_epsilon(task: Task) -> bool:
    """Say whether a task's optimizer divides by a root plus epsilon."""
    return "Adam" in optimizer_name(task)


def own_epsilon(task: Task) -> float:
    """Return the epsilon that a task gives its Adam, or Adam's own 1e-8."""
    return float(getattr(task.make_optimizer, "keywords", {}).get("eps", EPSILONS[0]))
