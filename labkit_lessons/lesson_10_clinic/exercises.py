"""Exercises of lesson 10: a diagnosis that fits the run, and a repaired training in 16 bits.

Each exercise is a consultation. The lesson's solution is the repaired training, the diagnosis that
it returns is the right one, and a known mistake is an edit of the solution.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch

from labkit.grading.draws import always
from labkit.grading.exercise import Case, Check, Edit, Exercise, Mistake, wrong
from labkit.grading.solutions import Solutions

from .cases import treat
from .diagnoses import Diagnosed
from .replay import TEXTS
from .runs import treated

solution = Solutions(__file__)
FIRST_LOOK = 2
"""How many batches a training runs until its diagnosis is read."""


def _consultation(
    word: str,
    notes: str,
    places: str,
    as_it_came: tuple[Edit, ...],
    fp32: tuple[Edit, ...],
    *own: Mistake,
) -> Exercise:
    """Return the exercise of a consultation.

    Args:
        word: The word for the exercise in its id.
        notes: The point of the exercise, for teachers.
        places: The words among which a diagnosis names one, separated by commas.
        as_it_came: Edits that take the repair away.
        fp32: Edits that take the 16 bits away.
        *own: Further known mistakes.
    """
    # The solution's last line is `return losses, DIAGNOSIS`.
    (returned,) = re.findall(
        r"^    return losses, (.*)$", solution.source(f"clinic.{word}"), re.MULTILINE
    )
    train: Callable[..., Any] = getattr(solution, f"my_{word}_training")
    return Exercise(
        id=f"clinic.{word}",
        checks=(
            Check(
                "the diagnosis fits the run",
                1,
                always((0, FIRST_LOOK)),
                outcome=Diagnosed(eval(returned), tuple(places.split(", "))),
            ),
            Check(
                "the repaired training learns, in 16 bits, from all",
                2,
                partial(_drawn, word),
                outcome=partial(treated, word),
            ),
        ),
        mistakes=(
            wrong(
                "repairs nothing",
                "this is the training as it came. It was diagnosed well; now repair it.",
                replace=as_it_came,
            ),
            wrong(
                "all in FP32",
                "this learns, in FP32. The fault is at one place; leave the rest in 16 bits.",
                replace=fp32,
            ),
            wrong(
                "leaves batches out",
                "this leaves batches out. They are what there is to learn from.",
                lambda model, batches: train(model, batches[::2]),
            ),
            *own,
        ),
        notes=notes,
        provides={"torch": torch},
        run_by=partial(treat, word),
    )


def _drawn(word: str, random: Random) -> list[Case]:
    return [(random.choice(TEXTS[word].seeds), None)]


FP32 = (("torch.float16)", "torch.float16, enabled=False)"),)
CLEAN = (("outputs.float().softmax", "outputs.softmax"),)
HALF = (("    optimizer =", "    model.half()\n    optimizer ="),)
IN_BF16 = (
    ("model.linear.bfloat16()", "model.bfloat16()"),
    ("inputs.flatten(1)).bfloat16()", "inputs.flatten(1).bfloat16())"),
)
MASK_LINE = "            scores = scores.masked_fill(padding[:, None], LOWEST)\n"
TWO_MASKS = (
    (
        MASK_LINE,
        "            mask = padding[:, None].half() * LOWEST\n"
        "            scores = scores + mask + mask\n",
    ),
)
UNCLAMPED = (("inputs.clamp(0, 1)", "inputs"),)
DECIDED = """\
        forward = staticmethod(
            torch.amp.custom_fwd(Project.forward, device_type="cpu", cast_inputs=torch.float32)
        )
        backward = staticmethod(torch.amp.custom_bwd(Project.backward, device_type="cpu"))
"""
SILENT = """\
        @staticmethod
        def backward(ctx, grad):
            _, weight = ctx.saved_tensors
            return grad @ weight.to(grad.dtype), None
"""


def _passed_over(condition: str, line: str) -> Edit:
    """Return the edit that passes over a batch where a condition holds, in front of a line."""
    return (
        f"        {line}",
        f"        if {condition}:\n            losses.append(0.0)\n            continue\n"
        f"        {line}",
    )


EXERCISES = (
    _consultation(
        "clip",
        "Gradients are clipped while they are still scaled, and SGD makes steps 65,536 times "
        "too short.",
        "autocast, backward, clip_grad_norm_, scaler.step, learning rate",
        (("        scaler.unscale_(optimizer)\n", ""),),
        FP32,
        wrong(
            "blames the learning rate",
            "this names the learning rate. A larger one would hide the fault; the "
            "gradients are short before it acts.",
            replace=('("clip_grad_norm_"', '("learning rate"'),
        ),
        wrong(
            "switches the scaler off",
            "this clips what was never scaled: its scaler is switched off. Scale the loss, and "
            "unscale in time.",
            replace=('GradScaler("cpu")', 'GradScaler("cpu", enabled=False)'),
        ),
        wrong(
            "gives the length that was meant",
            "this is the length that clipping was to leave. The optimizer gets "
            "gradients that were unscaled after it.",
            replace=("2**-16", "1.0"),
        ),
        wrong(
            "forgets to step",
            "this clips what was unscaled, and then takes no step: `scaler.step(optimizer)`, and "
            "not the optimizer's.",
            replace=("        scaler.step(optimizer)\n", ""),
        ),
    ),
    _consultation(
        "unscale",
        "The weights that are trained were made FP16, and the scaler refuses their gradients.",
        "inputs, weights, loss, gradients, scale",
        HALF,
        FP32,
        wrong(
            "names what the error names",
            "this names the gradients, as the error does. They are FP16 because something else is.",
            replace=('"weights"', '"gradients"'),
        ),
        wrong(
            "takes a whole spacing",
            "this is the distance to the next number. What is not more than half of it "
            "rounds back.",
            replace=("2**-14", "2**-13"),
        ),
        wrong(
            "throws the scaler away",
            "this is no longer refused: no check is left. The weights are still FP16, and "
            "small updates are swallowed.",
            replace=(*HALF, ('GradScaler("cpu")', 'GradScaler("cpu", enabled=False)')),
        ),
    ),
    _consultation(
        "region",
        "Autocast is switched off around a loss, and what enters the region is FP16 all the same.",
        "model, softmax, log, backward, scaler.update",
        CLEAN,
        FP32,
        wrong(
            "names where it was noticed",
            "this names the scaler. It halves its scale because of NaN, and no scale "
            "cures that of a forward pass.",
            replace=('("log"', '("scaler.update"'),
        ),
        wrong(
            "takes 1e-8 for what it is in FP32",
            "this is 1e-8 as it was written. It is added to an FP16 tensor, "
            "and there it is another number.",
            replace=("0.0)", "1e-8)"),
        ),
        wrong(
            "replaces NaN by 0",
            "this makes 0 of a loss that is NaN, and of its gradients too: nothing is learned.",
            replace=(*CLEAN, (".sum(1).mean()", ".sum(1).mean().nan_to_num()")),
        ),
    ),
    _consultation(
        "schedule",
        "The learning rate falls while the scaler still looks for its scale, and skips.",
        "autocast, backward, scaler.step, scaler.update, schedule.step",
        (("scaler.get_scale() >= before", "True"),),
        FP32,
        wrong(
            "blames the scaler",
            "this blames the scaler. It looks for its scale, and skips meanwhile: that is its "
            "work.",
            replace=('("schedule.step"', '("scaler.step"'),
        ),
        wrong(
            "counts all steps",
            "this counts all steps. Return those that were skipped: where the scale fell.",
            replace=("21)", "64)"),
        ),
        wrong(
            "takes the schedule away",
            "this never lowers the learning rate. It was meant to fall to 0, over the "
            "steps that are taken.",
            replace=("scaler.get_scale() >= before", "False"),
        ),
    ),
    _consultation(
        "function",
        "A function of one's own leaves its dtypes to autocast, which is off in the backward pass.",
        "forward, backward, loss, optimizer.step",
        (("Decided.apply", "Project.apply"),),
        FP32,
        wrong(
            "names the forward pass",
            "this names the forward pass. There autocast is on, and casts what meets in a product.",
            replace=('("backward"', '("forward"'),
        ),
        wrong(
            "names the gradient",
            "this names the gradient. It has the dtype of the output, FP16; the error says "
            "that another one is float.",
            replace=('"weight")', '"grad")'),
        ),
        wrong(
            "gives the weight no gradient",
            "this returns None where the weight's gradient belongs: no error, and a "
            "weight that stands still.",
            replace=(DECIDED, SILENT),
        ),
    ),
    _consultation(
        "mask",
        "One example of one batch has no token at all, and its row of a softmax is 0 / 0.",
        "embed, mix, scores, softmax, head, loss",
        TWO_MASKS,
        FP32,
        wrong(
            "names where it was noticed",
            "this names the loss. There NaN was noticed; it was born earlier in the forward pass.",
            replace=('("softmax"', '("loss"'),
        ),
        wrong(
            "names the first inf",
            "this names the scores. -inf is what a mask is for. Who makes NaN of a row of it?",
            replace=('("softmax"', '("scores"'),
        ),
        wrong(
            "counts the step after",
            "this is the step after: NaN weights were in the model by then. Batches are "
            "counted from 0.",
            replace=("11)", "12)"),
        ),
        wrong(
            "takes the mask away",
            "this has no NaN and no mask: it attends to what stands where there is no token, "
            "and that is litter.",
            replace=(MASK_LINE, ""),
        ),
        wrong(
            "skips the step",
            "this passes over the loss that is NaN, and with it over 63 good examples.",
            replace=(*TWO_MASKS, _passed_over("loss.isnan()", "loss.backward()")),
        ),
    ),
    _consultation(
        "gains",
        "The gains of a norm begin at 1, and in BF16 they stay there.",
        "norm.weight, norm.bias, linear.weight, linear.bias",
        IN_BF16,
        (("    model.linear.bfloat16()\n", ""), (".flatten(1)).bfloat16()", ".flatten(1))")),
        wrong(
            "names the bias",
            "this names the bias of the norm. It begins at 0, where BF16 has numbers of any size, "
            "and it moves.",
            replace=('"norm.weight"', '"norm.bias"'),
        ),
        wrong(
            "takes a whole spacing",
            "this is the distance to the next number above 1. What is more than half of it "
            "is rounded up.",
            replace=("2**-8", "2**-7"),
        ),
        wrong(
            "raises the learning rate",
            "this moves the gains, by leaps of a hundredth, and everything else ten "
            "times too fast. Keep 1e-3.",
            replace=(*IN_BF16, ("lr=1e-3", "lr=1e-2")),
        ),
    ),
    _consultation(
        "eval",
        "The scaler keeps one broken picture out of the weights. Nothing keeps it out of the "
        "statistics.",
        "weights, gradients, statistics, loss, scale",
        UNCLAMPED,
        (*FP32, *UNCLAMPED),
        wrong(
            "names the weights",
            "this names the weights. All of them are finite: the scaler kept them from that step.",
            replace=('"statistics"', '"weights"'),
        ),
        wrong(
            "counts from 1",
            "this is the step after. Steps are counted from 0, as in the picture.",
            replace=("11)", "12)"),
        ),
        wrong(
            "passes over the batch",
            "this passes over the whole batch because of one picture: 63 good ones are "
            "lost with it.",
            replace=(*UNCLAMPED, _passed_over("inputs.max() > 1", "optimizer.zero_grad()")),
        ),
    ),
    _consultation(
        "penalty",
        "A gradient penalty is made from gradients that are still multiplied by the loss scale.",
        "autocast, loss, penalty, scaler.step, learning rate",
        (("        gradient = gradient / scaler.get_scale()\n", ""),),
        FP32,
        wrong(
            "forgets the square",
            "this is by how much the gradients are too large. The penalty is made of their "
            "squares.",
            replace=("2.0**32", "2.0**16"),
        ),
        wrong(
            "blames the loss",
            "this blames the loss, which is as it should be. What is added to it is not.",
            replace=('("penalty"', '("loss"'),
        ),
        wrong(
            "takes the penalty away",
            "this learns, without the penalty. Its author wants one; it is to be made of "
            "the true gradients.",
            replace=("loss + penalty", "loss"),
        ),
    ),
    _consultation(
        "overflow",
        "A normalisation that somebody wrote adds up squares in FP16, and their sum is inf.",
        "body, relu, sum, sqrt, head",
        (("        features = features.float()\n", ""),),
        tuple(
            (
                f"torch.float16):\n            {word}",
                f"torch.float16, enabled=False):\n            {word}",
            )
            for word in ("features", "loss")
        ),
        wrong(
            "names the layer before",
            "this names the layer before. Its features are large, and FP16 holds each of them.",
            replace=('("sum"', '("body"'),
        ),
        wrong(
            "names what follows",
            "this names the root. What goes into it is inf already, and the root of inf is inf.",
            replace=('("sum"', '("sqrt"'),
        ),
        wrong(
            "gives the largest number",
            "this is the largest number of FP16. Return the length; the sum is its square.",
            replace=("256.0", "65504.0"),
        ),
    ),
)
