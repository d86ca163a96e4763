"""Messages that no fault of the lab raises: meaning, causes, what to run next, source.

`messages_in` finds them in a pasted text.
"""

from labkit.faults.messages.devices import DEVICES
from labkit.faults.messages.dtypes import DTYPES
from labkit.faults.messages.families import FAMILIES
from labkit.faults.messages.frameworks import FRAMEWORKS
from labkit.faults.messages.graphs import GRAPHS
from labkit.faults.messages.kernels import KERNELS
from labkit.faults.messages.message import Message, found_in, simplified
from labkit.faults.messages.nonfinite import NONFINITE
from labkit.faults.messages.remedies import DIAGNOSE
from labkit.faults.messages.scalers import SCALERS
from labkit.faults.messages.systems import SYSTEMS

# The first row that fits explains a text, so the general patterns of the families come last.
MESSAGES = (
    *SCALERS,
    *GRAPHS,
    *DTYPES,
    *KERNELS,
    *DEVICES,
    *FRAMEWORKS,
    *SYSTEMS,
    *NONFINITE,
    *FAMILIES,
)

__all__ = ["DIAGNOSE", "MESSAGES", "Message", "messages_in", "simplified"]


def messages_in(text: str) -> list[Message]:
    """Return the messages that a text holds, in the order of the table."""
    return found_in(text, MESSAGES)
