"""Exercises of lesson 09: one training in apex, torch.amp and fastai; scalers; casts of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import torch

from labkit.amp import PRESETS, ScalerConfig
from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, wrong

# --- frameworks.translate, repair and callback: the same trainings ---


def trainings(random: Random, factors: tuple[float, ...], max_norm: float) -> list[Case]:
    """Return one training: (weight[3, 4], batches of x[8, 4] and y[8, 3], max_norm).

    FP16 must round every number. At a scale of 2^16 a factor of 1 overflows nowhere, and one of 500
    everywhere.

    Args:
        random: Draws the numbers.
        factors: What the targets of each batch are multiplied by.
        max_norm: The length to which longer gradients are clipped.
    """
    weight = whole(random, (3, 4), 1, 700) / 1401
    batches = []
    for factor in factors:
        x = whole(random, (8, 4), 1, 1000) / 1001
        y = whole(random, (8, 3), 1, 1000) / 1001
        batches.append((x, factor * y))
    return [(weight, batches, max_norm)]


def several(random: Random) -> list[Case]:
    """Return trainings of one step and of three, none of which overflows or is clipped."""
    return [*trainings(random, (1.0,), 1000.0), *trainings(random, (1.0, 1.0, 1.0), 1000.0)]


def overflowing(random: Random) -> list[Case]:
    """Return trainings in which one step overflows, or two in a row."""
    return [
        *trainings(random, (1.0, 500.0, 1.0), 1000.0),
        *trainings(random, (500.0, 500.0, 1.0, 1.0), 1000.0),
    ]


def clipped(random: Random) -> list[Case]:
    """Return trainings with gradients that are too long, one of which overflows too."""
    return [*trainings(random, (1.0, 1.0), 2.0**-4), *trainings(random, (20.0, 500.0, 1.0), 0.5)]


CHECKS = (
    Check("a step, and three", 2, several),
    Check("an overflow skips its step and halves the scale", 2, overflowing),
    Check("gradients that are too long are shortened", 2, clipped),
)

TRANSLATE = Exercise(
    id="frameworks.translate",
    notes="""\
The point: apex hides three things in two calls. `initialize` casts; `scale_loss` scales and, at the
end of its block, unscales; the patched optimizer skips. torch.amp has a call for each, and their
order is yours to keep.

Invariant: where the two rules agree, and they do until a scale of 2^24, so do all bits.
Oracle in the tests: numpy, with a layer, a gradient and a scale of its own.""",
    checks=CHECKS,
    mistakes=(
        wrong(
            "clips scaled gradients",
            "this clips the scaled gradients, which are 65,536 times too long. apex has "
            "unscaled them at the end of its block; in torch it takes "
            "`scaler.unscale_(optimizer)` before clipping.",
            replace=("        scaler.unscale_(optimizer)\n", ""),
        ),
        wrong(
            "steps past the scaler",
            "this steps by `optimizer.step()`. apex had patched it to skip; torch's is "
            "not patched, and inf reaches the weights. Say `scaler.step(optimizer)`.",
            replace=("scaler.step(optimizer)", "optimizer.step()"),
        ),
        wrong(
            "never casts",
            "this trains in FP32. `amp.initialize` had patched torch's functions; here a region of "
            "`autocast` does it.",
            replace=("torch.float16)", "torch.float16, enabled=False)"),
        ),
        wrong(
            "never scales",
            "this calls backward of the loss as it is, and then divides by the scale: the steps "
            "are 65,536 times too short.",
            replace=(
                "scaler.scale(loss).backward()",
                "scaler.scale(loss)\n        loss.backward()",
            ),
        ),
        wrong(
            "never clips",
            "this forgets `clip_grad_norm_`, which the script has.",
            replace=("        nn.utils.clip_grad_norm_(layer.parameters(), max_norm)\n", ""),
        ),
        wrong(
            "adds up all gradients",
            "this forgets `zero_grad()`: gradients of earlier batches are still in the sum.",
            replace=("        optimizer.zero_grad()\n", ""),
        ),
        wrong(
            "begins a new scaler each step",
            "this makes a new GradScaler for each batch, and it remembers "
            "nothing: make one, before the loop.",
            replace=(
                "        scaler.update()\n",
                '        scaler.update()\n        scaler = GradScaler("cpu")\n',
            ),
        ),
    ),
    provides={"torch": torch},
)

CLIP = "nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
REPAIR = Exercise(
    id="frameworks.repair",
    notes="""\
The point: what apex does, it does at the end of `scale_loss`'s block. In the block the model's
gradients are scaled; after it the masters have the unscaled ones. Two of the three faults raise no
error.

Oracle in the tests: numpy, with FP32 masters and a half model of its own.""",
    checks=CHECKS,
    mistakes=(
        wrong(
            "steps in the block",
            "this still steps in the block. There the masters have no gradients yet: nothing "
            "is learnt, and no error says so.",
            replace=(
                (
                    "scaled_loss.backward()\n",
                    "scaled_loss.backward()\n            optimizer.step()\n",
                ),
                ("max_norm)\n        optimizer.step()", "max_norm)"),
            ),
        ),
        wrong(
            "clips in the block",
            "this still clips in the block, where gradients are scaled, and so 65,536 times "
            "too long.",
            replace=(
                ("scaled_loss.backward()\n", f"scaled_loss.backward()\n            {CLIP}"),
                ("        nn.utils.clip_grad_norm_(amp.master_params(optimizer), max_norm)\n", ""),
            ),
        ),
        wrong(
            "clips the models gradients",
            "this clips `model.parameters()`. Under O2 the optimizer steps FP32 "
            "masters, and those have been unscaled already: clip `amp.master_params(optimizer)`.",
            replace=("amp.master_params(optimizer), max_norm", "model.parameters(), max_norm"),
        ),
        wrong(
            "never scales",
            "this calls `loss.backward()`; what the block yields is `scaled_loss`, and that is "
            "what it unscales.",
            replace=("scaled_loss.backward()", "loss.backward()"),
        ),
        wrong(
            "gives the models weight",
            "this is the model's weight, in FP16. Return the master weight.",
            replace=("master.detach()", "model.weight.detach()"),
        ),
        wrong(
            "takes another level",
            "this is O0: all in FP32. The script says O2, a half model with FP32 masters.",
            replace=('"O2"', '"O0"'),
        ),
    ),
    provides={"torch": torch},
)

CALLBACK = Exercise(
    id="frameworks.callback",
    notes="""\
The point: the loop calls `before_x`, does x, and calls `after_x`, whatever happened. Who does x in
its place, cancels it. So the scaler steps before_step, cancels the loop's own step, and moves its
scale after_step, also of a skipped one.

Oracle in the tests: numpy, as for frameworks.translate, whose numbers these are.""",
    checks=CHECKS,
    mistakes=(
        wrong(
            "steps twice",
            "this steps, and then the loop steps too, inf or not: raise CancelStepException at the "
            "end of before_step.",
            replace=("            raise CancelStepException\n", ""),
        ),
        wrong(
            "lets the loop step",
            "this unscales, and lets the loop step, which looks for no inf: call "
            "`scaler.step(self.opt)` and cancel the loop's.",
            replace=(
                "            scaler.step(self.opt)\n            raise CancelStepException\n",
                "",
            ),
        ),
        wrong(
            "clips scaled gradients",
            "this clips the scaled gradients: `scaler.unscale_(self.opt)` comes before.",
            replace=("            scaler.unscale_(self.opt)\n", ""),
        ),
        wrong(
            "never clips",
            "this does not clip. Between unscaling and the step is the place.",
            replace=(
                "            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)\n",
                "",
            ),
        ),
        wrong(
            "never scales",
            "this leaves `learn.loss_grad` as it is, and that is what the loop calls backward of. "
            "(`learn.loss` is a copy, to be looked at.)",
            replace=("self.learn.loss_grad = scaler.scale", "scaler.scale"),
        ),
        wrong(
            "forgets the scale",
            "this makes a new GradScaler for each batch, and it remembers nothing: make one, "
            "before the training.",
            replace=(
                "            scaler.update()\n",
                "            nonlocal scaler\n            scaler.update()\n"
                '            scaler = GradScaler("cpu")\n',
            ),
        ),
    ),
    provides={"torch": torch},
)

# --- frameworks.skips ---

OVERFLOWS = 65520.0


def _gradients(random: Random, steps: int, top: int, spread: int) -> list[float]:
    """Return largest gradients from 2^(top - spread) on, below 2^(top + spread + 1)."""
    return [
        random.randrange(1025, 2047) / 1024 * 2.0 ** random.randint(top - spread, top + spread)
        for _ in range(steps)
    ]


def _rule(name: str, random: Random, **knobs: float) -> ScalerConfig:
    """Return a framework's rule with a short interval, and a start of 2^16."""
    interval = random.randint(2, 4)
    changed = {"init_scale": 2.0**16, "growth_interval": interval, **knobs}
    return replace(PRESETS[name], **changed)  # type: ignore[arg-type]


def _plain(random: Random) -> list[Case]:
    drawn: list[Case] = [(_gradients(random, 30, 0, 3), _rule("torch", random)) for _ in range(2)]
    return [*drawn, ([], ScalerConfig()), ([2.0], ScalerConfig())]


def _limit(random: Random) -> list[Case]:
    """65520 at the present scale, what is just below, and inf."""
    at = OVERFLOWS / 2.0**16
    below = math.nextafter(at, 0)
    rule = replace(PRESETS["torch"], growth_interval=50)
    return [
        ([below, at, at, below / 2, math.inf, at * 4, 0.0], rule),
        ([below, below, math.inf] * 3, rule),
    ]


def _hysteresis(random: Random) -> list[Case]:
    rules = [_rule("DeepSpeed", random), _rule("Megatron", random, hysteresis=3)]
    return [(_gradients(random, 30, 0, 2), rule) for rule in rules for _ in range(2)]


def _high(random: Random) -> list[Case]:
    """As Megatron ships its start: 2^32, and gradients far below 1."""
    return [(_gradients(random, 30, -16, 3), _rule("Megatron", random, init_scale=2.0**32))]


def _floor(random: Random) -> list[Case]:
    """Gradients that still overflow at the floor of the scale, and a floor that halving misses."""
    rules = [
        _rule(name, random, init_scale=16.0, growth_interval=3) for name in ("OneFlow", "fastai")
    ]
    drawn: list[Case] = [(_gradients(random, 20, 16, 2), rule) for rule in rules for _ in range(2)]
    # At its floor, fastai's rule does not even see inf.
    infinite = [math.inf] * random.randrange(6, 9)
    drawn.append((infinite, replace(rules[1], init_scale=2.0)))
    return [
        *drawn,
        ([9000.0] * 5, replace(rules[0], floor=6.0, growth_interval=50)),
        *_ends(random, floor=True),
    ]


def _cap(random: Random) -> list[Case]:
    """Small gradients: at apex's cap, 2^24, none overflows, and at 2^25 all do."""
    rules = [
        _rule("apex", random, init_scale=2.0**22, growth_interval=2),
        _rule("torch", random, init_scale=2.0**22),
    ]
    # Doubling 48 ends at the cap of 64.
    between = ScalerConfig(init_scale=48.0, growth_interval=1, floor=1.0, cap=64.0)
    return [
        *((_gradients(random, 24, -9, 0), rule) for rule in rules),
        ([1100.0] * 6, between),
        *_ends(random, floor=False),
    ]


def _ends(random: Random, floor: bool) -> list[Case]:
    """Return runs with all knobs set, whose scale moves between a floor and a cap.

    With `floor` some gradients overflow at the floor, otherwise some overflow at half of the cap.
    """
    cases: list[Case] = []
    for hysteresis in (1, 2, 3):
        for blind in (False, True):
            low = random.choice((1.0, 3.0, 8.0))
            high = random.choice((64.0, 96.0, 32.0))
            rule = ScalerConfig(
                init_scale=low if floor else high,
                growth_interval=random.randint(1, 3),
                hysteresis=hysteresis,
                floor=low,
                cap=high,
                steps_at_floor=blind,
            )
            cases.append((_gradients(random, 40, 14 if floor else 10, 2), rule))
    return cases


def _paused(draw: Callable[[Random], list[Case]]) -> Callable[[Random], list[Case]]:
    """Return a drawer of the same steps without and with a pause, and of a run that shows it."""

    def drawn(random: Random) -> list[Case]:
        cases = draw(random)
        paused = [(*case, random.randint(1, 3)) for case in cases]
        # A scale of 8 overflows, is halved to 4, and doubles again after the pause.
        shows = [16000.0] * random.randint(14, 20)
        rule = ScalerConfig(init_scale=8.0, growth_interval=2)
        return [*((*case, 0) for case in cases), *paused, (shows, rule, random.randint(1, 3))]

    return drawn


SKIPS = Exercise(
    id="frameworks.skips",
    notes="""\
The point: one rule and a handful of knobs. Hysteresis lets the first overflow pass without backing
off, so the next one comes sooner; a floor and a cap stop the scale; and one framework looks for
nothing once it is at its floor.

Invariant: all scales are a start, a floor or a cap times a power of two. All of these have few
significant bits, so every product is exact.
Oracle in the tests: each framework's own rule, written from its source, without `advance`.""",
    checks=(
        Check("torch's rule", 1, _paused(_plain)),
        Check("65520, what is just below, and inf", 1, _paused(_limit)),
        Check("hysteresis of 2 and of 3", 2, _paused(_hysteresis)),
        Check("a start at 2^32", 1, _paused(_high)),
        Check("at the floor, skipped or stepped", 1, _paused(_floor)),
        Check("at the cap, and without one", 1, _paused(_cap)),
    ),
    mistakes=(
        wrong(
            "knows no hysteresis",
            "this halves the scale at every overflow. With hysteresis 2 the first one since "
            "the scale last grew only skips its step.",
            replace=(">= config.hysteresis", ">= 1"),
        ),
        wrong(
            "halves one overflow too late",
            "this lets one overflow too many pass: with hysteresis 2 the second "
            "one halves the scale.",
            replace=(">= config.hysteresis", "> config.hysteresis"),
        ),
        wrong(
            "never forgives again",
            "this lets overflows pass once and for all. When the scale grows, the count starts "
            "again.",
            replace=(
                "clean = 0\n                overflows = 0",
                "clean = 0",
            ),
        ),
        wrong(
            "forgives only in a row",
            "this forgets an overflow at the next clean step. It is remembered until the "
            "scale grows.",
            replace=("clean += 1", "clean += 1\n            overflows = 0"),
        ),
        wrong(
            "knows no floor",
            "this backs off below the floor.",
            replace=(
                ("max(scale / 2, config.floor)", "scale / 2"),
                ("not config.steps_at_floor or scale > config.floor", "True"),
            ),
        ),
        wrong(
            "knows no cap",
            "this grows beyond the cap.",
            replace=("min(scale * 2, config.cap)", "scale * 2"),
        ),
        wrong(
            "looks for inf at the floor",
            "this skips at the floor too, where `steps_at_floor` turns the check "
            "off: there an overflow is a clean step.",
            replace=("not config.steps_at_floor or scale > config.floor", "True"),
        ),
        wrong(
            "skips inf at the floor",
            "this skips a gradient of inf at the floor. `steps_at_floor` turns the check "
            "off there: the scaler does not look at all.",
            replace=(
                "if looks and scale * gradient >= 65520",
                'if gradient == float("inf") or (looks and scale * gradient >= 65520)',
            ),
        ),
        wrong(
            "knows no pause",
            "this counts every clean step. After a halving, `pause` of them do not count.",
            replace=("clean = -pause", "clean = 0"),
        ),
        wrong(
            "pauses after every overflow",
            "this pauses after every overflow. Where hysteresis keeps the scale, the count "
            "starts at 0.",
            replace=(
                "clean = 0\n            overflows += 1",
                "clean = -pause\n            overflows += 1",
            ),
        ),
        wrong(
            "goes on counting",
            "this goes on counting clean steps after an overflow. The count starts again.",
            replace=("clean = 0\n            overflows += 1", "overflows += 1"),
        ),
        wrong(
            "overflows at 65536",
            "this lets 65520 pass, which FP16 rounds to inf.",
            replace=("65520", "65536"),
        ),
        wrong(
            "counts from zero",
            "this counts steps from 0; the first one is step 1.",
            replace=("start=1", "start=0"),
        ),
    ),
    former=(0,),
)


# --- frameworks.casts ---

RULES = ("allow", "deny", "promote", "keep")
GIVEN = {"x": "FP32", "w1": "FP32", "w2": "FP32", "mask": "FP16"}


def _six(*lines: str) -> Case:
    """Return a graph from a line for each node: its name, its rule and its inputs."""
    words = [line.split() for line in lines]
    return dict(GIVEN), [(name, rule, inputs) for name, rule, *inputs in words]


def _worked(_: Random) -> list[Case]:
    return [
        _six(
            "a allow x w1", "b keep a", "c allow b w2", "d promote c x", "e deny d", "f allow e w1"
        ),
        _six(
            "a allow x w1", "b deny a", "c keep b", "d allow c w2", "e promote d mask", "f deny e"
        ),
    ]


def _shared(_: Random) -> list[Case]:
    """Tensors that several nodes need, in both formats, and twice in one operation."""
    return [
        _six(
            "a allow x w1", "b allow x w1", "c deny a", "d deny a", "e promote c b", "f allow x x"
        ),
        _six(
            "a allow x x",
            "b deny mask mask",
            "c promote w1 mask w1",
            "d promote mask mask x",
            "e allow b b",
            "f deny a a",
        ),
        _six(
            "a deny mask",
            "b promote mask x",
            "c allow a w2",
            "d allow b w2",
            "e promote a c",
            "f deny mask c",
        ),
    ]


def _narrow(_: Random) -> list[Case]:
    """Promote of FP16 alone, of FP32 alone and of three inputs; keep of one format and of both."""
    return [
        _six(
            "a allow x w1",
            "b promote a mask w2",
            "c allow b w2",
            "d promote a mask c",
            "e deny d",
            "f keep d",
        ),
        _six(
            "a allow x w1",
            "b promote a mask",
            "c keep mask x",
            "d promote x w1",
            "e keep x mask",
            "f promote c e",
        ),
        _six(
            "a promote x mask",
            "b keep a",
            "c promote mask mask",
            "d keep c",
            "e deny d",
            "f promote d b",
        ),
    ]


def _drawn(random: Random) -> list[Case]:
    """Six random nodes, whose inputs are tensors of earlier nodes or of the graph."""
    cases: list[Case] = []
    for _ in range(4):
        tensors = list(GIVEN)
        lines: list[str] = []
        for name in "abcdef":
            rule = random.choice(RULES)
            count = 1 if rule in ("deny", "keep") else 2
            inputs = random.sample(tensors, count)
            lines.append(" ".join((name, rule, *inputs)))
            tensors.append(name)
        cases.append(_six(*lines))
    return cases


CASTS = Exercise(
    id="frameworks.casts",
    notes="""\
The point: the rule of an operation says in which format it wants its inputs, and so which format
comes out. A cast stands where the two differ. Decided for the whole graph, a tensor is cast to a
format once, however many need it.

Oracle in the tests: labkit.amp.explain of the same network, run under autocast.""",
    checks=(
        Check("six nodes in a row", 1, _worked),
        Check("a tensor that several need", 1, _shared),
        Check("promote and keep", 1, _narrow),
        Check("graphs by chance", 1, _drawn),
    ),
    mistakes=(
        wrong(
            "casts anew each time",
            "this casts a tensor again for each node that needs it. The graph is known as "
            "a whole: one cast will do.",
            replace=(" and (source, wanted) not in casts", ""),
        ),
        wrong(
            "promotes to FP16",
            "this takes the narrowest format where `promote` takes the widest.",
            replace=(
                'rule == "allow"',
                'rule == "allow" or (rule == "promote" and "FP16" in held)',
            ),
        ),
        wrong(
            "casts what is kept",
            "this casts the inputs of `keep` to FP32. It computes in the format that comes, "
            "and passes it on.",
            replace=(
                ('rule == "deny" or', 'rule in ("deny", "keep") or'),
                ('rule != "keep"', "True"),
            ),
        ),
        wrong(
            "keeps in FP16",
            "this casts the inputs of `keep` to FP16. It computes in the format that comes, and "
            "passes it on.",
            replace=(('rule == "allow"', 'rule in ("allow", "keep")'), ('rule != "keep"', "True")),
        ),
        wrong(
            "casts back after deny",
            "this takes the result of `deny` for FP16. No cast goes back: FP32 comes out, "
            "and the next node asks for what it wants.",
            replace=(
                "formats[name] = wanted",
                'formats[name] = "FP16" if rule == "deny" else wanted',
            ),
        ),
        wrong(
            "looks at the first input alone",
            "this casts the first input and forgets the others. Weights are inputs too.",
            replace=("for source in inputs:", "for source in inputs[:1]:"),
        ),
        wrong(
            "casts what is right already",
            "this casts tensors that have the format already.",
            replace=("formats[source] != wanted and ", ""),
        ),
        wrong(
            "turns the pairs round",
            "this gives (format, tensor). The tensor comes first.",
            replace=("return casts", "return [(wanted, source) for source, wanted in casts]"),
        ),
    ),
)

EXERCISES = (TRANSLATE, REPAIR, SKIPS, CALLBACK, CASTS)
