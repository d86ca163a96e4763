"""The cards that can be simulated, with the properties that each reports.

Source: NVIDIA's data sheets and the CUDA programming guide, table "Technical Specifications per
Compute Capability"; the memory is what `torch.cuda.get_device_properties` reports on such a card.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """A card: its name, compute capability, memory in bytes, multiprocessors, L2 cache in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    l2_cache: int

    @property
    def device_name(self) -> str:
        """The name of `torch.cuda.get_device_name`, which says that the card is simulated."""
        return f"{self.name} (simulated)"


MIB = 2**20
CARDS = {
    "T4": Card("Tesla T4", (7, 5), 15_828_320_256, 40, 4 * MIB),
    "V100": Card("Tesla V100-SXM2-16GB", (7, 0), 16_935_682_048, 80, 6 * MIB),
    "A100": Card("NVIDIA A100-SXM4-40GB", (8, 0), 42_409_000_960, 108, 40 * MIB),
    "H100": Card("NVIDIA H100 80GB HBM3", (9, 0), 85_045_411_840, 132, 50 * MIB),
}
