"""Operations that CUDA refuses and the CPU accepts, from the passport of a real card.

A row is an operation that works on the CPU and raises on a real card, in torch's words. Its
`example` runs with a device and raises for "cuda". Most rows follow from torch itself, or from the
rules of devices in `cpp/operations.cpp`; where the CPU's kernel below the simulated card would take
the arguments, `operations` and `dtypes` say when to refuse: when each named argument has its dtype.

To add a refusal that a real card has reported: write its row in labkit/gpu/passport/refusals.toml,
with the card and torch's version as its source, and in KERNELS here where the simulated card does
not refuse by itself. `tests/gpu/test_simulated.py` runs each row on the CPU and on the simulated
card.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.gpu.simulated import ROOT

# The operation, the dtypes of its arguments by name, and the error message.
Rule = tuple[str, list[tuple[str, str]], str]

# "NAME of DTYPE" in the table: the operations that have no kernel for this dtype of an argument.
KERNELS = {
    "layer_norm": ("native_layer_norm", "input"),
    "group_norm": ("native_group_norm", "input"),
    "igamma": ("igamma", "self"),
    "igammac": ("igammac", "self"),
    "angle": ("angle", "self"),
    "histc": ("histc", "self"),
    "mm": ("mm", "self"),
    "addmm": ("addmm addmm_", "mat1"),
    "bmm": ("bmm", "self"),
    "baddbmm": ("baddbmm baddbmm_ addbmm addbmm_", "batch1"),
    "addmv": ("addmv addmv_", "mat"),
    "dot": ("dot", "self"),
    "vdot": ("vdot", "self"),
}


@dataclass(frozen=True)
class Refusal:
    """A refusal of CUDA.

    Attributes:
        name: What is refused.
        example: Python code with `torch`, `F` and `device` that raises on a card.
        words: A part of torch's message.
        source: Where the message was read.
        operations: The operations that the simulated card must be told to refuse.
        dtypes: The dtypes of arguments, by name, with which it must refuse them.
        since: The first compute capability of the cards that refuse.
        below: The first compute capability of the cards that no longer refuse.
    """

    name: str
    example: str
    words: str
    source: str
    operations: tuple[str, ...] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    since: tuple[int, int] = (0, 0)
    below: tuple[int, int] = (99, 0)

    def holds_for(self, capability: tuple[int, int]) -> bool:
        return self.since <= capability < self.below

    def rules(self) -> Iterator[Rule]:
        """Yield the rule of the simulated card for each operation."""
        for operation in self.operations:
            yield f"aten::{operation}", list(self.dtypes.items()), self.words


def _rule_of(name: str) -> dict[str, object]:
    """Return the fields with which the simulated card refuses; none where it refuses by itself."""
    # These operations have kernels for a CPU only.
    if name == "histogram":
        suffixes = ("bin_edges", "from_bin_cts", "from_bin_tensors")
        return {"operations": ("histogram", *(f"_histogramdd_{suffix}" for suffix in suffixes))}
    if name == "FP8 product of two E5M2":
        dtypes = dict.fromkeys(("self", "mat2"), "Float8_e5m2")
        return {"operations": ("_scaled_mm",), "dtypes": dtypes, "since": (8, 9)}
    found = re.fullmatch(r"(\w+) of (\w+)(?: with weights of (\w+))?", name)
    if found is None or found[1] not in KERNELS:
        return {}
    operations, argument = KERNELS[found[1]]
    return {
        "operations": tuple(operations.split()),
        "dtypes": {argument: found[2]} | ({"weight": found[3]} if found[3] else {}),
    }


def _rows() -> Iterator[Refusal]:
    # The file is read directly: labkit.gpu would import torch, which is being imported when the
    # card is set up.
    table = ROOT / "labkit" / "gpu" / "passport" / "refusals.toml"
    for row in tomllib.loads(table.read_text(encoding="utf-8"))["row"]:
        if row.pop("refused", True):
            yield Refusal(**row, **_rule_of(row["name"]))
    operands = (
        "x, one = torch.ones(16, 16, device=device).to(torch.float8_e4m3fn), torch.ones((), "
        "device=device)"
    )
    yield Refusal(
        name="FP8 product on a card without FP8",
        example=f"{operands}; torch._scaled_mm(x, x.t(), scale_a=one, scale_b=one, "
        "out_dtype=torch.float32)",
        words="torch._scaled_mm is only supported on CUDA devices with compute capability >= "
        "9.0 or 8.9",
        source="aten/src/ATen/native/cuda/ScaledBlas.cpp, _scaled_mm_out_cuda",
        operations=("_scaled_mm",),
        below=(8, 9),
    )


REFUSALS: tuple[Refusal, ...] = tuple(_rows())
