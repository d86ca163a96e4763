"""Cost model of a ring all-reduce of gradients in FP32 and FP16, with published links.

Idea: in a ring of n ranks, each rank sends 2(n-1) messages, and each message holds 1/n of the
gradients. So the time is 2(n-1) latencies, and 2(n-1)/n times the bytes of the gradients through
one link. FP16 halves the bytes, but not the latency.

Not modelled: overlap with the backward pass, which hides some or all of the time.

Source: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH
(2005), section 4. NCCL, src/graph/tuning.cc at commit b647562 (hwLat: microseconds of a ring,
protocol Simple: NVLink 3.4, PCI 5.7, network 14.0; an all-reduce has 2(nRanks-1) steps), read on
2026-11-22.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.formats.arguments import require_kind


@dataclass(frozen=True)
class Link:
    """Link between two ranks.

    Attributes:
        name: for display.
        latency_s: latency of a message, in seconds.
        bytes_per_s: bandwidth in one direction.
        source: where the numbers were published.
    """

    name: str
    latency_s: float
    bytes_per_s: float
    source: str


MLPERF = (
    "NVIDIA's entry in mlcommons/inference_results_v4.1 (H200 SXM): 18 links, 900 GB/s, which is "
    "both directions"
)
LINKS = (
    Link(
        name="NVLink 4 (H100)",
        latency_s=3.4e-6,
        bytes_per_s=450e9,
        source=f"{MLPERF}; users measure 380 of 450 GB/s in one (NVIDIA/nccl#1264)",
    ),
    Link(
        name="PCIe 5.0 x16",
        latency_s=5.7e-6,
        bytes_per_s=63e9,
        source="PCIe 5.0, as others report it: 32 GT/s, 16 lanes, 128b/130b; it is not public",
    ),
    Link(
        name="InfiniBand NDR",
        latency_s=14.0e-6,
        bytes_per_s=50e9,
        source="NVIDIA, ConnectX-7 user manual, Introduction: NDR, 400 Gb/s",
    ),
    Link(
        name="Ethernet 10 Gb/s",
        latency_s=14.0e-6,
        bytes_per_s=1.25e9,
        source="IEEE 802.3ae-2002, as others report it; TCP has a higher latency",
    ),
)


def ring_seconds(gradient_bytes: float, ranks: int, link: Link) -> float:
    """Return the seconds of a ring all-reduce of gradients.

    Args:
        gradient_bytes: bytes of the gradients on each rank.
        ranks: number of ranks in the ring, 2 or more.
        link: the link between two neighbours.

    Raises:
        TypeError: ranks is not a whole number.
        ValueError: a ring of fewer than 2 ranks, or no gradients.

    >>> round(ring_seconds(400e6, 8, LINKS[2]) * 1e3, 1)
    14.2
    """
    require_kind(ranks, int, "ranks")
    if ranks < 2:
        raise ValueError(f"expected 2 ranks or more, which exchange gradients, got {ranks}")
    if not gradient_bytes > 0:
        raise ValueError(f"expected gradients to exchange, got {gradient_bytes:g} bytes")
    messages = 2 * (ranks - 1)
    bytes_of_a_message = gradient_bytes / ranks
    return messages * (link.latency_s + bytes_of_a_message / link.bytes_per_s)


def ring_table(weights: int, ranks: int) -> str:
    """Return a line for each link: milliseconds in FP32 and FP16, and the speedup.

    Args:
        weights: number of gradients.
        ranks: number of ranks in the ring.

    Raises:
        TypeError: ranks is not a whole number.
        ValueError: a ring of fewer than 2 ranks, or no weights.
    """
    lines = [f"{'link':<18}{'FP32':>13}{'FP16':>13}   FP16 is"]
    for link in LINKS:
        fp32_ms = 1e3 * ring_seconds(4 * weights, ranks, link)
        fp16_ms = 1e3 * ring_seconds(2 * weights, ranks, link)
        lines.append(
            f"{link.name:<18}{fp32_ms:>10.2f} ms{fp16_ms:>10.2f} ms   "
            f"{fp32_ms / fp16_ms:.2f} times as fast"
        )
    return "\n".join(lines)
