"""Recordings of what labkit does, which are compared between two checkouts.

They show, before and after a redesign, that reports, trainings, grades and costs are the same.

Commands:
    python -m tests.guard record FOLDER [--tree TREE] [--only WORD]
        Write one text file for each item.
    python -m tests.guard compare OLD NEW
        Print the differences of two recordings; the status is 1 if there are any.
    python -m tests.guard speed OLD_TREE [--tree TREE]
        Print paired times of steps, old against new.
    python -m tests.guard journeys [--tree TREE] [--walk]
        Print files opened, functions entered, and turns back.
    python -m tests.guard scripts [WORD]
        Run the outside scripts by torch alone.

`--tree` is the checkout whose labkit is measured, by default the one that this folder is in. The
guard itself is always this one, so that an old tree without a guard is measured by the same
program. PYTHONPATH has no effect. `--only` is a part of the name of an item, FOLDER/NAME, such as
`recipes/gpt` or `scripts/`.

A recording has a folder for each part. All parts together take about 10 minutes on two cores.

- faults: reports of `watch` and `diagnose` on each fault, broken and fixed, and the final weights
- scripts: the output of `labkit diagnose` and `labkit watch` on the forty scripts
- recipes: losses, scales and digests of all tensors for each recipe on each task, for 20 steps
- interfaces: the same through an engine's options and events, and through each framework's calls
- card: operations, host waits and copies of a step on the simulated card, watched and not
- grades: grades of hostile and odd submissions, and of edited answers to the clinic
- surface: the public surface of `tests.surface`, and the answers of the references

Paths, addresses, dates, the memory of activations and line numbers of labkit's own files are
replaced by placeholders. Compare recordings of one machine only: the last bits of a matrix product
depend on the processor. `diff -r` shows their differences, too.
"""
