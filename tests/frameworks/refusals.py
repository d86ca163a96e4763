"""Tables of misuses that must be refused, each with its error and message."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Misuses = Mapping[str, tuple[Callable[..., Any], type[Exception], str]]


def not_refused(misuses: Misuses, given: Callable[[], tuple[Any, ...]] = tuple) -> dict[str, str]:
    """Return the misuses that are not refused with their error and message: name -> difference.

    Args:
        misuses: The misuses by name.
        given: Returns fresh arguments for each misuse.

    >>> row = (lambda: 1, ValueError, "expected a tensor")
    >>> not_refused({"a number": row})
    {'a number': 'expected ValueError, got nothing'}
    """
    differences = {}
    for name, (misuse, error, message) in misuses.items():
        try:
            misuse(*given())
            differences[name] = f"expected {error.__name__}, got nothing"
        except Exception as raised:
            if not isinstance(raised, error) or not re.search(message, str(raised)):
                differences[name] = f"expected {error.__name__} with {message!r}, got {raised!r}"
    return differences


def assert_refused_in_torchs_words(
    faults: Mapping[str, Callable[[Any], Any]], torchs: Any, ours: Any
) -> None:
    """Assert that our class refuses faults with torch's error and the beginning of its message.

    Args:
        faults: Name of a fault -> a function that commits it with a class.
        torchs: The class of torch.
        ours: The class of the lab.
    """
    for fault, commit in faults.items():
        torch_error, torch_message = _error_of(commit, torchs)
        error, message = _error_of(commit, ours)
        assert torch_error is not None, f"{fault}: torch does not refuse it"
        assert error is torch_error, fault
        assert message.startswith(torch_message), fault


def _error_of(commit: Callable[[Any], Any], cls: Any) -> tuple[type[Exception] | None, str]:
    """Return the type and the message of the error that a function raises, None and "" if none."""
    try:
        commit(cls)
    except Exception as error:
        # torch names its class in different ways, and wraps some messages.
        message = re.sub(r"\s+", " ", str(error)).replace("torch.autocast(", "autocast(")
        return type(error), message.rstrip(".")
    return None, ""
