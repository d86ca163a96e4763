"""The estimated memory of a training, against published measurements and the engine's bytes."""

import math
from functools import partial

import pytest
import torch

from labkit.amp import RECIPES, Engine
from labkit.machine.published import published
from labkit.train import TRANSFORMERS, Transformer, bytes_held, largest_batch, memory_bill
from labkit.train.transformers import BYTES, CONTEXT, GB, largest_network

BERT_LARGE = Transformer("BERT-large", 24, 1024, 16, vocabulary=30_522, predicts_tokens=False)
MIB = 2**20


def measured(batch: str) -> tuple[float, float]:
    """Return the published MiB of BERT-large with 512 tokens on a V100, in FP16 and in FP32."""
    (row,) = [
        row
        for row in published("memory", "V100")
        if row.workload.startswith("BERT-large") and row.batch == batch
    ]
    assert row.ratio is not None
    return row.value, row.value / row.ratio


@pytest.mark.parametrize(
    ("recipe", "batch", "recompute", "measurement"),
    [
        ("FP32", 4, False, measured("4")[1]),
        ("O1", 4, False, measured("4")[0]),
        ("O1", 1, True, measured("1 x 4")[0]),
    ],
)
def test_published_measurements_are_above_the_bill(recipe, batch, recompute, measurement):
    """They are above the bill by at most a third.

    The bill leaves out what the allocator reserves, and temporary results.
    """
    bill = memory_bill(BERT_LARGE, recipe, batch, 512, recompute=recompute)
    assert 1.0 < measurement / (bill.total / MIB) < 1.34


@pytest.mark.parametrize("recipe", ["FP32", "O2", "O3"])
def test_bytes_of_a_parameter_equal_those_of_the_engine(recipe):
    """`BYTES` equals the bytes that an engine holds after a step."""
    layer = torch.nn.Linear(100, 100, bias=False)
    engine = Engine(layer, partial(torch.optim.Adam, eps=1e-4), RECIPES[recipe])
    with engine.forward():
        loss = engine(torch.ones(4, 100)).square().mean()
    engine.backward(loss)
    engine.step()
    held = bytes_held(engine)
    parameters = 10_000
    weight, gradient, master, moments = BYTES[recipe]
    assert held["weights"] == weight * parameters
    assert held["gradients"] == gradient * parameters
    assert held.get("master weights", 0) == master * parameters
    # The state has a step count, too.
    assert held["optimizer state"] == pytest.approx(moments * parameters, abs=64)


def test_parameters_of_gpt2_are_within_a_percent_of_its_weights():
    """The formula leaves out biases, norms and positions; table 2 of the paper was corrected later.

    Source: the files of weights that OpenAI published, openai-community/gpt2 to gpt2-xl.
    """
    millions = [network.parameters / 1e6 for network in TRANSFORMERS[:4]]
    assert millions == pytest.approx([124.44, 354.82, 774.03, 1557.61], rel=0.01)


def test_the_largest_batch_fits_and_one_more_does_not():
    network = TRANSFORMERS[1]
    memory = 16 * GB
    batch = largest_batch(network, "O2", memory, 1024)
    assert memory_bill(network, "O2", batch, 1024).total <= memory
    assert memory_bill(network, "O2", batch + 1, 1024).total > memory


def test_a_network_that_is_too_large_has_no_batch():
    assert largest_batch(TRANSFORMERS[-1], "FP32", 8 * GB, 1024) == 0


def test_no_network_fits_into_the_context_alone():
    assert largest_network("O3", CONTEXT, 1024) is None


@pytest.mark.parametrize("memory", [math.inf, math.nan])
def test_a_memory_that_is_not_finite_is_refused(memory):
    with pytest.raises(ValueError, match="memory: expected a number of bytes, got"):
        largest_batch(TRANSFORMERS[0], "O2", memory, 1024)


def test_recomputation_saves_most_of_the_activations():
    plain = memory_bill(TRANSFORMERS[3], "O2", 4, 1024).activations
    assert memory_bill(TRANSFORMERS[3], "O2", 4, 1024, recompute=True).activations < plain / 10


@pytest.mark.parametrize(
    ("recipe", "batch", "message"),
    [
        ("O4", 1, "recipe: expected one of FP32, O1, O2, O3, got 'O4'"),
        ("O2", 0, "expected a batch and a length of 1 or more, got 0 and 128"),
    ],
)
def test_an_unknown_recipe_or_no_batch_is_refused(recipe, batch, message):
    with pytest.raises(ValueError, match=message):
        memory_bill(TRANSFORMERS[0], recipe, batch, 128)
