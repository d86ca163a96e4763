"""The end of a training with apex, which a process has only once."""

from labkit.frameworks.apex import amp


def restore_torch() -> None:
    """Undo `amp.initialize` and `amp.init`, and forget registered functions."""
    amp._deactivate()
    amp._amp_state.registrations.clear()
