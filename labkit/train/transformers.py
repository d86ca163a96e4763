"""Memory that the training of a transformer takes, and the size that fits a card.

Idea: a training keeps weights, gradients, masters and moments, whose bytes for each parameter the
recipe determines, and activations, which grow with the batch and are counted layer by layer.

Not modelled: buffers of the allocator, and temporary results. Three published measurements are 2%,
15% and 31% above the bill (`tests/train/test_transformers.py`), so leave a quarter of the card
free.

Source: arXiv:2205.05198 (activations of a transformer layer, section 4.1; recomputation, 5);
arXiv:1910.02054 (bytes for each parameter, section 3.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.formats.arguments import require_kind

GB = 10**9
# What CUDA and torch take before the first tensor: 1,343 MiB on a V100.
# Source: huggingface/transformers, docs/source/en/perf_train_gpu_one.md (2022).
CONTEXT = 1_343 * 2**20

# Bytes for each parameter: weight, gradient, master, Adam's two moments.
# Under O1 the weights are FP32, and autocast keeps an FP16 copy of them during a step.
BYTES = {
    "FP32": (4, 4, 0, 8),
    "O1": (4 + 2, 4, 0, 8),
    "O2": (2, 2, 4, 8),
    "O3": (2, 2, 0, 4),
}


@dataclass(frozen=True)
class Transformer:
    """Shape of a transformer.

    Attributes:
        name: name in papers.
        layers: number of layers.
        width: numbers for each token between the layers.
        heads: number of heads of each attention.
        vocabulary: number of tokens.
        predicts_tokens: whether the last layer returns a logit for each token of the vocabulary.

    >>> f"{Transformer('GPT-2 XL', 48, 1600, 25).parameters / 1e9:.2f}"
    '1.55'
    """

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int = 50_257
    predicts_tokens: bool = True

    @property
    def parameters(self) -> int:
        """Number of weights: 12 width² in each layer, and the embedding.

        Attention has 4 width², the two linear layers 8 width².
        """
        return 12 * self.layers * self.width**2 + self.vocabulary * self.width


# Source: GPT-2 (Radford et al. 2019), table 2; arXiv:2005.14165 (GPT-3), table 2.1, where the
# width of 13B is printed as 5140; its 40 heads of 128 numbers make 5120.
TRANSFORMERS = (
    Transformer("GPT-2 small", 12, 768, 12),
    Transformer("GPT-2 medium", 24, 1024, 16),
    Transformer("GPT-2 large", 36, 1280, 20),
    Transformer("GPT-2 XL", 48, 1600, 25),
    Transformer("GPT-3 2.7B", 32, 2560, 32),
    Transformer("GPT-3 6.7B", 32, 4096, 32),
    Transformer("GPT-3 13B", 40, 5120, 40),
)


@dataclass(frozen=True)
class MemoryBill:
    """Bytes of a training, by what they are for."""

    weights: int
    gradients: int
    masters: int
    moments: int
    activations: int
    context: int = CONTEXT

    @property
    def total(self) -> int:
        """All bytes together."""
        return (
            self.weights
            + self.gradients
            + self.masters
            + self.moments
            + self.activations
            + self.context
        )


def memory_bill(
    network: Transformer,
    recipe: str,
    batch: int,
    length: int,
    *,
    recompute: bool = False,
    fused_attention: bool = False,
) -> MemoryBill:
    """Return the bytes that a training with Adam holds at the end of a forward pass.

    Args:
        network: the transformer.
        recipe: "FP32", "O1", "O2" or "O3".
        batch: sequences in a step.
        length: tokens in a sequence.
        recompute: whether only the input of each layer is kept, and the layer is computed again in
            the backward pass.
        fused_attention: whether the attention keeps no matrix of length x length (FlashAttention).

    Raises:
        ValueError: the recipe is none of these, or batch or length is below 1.

    >>> bill = memory_bill(TRANSFORMERS[3], "O2", batch=1, length=1024, fused_attention=True)
    >>> f"{bill.weights / GB:.1f} GB of weights, {bill.total / GB:.0f} GB in all"
    '3.1 GB of weights, 29 GB in all'
    """
    require_kind(network, Transformer, "network", "Take one of TRANSFORMERS, or make one.")
    require_kind(batch, int, "batch")
    require_kind(length, int, "length")
    if recipe not in BYTES:
        raise ValueError(f"recipe: expected one of {', '.join(BYTES)}, got {recipe!r}")
    if batch < 1 or length < 1:
        raise ValueError(f"expected a batch and a length of 1 or more, got {batch} and {length}")
    weight, gradient, master, moments = BYTES[recipe]
    activations = activation_bytes(
        network, batch, length, recipe == "FP32", recompute, fused_attention
    )
    return MemoryBill(
        weights=weight * network.parameters,
        gradients=gradient * network.parameters,
        masters=master * network.parameters,
        moments=moments * network.parameters,
        activations=activations,
    )


def activation_bytes(
    network: Transformer,
    batch: int,
    length: int,
    in_fp32: bool,
    recompute: bool,
    fused_attention: bool,
) -> int:
    """Return the bytes of the activations that the backward pass needs.

    In 16 bits a layer keeps 34 bytes for each number between the layers: 32 in numbers of 16 bits,
    and 2 in dropout masks of one byte. Its attention keeps 5 bytes for each pair of tokens and
    head: two numbers and a mask.
    """
    size = 2 if in_fp32 else 1
    numbers = length * batch * network.width
    pairs = network.heads * length**2 * batch
    layer = (32 * size + 2) * numbers
    if not fused_attention:
        layer += (4 * size + 1) * pairs
    # The logits, and their logarithms of probabilities in FP32.
    head = (2 * size + 4) * length * batch * network.vocabulary if network.predicts_tokens else 0
    if not recompute:
        return network.layers * layer + head
    # The inputs of all layers, and everything of the one that is computed again.
    return network.layers * 2 * size * numbers + layer + head


def largest_batch(
    network: Transformer, recipe: str, memory: float, length: int, **options: bool
) -> int:
    """Return the largest batch whose training fits into a memory; 0 if not even one sequence fits.

    Args:
        network: the transformer.
        recipe: "FP32", "O1", "O2" or "O3".
        memory: memory of the card, in bytes.
        length: tokens in a sequence.
        **options: `recompute` and `fused_attention` of `memory_bill`.

    Raises:
        ValueError: the memory is not finite, or an argument is one that `memory_bill` refuses.

    >>> largest_batch(TRANSFORMERS[0], "O2", 16 * GB, 1024, fused_attention=True)
    20
    """
    require_kind(memory, (int, float), "memory", "Give the bytes of the card, such as 16 * GB.")
    if not math.isfinite(memory):
        raise ValueError(f"memory: expected a number of bytes, got {memory}")
    one = memory_bill(network, recipe, 1, length, **options)
    # Activations are proportional to the batch; the rest does not depend on it.
    free = memory - (one.total - one.activations)
    return max(0, int(free // one.activations))


def largest_network(
    recipe: str, memory: float, length: int, **options: bool
) -> tuple[Transformer, int] | None:
    """Return the largest of `TRANSFORMERS` that can be trained, and its largest batch.

    The result is None if no network fits.

    >>> found = largest_network("O2", 24 * GB, 1024, fused_attention=True)
    >>> found[0].name, found[1]
    ('GPT-2 large', 5)
    """
    fitting = [
        (network, largest_batch(network, recipe, memory, length, **options))
        for network in TRANSFORMERS
    ]
    for network, batch in reversed(fitting):
        if batch > 0:
            return network, batch
    return None
