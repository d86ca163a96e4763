"""This machine: `check_machine` reports whether it is ready for the lab, and what to repair.

Invariant: the package is imported without torch, so that it can say that torch is missing.
"""

from labkit.findings import CheckReport as Report
from labkit.findings import Finding, Status
from labkit.machine.check import check_machine

__all__ = ["Finding", "Report", "Status", "check_machine"]
