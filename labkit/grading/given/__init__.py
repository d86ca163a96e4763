"""What is a learner's code given? The types and functions it meets at grading, and the process it runs in.

Invariant: nothing here imports an exercise, a reference or a mistake. Of `labkit.grading` the process that runs a
learner's code loads this folder alone, and sees no other.
"""
