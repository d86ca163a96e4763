"""What CUDA refuses and the CPU takes, as rows.

A row is an operation that works on the CPU and raises on a real card, in torch's words. `example` shows it: it runs
with a device and raises for "cuda". Where the CPU's kernel below the simulated card would take the arguments,
`operations` and `dtypes` say when to refuse: when each named argument has its dtype. The other rows follow from torch
itself, or from the rules of devices in `cpp/operations.cpp`.

To add a refusal that a real card has reported: write its row, with the card and torch's version in `source`.
`tests/gpu/test_refusals.py` runs each row on the CPU and on the simulated card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Rule = tuple[str, list[tuple[str, str]], str]  # operation, dtypes of arguments by name, torch's words


@dataclass(frozen=True)
class Refusal:
    """A refusal: a name, an example (Python, with `torch`, `F` and `device`), torch's words, where they were read."""

    name: str
    example: str
    words: str
    source: str
    operations: tuple[str, ...] = ()
    dtypes: Mapping[str, str] | None = None

    def rules(self) -> Iterator[Rule]:
        """Give what the simulated card must be told, for each operation."""
        for operation in self.operations:
            yield f"aten::{operation}", list((self.dtypes or {}).items()), self.words


def _norm(kind: str, example: str, operation: str, source: str) -> Iterator[Refusal]:
    """Give the rows of a norm whose weights must have its input's dtype: a CUDA kernel reads them as `const T*`."""
    names = {"Half": "torch.half", "BFloat16": "torch.bfloat16", "Float": "torch.float32"}
    for input_dtype, weight_dtype in [("Half", "Float"), ("BFloat16", "Float")]:
        yield Refusal(
            name=f"{kind} of {input_dtype} with weights of {weight_dtype}",
            example=example.format(x=names[input_dtype], w=names[weight_dtype]),
            words=f"expected scalar type {input_dtype} but found {weight_dtype}",
            source=source,
            operations=(operation,),
            dtypes={"input": input_dtype, "weight": weight_dtype},
        )


REFUSALS: tuple[Refusal, ...] = (
    *_norm(
        "layer_norm",
        "F.layer_norm(torch.ones(2, 4, device=device, dtype={x}), (4,), torch.ones(4, device=device, dtype={w}))",
        "native_layer_norm",
        "aten/src/ATen/native/cuda/layer_norm_kernel.cu, LayerNormKernelImpl; pytorch#135969, apex#1635",
    ),
    *_norm(
        "group_norm",
        "F.group_norm(torch.ones(2, 4, device=device, dtype={x}), 2, torch.ones(4, device=device, dtype={w}))",
        "native_group_norm",
        "aten/src/ATen/native/cuda/group_norm_kernel.cu, GroupNormKernelImplInternal; pytorch#135969",
    ),
)
