"""How does a live widget speak of where it trains, and what does its knob for that offer?"""

from __future__ import annotations

from labkit.train import Place, place, places


def on(where: Place) -> str:
    """Return a place as it follows "on".

    >>> on(places()[-1])
    'the CPU, emulated'
    """
    return f"the {where.label}" if where.emulated else where.label


def offered(own: Place) -> list[dict[str, str]]:
    """Return key and label of every place there is to train on, the widget's own included."""
    return [{"key": each.key, "label": each.label} for each in dict.fromkeys((*places(), own))]


def chosen(key: str, own: Place) -> Place:
    """Return the place of a key, which may be the widget's own.

    Raises:
        ValueError: there is no such place here.
    """
    return own if key == own.key else place(key)
