"""The pairs of tensors of two recordings, by their names or else by their order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.instrument.recording import Key, RecordedStep, Recording

# The modules that DDP, FSDP and torch.compile put around a model.
WRAPPERS = re.compile(r"(^|(?<=\.))(module|_orig_mod|_fsdp_wrapped_module)\.")
# Kinds of tensors, in the order in which a step makes them.
PHASES = (
    "inputs",
    "weights",
    "activations",
    "activation gradients",
    "weight gradients",
    "step gradients",
    "updates",
)
# How many tensors without a partner a note names.
MOST_NAMES = 3


@dataclass(frozen=True)
class Matching:
    """Pairs of tensors of two recordings.

    Attributes:
        pairs: Tensor of the baseline -> tensor of the run, in the order in which a step makes them.
        by_order: The pairs whose names differ.
        alone: Sentences about tensors without a partner.
    """

    pairs: dict[Key, Key]
    by_order: tuple[tuple[Key, Key], ...] = ()
    alone: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Sentences about the tensors that were not matched by name."""
        notes = list(self.alone)
        if self.by_order:
            (kind, name), (_, other) = self.by_order[0]
            note = f"matched by order, since names differ: {kind} {name} is {other}"
            if len(self.by_order) > 1:
                note += f", and {len(self.by_order) - 1} more"
            notes.append(note)
        return notes


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
            # A run records them only where something has changed the gradients of backward, so
            # they have the partners of those.
            for our_key, their_key in list(pairs.items()):
                if our_key[0] == "weight gradients":
                    pairs[kind, our_key[1]] = (kind, their_key[1])
            continue
        left = {key: shape for key, shape in ours.items() if key[0] == kind}
        right = {key: shape for key, shape in theirs.items() if key[0] == kind}
        partners = _by_name(left, right)
        rest = [key for key in right if key not in set(partners.values())]
        for key, shape in left.items():
            # The next tensor of the same shape: both recordings are in the order of the step.
            partner = next((other for other in rest if right[other] == shape), None)
            if key in partners or partner is None:
                continue
            rest.remove(partner)
            partners[key] = partner
            by_order.append((key, partner))
        pairs |= {key: partners[key] for key in left if key in partners}
        without_partner = [key for key in left if key not in partners]
        alone += _note_alone("only the baseline has", kind, without_partner)
        alone += _note_alone("only the other run has", kind, rest)
    return Matching(pairs, tuple(by_order), tuple(alone))


def _by_name(left: Iterable[Key], right: Iterable[Key]) -> dict[Key, Key]:
    """Return the pairs of tensors whose plain names are equal."""
    by_name = {plain_name(name): (kind, name) for kind, name in right}
    return {key: by_name[plain_name(key[1])] for key in left if plain_name(key[1]) in by_name}


def _note_alone(where: str, kind: str, keys: Sequence[Key]) -> list[str]:
    """Return a sentence about the tensors that only one run has, if there are any."""
    if not keys:
        return []
    names = ", ".join(name for _, name in keys[:MOST_NAMES])
    if len(keys) > MOST_NAMES:
        names += f" and {len(keys) - MOST_NAMES} more"
    return [f"{where} {kind} of {names}"]


def _tensors(recording: Recording) -> dict[Key, tuple[int, ...]]:
    """Return the tensors of all sampled steps, each with its first shape."""
    shapes: dict[Key, tuple[int, ...]] = {}
    for step in recording.sampled:
        for key, sketch in step.sketches.items():
            shapes.setdefault(key, sketch.shape)
    return shapes


def common_steps(
    baseline: Recording, run: Recording
) -> Iterable[tuple[RecordedStep, RecordedStep]]:
    """Yield the sampled steps that both recordings have."""
    of_run = {step.step: step for step in run.sampled}
    for step in baseline.sampled:
        if step.step in of_run:
            yield step, of_run[step.step]
