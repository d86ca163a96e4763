"""Where, when, with what, written whole? What every record of the lab says of its origin, and how it comes to disk."""

from labkit.records.files import alone, write_line, write_whole
from labkit.records.places import checkout, data_folder, notebooks_folder, on_record, refuse_simulated, results_folder
from labkit.records.provenance import device_name, in_force, now, versions

__all__ = [
    "alone", "checkout", "data_folder", "device_name", "in_force", "notebooks_folder", "now", "on_record",
    "refuse_simulated", "results_folder", "versions", "write_line", "write_whole",
]  # fmt: skip
