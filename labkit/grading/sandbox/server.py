"""The server process of the sandbox, started as a program: `python .../sandbox/server.py [SOCKET]`.

It loads torch, labkit's layers and what hand-ins import of lessons once, then hides the lessons'
folders, which hold references and known mistakes (labkit.course.hide). With the number of a socket
as its argument it forks a supervisor for every connection it receives (Linux). Without an argument
it answers one job from standard input.
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
    (
        torch.ones(2, 2).half().float() @ torch.ones(2, 2)
    ).sum().item()  # lets torch read the CPU's features from /proc
    if len(sys.argv) > 1:
        _serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        _answer_one()


def _serve(control: socket.socket) -> None:
    from labkit.grading.sandbox.supervisor import run_job

    # a terminal sends it to all processes; the grader decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _freeze()
    control.sendall(READY)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:  # the grader has ended, or closed the connection
            break
        if message == b"o" and "torch._dynamo" not in sys.modules:
            variables = dict(os.environ)
            # a second, which each worker that makes an optimizer would take
            import_module("torch._dynamo")
            os.environ.clear()  # torch._dynamo sets variables
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
                os._exit(70)
        os.close(descriptors[0])
        _reap_supervisors(os.WNOHANG)
    _reap_supervisors(0)
    shutil.rmtree(Path.cwd(), ignore_errors=True)  # in case the grader was killed


def _freeze() -> None:
    """Keep the garbage collection of workers from copying the memory that they share."""
    gc.collect()
    gc.freeze()


def _reap_supervisors(options: int) -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _answer_one() -> None:
    from labkit.grading.sandbox.limits import address_space
    from labkit.grading.sandbox.worker import answer_all

    requests, limits = pickle.load(sys.stdin.buffer)
    channel = os.fdopen(os.dup(1), "wb")
    channel.write(READY)
    channel.flush()
    answer_all(requests, channel, limits, address_space())


if __name__ == "__main__":
    main()
