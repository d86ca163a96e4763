"""This machine: `check_machine` reports whether it is ready for the lab, and what to do where it is not.

Invariant: the package is imported without torch, so that it can say that torch is missing.
"""

from labkit.machine.check import check_machine
from labkit.records.findings import Finding, Report, Status

__all__ = ["Finding", "Report", "Status", "check_machine"]
