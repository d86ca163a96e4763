"""What goes wrong in practice? First the machine: `examine` says what is ready, and what to do where it is not."""

from labkit.clinic.doctor import examine
from labkit.clinic.findings import Finding, Report, Status

__all__ = ["Finding", "Report", "Status", "examine"]
