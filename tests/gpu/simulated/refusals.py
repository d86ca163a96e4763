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

# operation, dtypes of arguments by name, torch's words
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
    """A refusal: a name, an example (Python, with `torch`, `F` and `device`), torch's words, where
    they were read.
    """

    name: str
    example: str
    words: str
    source: str
    operations: tuple[str, ...] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    # the compute capabilities of the cards that refuse: from this one
    since: tuple[int, int] = (0, 0)
    below: tuple[int, int] = (99, 0)  # up to this one, without it

    def holds_for(self, capability: tuple[int, int]) -> bool:
        return self.since <= capability < self.below

    def rules(self) -> Iterator[Rule]:
        """Give what the simulated card must be told, for each operation."""
        for operation in self.operations:
            yield f"aten::{operation}", list(self.dtypes.items()), self.words


def _rule_of(name: str) -> dict[str, object]:
    """Return the fields of a row that make the simulated card refuse; none where it refuses by
    itself.
    """
    if name == "histogram":  # it has a kernel for the CPU alone
        parts = ("bin_edges", "from_bin_cts", "from_bin_tensors")
        return {"operations": ("histogram", *(f"_histogramdd_{part}" for part in parts))}
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
    # Read here, since labkit.gpu imports torch, and torch is being imported when the simulated card
    # is set up.
    table = ROOT / "labkit" / "gpu" / "passport" / "refusals.toml"
    for row in tomllib.loads(table.read_text(encoding="utf-8"))["row"]:
        if row.pop("refused", True):
            yield Refusal(**row, **_rule_of(row["name"]))
    one = (
        "x, one = torch.ones(16, 16, device=device).to(torch.float8_e4m3fn), torch.ones((), "
        "device=device)"
    )
    yield Refusal(
        name="FP8 product on a card without FP8",
        example=f"{one}; torch._scaled_mm(x, x.t(), scale_a=one, scale_b=one, "
        "out_dtype=torch.float32)",
        words="torch._scaled_mm is only supported on CUDA devices with compute capability >= "
        "9.0 or 8.9",
        source="aten/src/ATen/native/cuda/ScaledBlas.cpp, _scaled_mm_out_cuda",
        operations=("_scaled_mm",),
        below=(8, 9),
    )


REFUSALS: tuple[Refusal, ...] = tuple(_rows())
