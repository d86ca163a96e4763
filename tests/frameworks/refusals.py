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
    """Do each fault, name -> act(make), with torch's class and ours: the same error, whose words
    begin as torch's.
    """
    for fault, act in faults.items():
        said = {}
        for make in (torchs, ours):
            try:
                act(make)
            except Exception as error:
                words = (
                    re.sub(r"\s+", " ", str(error))
                    .replace("torch.autocast(", "autocast(")
                    .rstrip(".")
                )
                said[make] = type(error), words
        assert list(said) == [torchs, ours], f"{fault}: who refused it"
        assert said[ours][0] is said[torchs][0], fault
        assert said[ours][1].startswith(said[torchs][1]), fault
