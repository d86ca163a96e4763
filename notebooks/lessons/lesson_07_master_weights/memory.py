"""Can you write the memory bill of a model's parameters?

The point: mixed precision with master weights keeps *as many* bytes per parameter as FP32 training does; what it saves
are activations. Oracle in the tests: the tensors of torch.optim.Adam and SGD, counted.

Source: arXiv:1910.02054 (ZeRO), section 3.1, counts the same 16 bytes for mixed precision with Adam.
"""

from __future__ import annotations

from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong


def reference(parameters: int, model_bits: int, master: bool, moments: int) -> int:
    """Return the bytes of weights, gradients, master weights and optimizer state.

    >>> reference(1, 32, False, 2), reference(1, 16, True, 2), reference(1, 16, False, 2)
    (16, 16, 8)
    """
    model = model_bits // 8
    optimizer = 4 if master else model
    return parameters * (model + model + (4 if master else 0) + moments * optimizer)


def _parameters(random: Random) -> int:
    return random.randrange(1_000, 1_000_000_000)


def _fp32(random: Random) -> list[Case]:
    return [*((_parameters(random), 32, False, moments) for moments in (0, 1, 2)), (1, 32, False, 2)]


def _mixed(random: Random) -> list[Case]:
    """And FP32 masters beside an FP32 model, which somebody may keep: the bill has them twice."""
    return [(_parameters(random), bits, True, moments) for bits in (16, 32) for moments in (0, 1, 2)]


def _pure(random: Random) -> list[Case]:
    return [(_parameters(random), 16, False, moments) for moments in (0, 1, 2)]


def _bill(weights: float, gradients: float, master: float, moments: float, parameters: int) -> int:
    return int(parameters * (weights + gradients + master + moments))


def _master_bytes(master: bool) -> int:
    return 4 if master else 0


@mistake
def forgets_the_gradients(parameters: int, model_bits: int, master: bool, moments: int) -> int:
    """This is the bill without gradients. There is one for every weight, in the model's format."""
    return _bill(model_bits / 8, 0, _master_bytes(master), moments * (4 if master else model_bits // 8), parameters)


@mistake
def forgets_the_master(parameters: int, model_bits: int, master: bool, moments: int) -> int:
    """This is the bill without master weights: four more bytes for every parameter."""
    return _bill(model_bits / 8, model_bits / 8, 0, moments * (4 if master else model_bits // 8), parameters)


@mistake
def state_in_the_format_of_the_model(parameters: int, model_bits: int, master: bool, moments: int) -> int:
    """This is what FP16 moments give. The optimizer that steps FP32 masters keeps FP32 moments."""
    return _bill(model_bits / 8, model_bits / 8, _master_bytes(master), moments * model_bits / 8, parameters)


@mistake
def state_always_in_FP32(parameters: int, model_bits: int, master: bool, moments: int) -> int:
    """This is what FP32 moments always give. Without a master the optimizer steps FP16 weights, and its moments are
    FP16 too."""
    return _bill(model_bits / 8, model_bits / 8, _master_bytes(master), moments * 4, parameters)


@mistake
def the_master_replaces_the_weights(parameters: int, model_bits: int, master: bool, moments: int) -> int:
    """This is what counting master *or* model weights gives. Both are kept."""
    return _bill(
        4 if master else model_bits / 8, model_bits / 8, 0, moments * (4 if master else model_bits // 8), parameters
    )


# fmt: off
MISTAKES = (
    forgets_the_gradients,
    forgets_the_master,
    state_in_the_format_of_the_model,
    state_always_in_FP32,
    the_master_replaces_the_weights,
    wrong("FP16 halves it", "this is what halving everything gives: it is true of pure FP16 alone.",
          lambda parameters, model_bits, master, moments: parameters * (2 + moments) * model_bits // 8),
    wrong("one moment too many", "this is one moment too many: SGD keeps none, momentum one, Adam two.",
          lambda parameters, model_bits, master, moments: reference(parameters, model_bits, master, moments + 1)),
    wrong("counts bits", "this is the number of bits.",
          lambda parameters, model_bits, master, moments: 8 * reference(parameters, model_bits, master, moments)),
)
# fmt: on

EXERCISE = Exercise(
    id="master.memory",
    title="The memory bill",
    entry="my_bill",
    difficulty=1,
    minutes=6,
    reference=reference,
    checks=(
        Check("FP32 training: SGD, with momentum, Adam", 1, _fp32),
        Check("a model with master weights", 2, _mixed),
        Check("pure FP16: the optimizer's state is FP16 too", 1, _pure),
    ),
    mistakes=MISTAKES,
)
