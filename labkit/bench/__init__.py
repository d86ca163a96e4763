"""Benchmarks of this machine, and published ones: cases, timing, saved sweeps, rooflines."""

from labkit.bench.cases import (
    ConvCase,
    ElementwiseCase,
    Extent,
    GemmCase,
    Sweep,
    formats_on,
    intensity,
    linear_gemms,
    sweeps,
)
from labkit.bench.record import GemmRecord, from_json, measure
from labkit.bench.ring import ring_table
from labkit.bench.roofline import Roofline, data_sheet, roofline
from labkit.bench.timing import GemmRun, run_case, run_cases
from labkit.machine.device import GENERATIONS, DeviceReport, device_report
from labkit.machine.published import Published, cards, gains, published

__all__ = [
    "GENERATIONS",
    "ConvCase",
    "DeviceReport",
    "ElementwiseCase",
    "Extent",
    "GemmCase",
    "GemmRecord",
    "GemmRun",
    "Published",
    "Roofline",
    "Sweep",
    "cards",
    "data_sheet",
    "device_report",
    "formats_on",
    "from_json",
    "gains",
    "intensity",
    "linear_gemms",
    "measure",
    "published",
    "ring_table",
    "roofline",
    "run_case",
    "run_cases",
    "sweeps",
]
