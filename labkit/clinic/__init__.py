"""What goes wrong in practice? `check_machine` asks the machine, `find_pitfalls` a run; both say what to do."""

from labkit.clinic.doctor import check_machine
from labkit.clinic.findings import Finding, Report, Status
from labkit.clinic.pitfalls import find_pitfalls

__all__ = ["Finding", "Report", "Status", "check_machine", "find_pitfalls"]
