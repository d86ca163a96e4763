"""Jupyter kernels that are forked from one process with torch and the lab imported, to start fast.

A kernel imports for three seconds before its first cell. `preloaded` writes a kernel specification
named python3, which Jupyter finds before its own. Its command connects to a server that has
imported everything, and sends it the arguments, environment, folder and output streams; the server
forks, and the child becomes the kernel. All else is as Jupyter has
it: connection files, messages, interrupts. A kernel ends with the process that asked for it.
"""

import json
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

IMPORTED = (
    "torch",
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "labkit.grading",
    "labkit.widgets",
    "labkit.frameworks",
    "labkit.train",
    "labkit.clinic",
)


@contextmanager
def preloaded(folder: Path) -> Iterator[dict[str, str]]:
    """Start the server, and write the specification in a folder; yield the environment by which
    Jupyter finds it.
    """
    if sys.platform != "linux":
        yield {}
        return
    address = f"labkit-{secrets.token_hex(8)}"
    specification = folder / "kernels" / "python3" / "kernel.json"
    specification.parent.mkdir(parents=True)
    ask = [sys.executable, "-S", "-E", __file__, "ask", address, "-f", "{connection_file}"]
    specification.write_text(
        json.dumps({"argv": ask, "display_name": "Python 3", "language": "python"})
    )
    paths = os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    environment = {**os.environ, "PYTHONPATH": paths}
    serve = [sys.executable, __file__, "serve", address]
    server = subprocess.Popen(serve, env=environment, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield {
            "JUPYTER_PATH": os.pathsep.join(
                [str(folder), *filter(None, [os.environ.get("JUPYTER_PATH")])]
            )
        }
    finally:
        server.terminate()
        server.wait()


def serve(address: str) -> None:
    """Fork a kernel for each connection, until the process is terminated."""
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # ipykernel reads it when it is imported
    for module in IMPORTED:
        __import__(module)
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    kernels: dict[int, socket.socket] = {}
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(f"\0{address}")  # an abstract name: a path has 107 bytes at most
        listener.listen()
        selector.register(listener, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    asker, _ = listener.accept()
                    request, streams, *_ = socket.recv_fds(asker, 1 << 20, 3)
                    if not (kernel := os.fork()):
                        break
                    for stream in streams:
                        os.close(stream)
                    asker.sendall(b"%d\n" % kernel)
                    kernels[kernel] = asker
                    selector.register(asker, selectors.EVENT_READ, kernel)
                elif key.fileobj == wakes:
                    os.read(wakes, 64)
                else:  # whoever asked has ended
                    os.kill(key.data, signal.SIGKILL)
                    selector.unregister(key.fileobj)
            else:
                for kernel in [kernel for kernel in kernels if os.waitpid(kernel, os.WNOHANG)[0]]:
                    ended = kernels.pop(kernel)
                    if ended in selector.get_map():
                        selector.unregister(ended)
                    ended.close()
                continue
            break
    for other in (asker, *kernels.values()):
        other.close()
    become_kernel(json.loads(request), streams)


def become_kernel(asked: dict[str, Any], streams: list[int]) -> None:
    """Take over the arguments, environment, folder and streams that were sent, and run a kernel."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["ipykernel_launcher", *asked["arguments"]]
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


def ask(address: str, *arguments: str) -> int:
    """Ask the server for a kernel, forward interrupts to it, and return when it has ended."""
    request = json.dumps(
        {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(f"\0{address}")
        socket.send_fds(server, [request.encode()], [0, 1, 2])
        lines = server.makefile()
        kernel = int(lines.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _frame: os.kill(kernel, number))
        return len(lines.readline())


if __name__ == "__main__":
    sys.exit({"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:]))
