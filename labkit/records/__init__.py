"""Atomic files, their folders, and the provenance of records."""

from labkit.records.files import (
    checkout,
    data_folder,
    exclusive_lock,
    notebooks_folder,
    parse_record,
    recorded_files,
    refuse_simulated,
    results_folder,
    write_atomic,
    write_line,
)
from labkit.records.provenance import arithmetic_settings, device_name, made_on, now, versions

__all__ = [
    "arithmetic_settings",
    "checkout",
    "data_folder",
    "device_name",
    "exclusive_lock",
    "made_on",
    "notebooks_folder",
    "now",
    "parse_record",
    "recorded_files",
    "refuse_simulated",
    "results_folder",
    "versions",
    "write_atomic",
    "write_line",
]
