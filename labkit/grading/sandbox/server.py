"""The server process of the sandbox, started as a program: `python .../sandbox/server.py [SOCKET]`.

It loads torch, labkit's layers and the modules of lessons that submissions import. Then it hides
the lessons' folders, which hold references and known mistakes (labkit.course.hide). With the number
of a socket as its argument, it forks a supervisor for every connection it receives (Linux). Without
an argument, it answers one job from standard input.
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

LAYERS = ("formats", "interop", "gemm", "bench", "instrument", "amp", "train", "clinic", "grading")
READY = b"ready\n"
# The message with a connection: one byte, which says whether the job may make an optimizer.
PLAIN_JOB = b"."
OPTIMIZER_JOB = b"o"


def main() -> None:
    """Load the layers that lessons import, report readiness, and serve."""
    os.environ.pop("PYTHONPATH", None)
    torch.set_num_threads(1)
    for layer in LAYERS:
        import_module(f"labkit.{layer}")
    for lesson in labkit.course.lessons():
        lesson.package()
        lesson.module("cases")
    labkit.course.hide()
    os.environ.pop(labkit.course.COURSE, None)
    # At its first product, torch reads the CPU's features from /proc, which workers cannot.
    _ = torch.ones(2, 2) @ torch.ones(2, 2)
    if len(sys.argv) > 1:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        _answer_one()


def _serve(control: socket.socket) -> None:
    """Fork a supervisor for each connection that arrives, until the grader closes the socket.

    At the end it removes the working folder, in case the grader was killed and cannot.
    """
    from labkit.grading.sandbox.supervisor import run_job

    # A terminal sends SIGINT to all processes of a group. The grader handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _freeze()
    control.sendall(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        # The grader has ended, or has closed the connection.
        if not message:
            break
        if message == OPTIMIZER_JOB and "torch._dynamo" not in sys.modules:
            # The constructor of an optimizer imports this module, which takes a second. Imported
            # here, it is shared by all workers. It sets environment variables, which are undone.
            variables = dict(os.environ)
            import_module("torch._dynamo")
            os.environ.clear()
            os.environ.update(variables)
            _freeze()
        if os.fork() == 0:
            control.close()
            grader = socket.socket(fileno=descriptors[0])
            try:
                run_job(grader)
            except BaseException as error:
                with contextlib.suppress(BaseException):
                    grader.sendall(f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(os.EX_SOFTWARE)
        os.close(descriptors[0])
        _reap_supervisors(os.WNOHANG)
    _reap_supervisors(0)
    shutil.rmtree(Path.cwd(), ignore_errors=True)


def _freeze() -> None:
    """Exclude all objects from garbage collection, which would copy memory that workers share."""
    gc.collect()
    gc.freeze()


def _reap_supervisors(options: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _answer_one() -> None:
    """Answer the job on standard input, and write the answers to standard output."""
    from labkit.grading.sandbox.limits import address_space
    from labkit.grading.sandbox.worker import answer_all

    requests, limits = pickle.load(sys.stdin.buffer)
    channel = os.fdopen(os.dup(1), "wb")
    channel.write(READY)
    channel.flush()
    answer_all(requests, channel, limits, address_space())


if __name__ == "__main__":
    main()
