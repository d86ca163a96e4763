"""Can you sort a model's parameters into groups that master weights keep apart?

The point: weight decay is for matrices and filters; biases and the weights of normalisation layers have one dimension
and get none, frozen parameters are in no group, and the dimensions tell them apart where names do not (`ln_1.weight`).
Oracle in the tests: the layers of real torch models.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import cast

from labkit.grading.exercise import Case, Check, Exercise, mistake, mistakes_in

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
def everything_decays(parameters: list[Parameter]) -> Answer:
    """This is one group for all: biases and norms decay as well."""
    return _sorted(parameters, lambda name, shape: True)


@mistake
def biases_by_name(parameters: list[Parameter]) -> Answer:
    """This is what looking for `bias` gives: the weight of a normalisation layer is called weight."""
    return _sorted(parameters, lambda name, shape: "bias" not in name)


@mistake
def norms_by_name(parameters: list[Parameter]) -> Answer:
    """This is what looking for `bn` and `norm` gives. `ln_1.weight` is a norm too; its shape tells."""
    return _sorted(parameters, lambda name, shape: not any(word in name for word in ("bias", "norm", "bn")))


@mistake
def by_the_word_weight(parameters: list[Parameter]) -> Answer:
    """This is what leaving embeddings out of weight decay gives. The rule asked for goes by dimensions."""
    return _sorted(parameters, lambda name, shape: len(shape) > 1 and not name.startswith("wte"))


@mistake
def the_other_way_round(parameters: list[Parameter]) -> Answer:
    """This is the two groups exchanged."""
    return _sorted(parameters, lambda name, shape: len(shape) <= 1)


@mistake
def keeps_the_frozen(parameters: list[Parameter]) -> Answer:
    """This is what giving frozen parameters to the optimizer gives: weight decay moves them without a gradient."""
    return _sorted(parameters, lambda name, shape: len(shape) > 1, frozen=True)


@mistake
def four_dimensions_do_not_decay(parameters: list[Parameter]) -> Answer:
    """This is what asking for two dimensions gives: a convolution's filters have four."""
    return _sorted(parameters, lambda name, shape: len(shape) == 2)


@mistake
def loses_the_single_number(parameters: list[Parameter]) -> Answer:
    """This is what asking for one dimension gives: a parameter without dimensions is in neither group."""
    return {
        "decay": reference(parameters)["decay"],
        "no decay": [name for name, shape, trainable in parameters if trainable and len(shape) == 1],
    }


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
    mistakes=mistakes_in(vars()),
)
