"""How fast is it here? Cases that know their arithmetic, timed; sweeps on record; the roofline they lie under."""

from labkit.bench.cases import ConvCase, ElementwiseCase, GemmCase, intensity, linear_gemms
from labkit.bench.device import DeviceReport, device_report
from labkit.bench.record import GemmRecord, from_json, measure
from labkit.bench.roofline import Roofline, roofline
from labkit.bench.sweeps import Extent, Sweep, formats_on, sweeps
from labkit.bench.timing import GemmRun, run_case, run_cases

__all__ = [
    "ConvCase",
    "DeviceReport",
    "ElementwiseCase",
    "Extent",
    "GemmCase",
    "GemmRecord",
    "GemmRun",
    "Roofline",
    "Sweep",
    "device_report",
    "formats_on",
    "from_json",
    "intensity",
    "linear_gemms",
    "measure",
    "roofline",
    "run_case",
    "run_cases",
    "sweeps",
]
