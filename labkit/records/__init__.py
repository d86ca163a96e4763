"""Origin of every record of the lab, and files that are written whole."""

from labkit.records.files import (
    alone,
    checkout,
    data_folder,
    notebooks_folder,
    on_record,
    refuse_simulated,
    results_folder,
    write_line,
    write_whole,
)
from labkit.records.provenance import device_name, in_force, now, versions

__all__ = [
    "alone", "checkout", "data_folder", "device_name", "in_force", "notebooks_folder", "now", "on_record",
    "refuse_simulated", "results_folder", "versions", "write_line", "write_whole",
]  # fmt: skip
