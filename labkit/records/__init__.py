"""Where, when, with what, written whole? What every record of the lab says of its origin, and how it comes to disk."""

from labkit.records.files import write_whole
from labkit.records.provenance import device_name, now, versions

__all__ = ["device_name", "now", "versions", "write_whole"]
