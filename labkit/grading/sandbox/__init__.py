"""Execution of learners' code in limited processes, isolated from the grader where possible.

`runner` starts a server process, which loads torch and labkit once (`server`). For each submission
the server forks a supervisor, and that one forks workers, which run the code (`worker`) and write
answers as plain data (`wire`).

Invariant: no process that runs learners' code holds a reference, a known mistake, a seed or points.
"""
