"""Tables of misuses that must be refused, each with its error and message."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Misuses = Mapping[str, tuple[Callable[..., Any], type[Exception], str]]


def not_refused(
    misuses: Misuses, make_arguments: Callable[[], tuple[Any, ...]] = tuple
) -> dict[str, str]:
    """Return the misuses that are not refused with their error and message: name -> difference.

    Args:
        misuses: name -> a function that misuses the framework, the error that is expected, and a
            regular expression for its message.
        make_arguments: returns new arguments for a misuse; they are passed to its function.

    >>> row = (lambda: 1, ValueError, "expected a tensor")
    >>> not_refused({"a number": row})
    {'a number': 'expected ValueError, got nothing'}
    """
    differences = {}
    for name, (misuse, error, message) in misuses.items():
        try:
            misuse(*make_arguments())
            differences[name] = f"expected {error.__name__}, got nothing"
        except Exception as raised:
            if not isinstance(raised, error) or not re.search(message, str(raised)):
                differences[name] = f"expected {error.__name__} with {message!r}, got {raised!r}"
    return differences


def assert_refused_in_torchs_words(
    misuses: Mapping[str, Callable[[Any], Any]], torchs: Any, ours: Any
) -> None:
    """Assert that torch's class and ours refuse each misuse by the same error.

    Our message must begin with torch's, and may continue with a remedy.

    Args:
        misuses: name -> a function that misuses the class that it gets.
        torchs: torch's class.
        ours: our class in its place.
    """
    for name, misuse in misuses.items():
        refusals = {}
        for kind in (torchs, ours):
            try:
                misuse(kind)
            except Exception as error:
                message = re.sub(r"\s+", " ", str(error))
                message = message.replace("torch.autocast(", "autocast(").rstrip(".")
                refusals[kind] = (type(error), message)
        assert list(refusals) == [torchs, ours], f"{name}: refused by {list(refusals)} only"
        their_error, their_message = refusals[torchs]
        our_error, our_message = refusals[ours]
        assert our_error is their_error, name
        assert our_message.startswith(their_message), name
