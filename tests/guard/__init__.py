"""The guard of a redesign: what must stay as it was, recorded from one tree and compared with another.

    python -m tests.guard record FOLDER [--tree TREE] [--only WORD]   # one text file for each item
    python -m tests.guard compare OLD NEW                             # prints differences; status 1 if there are any
    python -m tests.guard speed OLD_TREE [--tree TREE]                # paired times, old against new
    python -m tests.guard journeys [--tree TREE]                      # files opened, functions entered, returns

`--tree` is the checkout whose labkit is measured, by default the one that this file is in. The guard itself is always
this one, so that an old tree, which has none, is measured by the same program. A folder of recordings can be read with
`diff -r` as well. Recordings of one machine are compared: the last bits of a matrix product depend on the processor.

What is recorded stands in `items.py`: reports of `watch` and `diagnose` on each fault, broken and fixed, and on the
scripts of `scripts/`; losses, scales, gradients and weights of each recipe on each task and through each framework's
calls; costs of a step on the simulated card; grades of hostile and odd hand-ins; the public surface.
"""
