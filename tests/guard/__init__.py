"""The guard of a redesign: what must stay as it was, recorded from one tree and compared with
another.

    python -m tests.guard record FOLDER [--tree TREE] [--only WORD]   # one text file for each item
    python -m tests.guard compare OLD NEW                             # prints differences; status 1 if there are any
    python -m tests.guard speed OLD_TREE [--tree TREE]                # paired times, old against new
    python -m tests.guard journeys [--tree TREE] [--walk]             # files opened, functions entered, turns back
    python -m tests.guard scripts [WORD]                              # the outside scripts by torch alone

`--tree` is the checkout whose labkit is measured, by default the one that this folder is in. The
guard itself is always this one, so that an old tree, which has none, is measured by the same
program. PYTHONPATH has no say. `--only` is part of the name of an item, FOLDER/NAME, such as
`recipes/gpt` or `scripts/`.

A recording has a folder for each part. All parts together take about 10 minutes on two cores.

    faults/     reports of `watch` and `diagnose` on each fault, broken and fixed, and the weights after it
    scripts/    what `labkit diagnose` and `labkit watch` print on the forty scripts, and `diagnose` on repaired ones
    recipes/    losses, scales and digests of all tensors of each recipe on each task, for 20 steps
    interfaces/ the same through an engine's options and events, and through the calls of each
    framework
    card/       operations, host waits and copies of a step on the simulated card, watched and not
    grades/     grades of hostile and odd hand-ins, and of edited answers to the clinic
    surface/    the public surface of `tests.surface`, and what references answer

Paths, addresses, dates, the memory of activations and lines of labkit's own files are placeholders.
Recordings of one machine are compared: the last bits of a matrix product depend on the processor.
`diff -r` shows their differences, too.
"""
