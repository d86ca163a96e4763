"""What goes wrong in practice? `examine` asks the machine, `diagnose` a run; both say what to do."""

from labkit.clinic.diagnose import diagnose
from labkit.clinic.doctor import examine
from labkit.clinic.findings import Finding, Report, Status

__all__ = ["Finding", "Report", "Status", "diagnose", "examine"]
