"""Can you sort a model's parameters into groups that master weights keep apart?

The point: weight decay is for matrices and filters; biases and the weights of normalisation layers have one dimension
and get none, frozen parameters are in no group, and the dimensions tell them apart where names do not (`ln_1.weight`).
Oracle in the tests: the layers of real torch models.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import cast

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Parameter = tuple[str, tuple[int, ...], bool]
Answer = dict[str, list[str]]


def reference(parameters: list[Parameter]) -> Answer:
    """Return the names that decay and those that do not, each in the model's order.

    >>> reference([("fc.weight", (2, 3), True), ("fc.bias", (2,), True), ("ln.weight", (2,), False)])
    {'decay': ['fc.weight'], 'no decay': ['fc.bias']}
    """
    return _sorted(parameters, lambda name, shape: len(shape) > 1)


def _sorted(
    parameters: list[Parameter], decays: Callable[[str, tuple[int, ...]], bool], *, frozen: bool = False
) -> Answer:
    kept = [(name, shape) for name, shape, trainable in parameters if trainable or frozen]
    return {
        "decay": [name for name, shape in kept if decays(name, shape)],
        "no decay": [name for name, shape in kept if not decays(name, shape)],
    }


def _layers(random: Random, kinds: str, frozen: float = 0.0) -> list[Case]:
    """Return one model: "l" linear, "c" convolution, "b" batch norm, "n" layer norm, "e" embedding, "s" a scalar."""
    parameters: list[Parameter] = []
    for number, kind in enumerate(kinds):
        n, m = random.randrange(2, 64), random.randrange(2, 64)
        trainable = random.random() >= frozen
        rows = {
            "l": (("fc", "weight", (n, m)), ("fc", "bias", (n,))),
            "c": (("conv", "weight", (n, m, 3, 3)), ("conv", "bias", (n,))),
            "b": (("bn", "weight", (n,)), ("bn", "bias", (n,))),
            "n": (("ln_", "weight", (n,)), ("ln_", "bias", (n,))),
            "e": (("wte", "weight", (n, m)),),
            "s": (("logit_scale", "", ()),),
        }[kind]
        parameters += [(f"{a}{number}.{b}".rstrip("."), shape, trainable) for a, b, shape in rows]
    return [(parameters,)]


def _norms(random: Random) -> list[Case]:
    return _layers(random, "cbcbl") + _layers(random, "enlnl")


def _frozen(random: Random) -> list[Case]:
    ((model,),) = _layers(random, "cblnl")
    return [([(name, shape, number > 3) for number, (name, shape, _) in enumerate(cast("list[Parameter]", model))],)]


def _other(random: Random) -> list[Case]:
    """An embedding is a matrix; a learned temperature is one number."""
    return _layers(random, "es") + _layers(random, "esnlbc", frozen=0.3)


def _alone(random: Random) -> list[Case]:
    """A group that stays empty, or both; sizes of 1 and of 0, which are dimensions all the same; names that mislead."""
    n = random.randrange(2, 64)
    shapes = [("row", (1, n)), ("column", (n, 1)), ("one", (1, 1)), ("single", (1,)), ("none", (n, 0)), ("empty", (0,))]
    names = [("bias_table.weight", (n, n)), ("norm.bias", (n, 1, 1)), ("fc.weight", (n,))]
    models: list[list[tuple[str, tuple[int, ...]]]] = [
        [("fc.weight", (n, n))],
        [("ln.bias", (n,))],
        [("scale", ())],
        [],
        shapes,
        names,
    ]
    trained: list[Case] = [([(name, shape, True) for name, shape in model],) for model in models]
    return [*trained, ([("fc.weight", (n, n), False), ("fc.bias", (n,), False)],)]


@mistake
def norms_by_name(parameters: list[Parameter]) -> Answer:
    """This is what looking for `bn` and `norm` gives. `ln_1.weight` is a norm too; its shape tells."""
    return _sorted(parameters, lambda name, shape: not any(word in name for word in ("bias", "norm", "bn")))


# fmt: off
MISTAKES = (
    wrong("everything decays", "this is one group for all: biases and norms decay as well.",
          lambda parameters: _sorted(parameters, lambda name, shape: True)),
    wrong("biases by name", "this is what looking for `bias` gives: the weight of a normalisation layer is called "
          "weight.", lambda parameters: _sorted(parameters, lambda name, shape: "bias" not in name)),
    norms_by_name,
    wrong("by the word weight", "this is what leaving embeddings out of weight decay gives. The rule asked for goes "
          "by dimensions.",
          lambda parameters: _sorted(parameters, lambda name, shape: len(shape) > 1 and not name.startswith("wte"))),
    wrong("the other way round", "this is the two groups exchanged.",
          lambda parameters: _sorted(parameters, lambda name, shape: len(shape) <= 1)),
    wrong("keeps the frozen", "this is what giving frozen parameters to the optimizer gives: weight decay moves them "
          "without a gradient.",
          lambda parameters: _sorted(parameters, lambda name, shape: len(shape) > 1, frozen=True)),
    wrong("four dimensions do not decay", "this is what asking for two dimensions gives: a convolution's filters "
          "have four.", lambda parameters: _sorted(parameters, lambda name, shape: len(shape) == 2)),
    wrong("loses the single number", "this is what asking for one dimension gives: a parameter without dimensions is "
          "in neither group.",
          lambda parameters: {
              "decay": reference(parameters)["decay"],
              "no decay": [name for name, shape, trainable in parameters if trainable and len(shape) == 1],
          }),
)
# fmt: on

EXERCISE = Exercise(
    id="master.groups",
    title="Parameter groups",
    entry="my_groups",
    difficulty=1,
    minutes=6,
    reference=reference,
    checks=(
        Check("weights decay, biases do not", 1, lambda random: _layers(random, "ll") + _layers(random, "ccl")),
        Check("the weights of normalisation layers do not decay", 1, _norms),
        Check("frozen parameters are in no group", 1, _frozen),
        Check("embeddings, a single number, frozen layers", 1, _other),
        Check("an empty group, sizes of 1, names that mislead", 1, _alone),
    ),
    mistakes=MISTAKES,
)
