"""Which tensor of one recording is which of another one: by name, else by order."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from labkit.instrument.recording import Key, RecordedStep, Recording

# what DDP, FSDP and torch.compile put around a model
WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_fsdp_wrapped_module)\.")
PHASES = (
    "inputs",
    "weights",
    "activations",
    "activation gradients",
    "weight gradients",
    "step gradients",
    "updates",
)


@dataclass(frozen=True)
class Matching:
    """Pairs of tensors of two recordings.

    pairs     tensor of the baseline -> tensor of the run, in the order in which a step makes them
    by_order  the pairs whose names differ
    alone     sentences about tensors that have no partner
    """

    pairs: dict[Key, Key]
    by_order: tuple[tuple[Key, Key], ...] = ()
    alone: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences about all that was not matched by name."""
        found = list(self.alone)
        if self.by_order:
            (kind, name), (_, other) = self.by_order[0]
            more = f", and {len(self.by_order) - 1} more" if len(self.by_order) > 1 else ""
            found.append(f"matched by order, since names differ: {kind} {name} is {other}{more}")
        return found


def plain_name(name: str) -> str:
    """Return a name without the prefixes of DDP, FSDP and torch.compile.

    >>> plain_name("module._orig_mod.fc.weight")
    'fc.weight'
    """
    return WRAPPERS.sub("", name)


def matched(baseline: Recording, run: Recording) -> Matching:
    """Return the pairs of tensors of two recordings."""
    ours = _tensors(baseline)
    theirs = _tensors(run)
    pairs: dict[Key, Key] = {}
    by_order: list[tuple[Key, Key]] = []
    alone: list[str] = []
    for kind in PHASES:
        if kind == "step gradients":
            # those of a step that only one run has are compared with the gradients of backward
            of_backward = [pair for pair in pairs.items() if pair[0][0] == "weight gradients"]
            pairs |= {(kind, ours[1]): (kind, theirs[1]) for ours, theirs in of_backward}
            continue
        left = {key: shape for key, shape in ours.items() if key[0] == kind}
        right = {key: shape for key, shape in theirs.items() if key[0] == kind}
        plain = {plain_name(key[1]): key for key in right}
        found = {key: plain[plain_name(key[1])] for key in left if plain_name(key[1]) in plain}
        rest = [key for key in right if key not in set(found.values())]
        for key, shape in left.items():
            # the next one of the same shape: both recordings are in the order of the step
            partner = next((k for k in rest if right[k] == shape), None)
            if key in found or partner is None:
                continue
            rest.remove(partner)
            found[key] = partner
            by_order.append((key, partner))
        pairs |= {key: found[key] for key in left if key in found}
        for where, keys in (
            ("only the baseline has", [key for key in left if key not in found]),
            ("only the other run has", rest),
        ):
            if keys:
                names = ", ".join(name for _, name in keys[:3])
                more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
                alone.append(f"{where} {kind} of {names}{more}")
    return Matching(pairs, tuple(by_order), tuple(alone))


def _tensors(recording: Recording) -> dict[Key, tuple[int, ...]]:
    """Return the tensors of all sampled steps, each with its first shape."""
    found: dict[Key, tuple[int, ...]] = {}
    for step in recording.sampled:
        for key, sketch in step.sketches.items():
            found.setdefault(key, sketch.shape)
    return found


def common_steps(
    baseline: Recording, run: Recording
) -> Iterable[tuple[RecordedStep, RecordedStep]]:
    """Yield the sampled steps that both recordings have."""
    of_run = {step.step: step for step in run.sampled}
    for step in baseline.sampled:
        if step.step in of_run:
            yield step, of_run[step.step]
