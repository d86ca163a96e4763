from pathlib import Path

found = None

found = next(
    p for p in [*Path(".").iterdir(), *Path("..").iterdir()] if "request" in p.name
)


def my_advance(state, found_inf, config):
    return found(state, found_inf, config)
