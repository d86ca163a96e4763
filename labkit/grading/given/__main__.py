"""The process that learners' code is forked from. It runs as `python .../given/__main__.py`.

It loads torch, the lab's layers and this folder, once, and sees no lesson folder from then on (labkit.course.hide): in
those are the references and known mistakes. With the number of a socket as its argument it forks a keeper for
every connection that comes through it (Linux); without one it answers a single job from standard input.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import shutil
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path

import torch

import labkit.course

LAYERS = ("formats", "interop", "gemm", "bench", "instrument", "amp", "train", "clinic")
CHILD = "labkit.grading.given.child"
READY = b"ready\n"


def main() -> None:
    """Load everything, say so, and serve."""
    os.environ.pop("PYTHONPATH", None)
    torch.set_num_threads(1)
    _leave_no_way_to_answers()
    (torch.ones(2, 2).half().float() @ torch.ones(2, 2)).sum().item()  # finds out what the CPU can do, from /proc
    if len(sys.argv) > 1:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        _answer_one()


def _leave_no_way_to_answers() -> None:
    """Load what lessons tell learners to import, and hide the lessons; at grading, `check` and its like do nothing."""
    for layer in LAYERS:
        import_module(f"labkit.{layer}")
    import_module("labkit.clinic").consultations()
    grading = import_module("labkit.grading")
    grading.__dict__.update(dict.fromkeys(("check", "enter", "show", "hint"), import_module(CHILD).no_check))
    for name in ("loop", "scaled_backward", "project_tasks"):
        import_module(f"labkit.grading.given.{name}")
    labkit.course.hide()
    os.environ.pop(labkit.course.COURSE, None)


def _serve(control: socket.socket) -> None:
    from labkit.grading.given.keeper import keep_behind_walls

    variables = dict(os.environ)
    import_module("torch._dynamo")  # else each child that makes an optimizer loads it: 1.7 s
    os.environ.clear()  # of what it names for itself
    os.environ.update(variables)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to all; the process that grades decides
    gc.collect()
    gc.freeze()
    control.sendall(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:  # the process that grades is gone, or has no more questions
            break
        if os.fork() == 0:
            control.close()
            parent = socket.socket(fileno=descriptors[0])
            try:
                keep_behind_walls(parent)
            except BaseException as error:
                with contextlib.suppress(BaseException):
                    parent.sendall(f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(70)
        os.close(descriptors[0])
        _forget_keepers(os.WNOHANG)
    _forget_keepers(0)
    shutil.rmtree(Path.cwd(), ignore_errors=True)  # if nobody else is left to do it


def _forget_keepers(how: int) -> None:
    """Take note of the keepers that have ended; with `how` 0, wait until all have."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, how)[0]:
            pass


def _answer_one() -> None:
    from labkit.grading.given.child import answer_all
    from labkit.records import system

    questions, limits = pickle.load(sys.stdin.buffer)
    channel = os.fdopen(os.dup(1), "wb")
    channel.write(READY)
    channel.flush()
    answer_all(questions, channel, limits, system.address_space())


if __name__ == "__main__":
    main()
