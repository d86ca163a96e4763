"""Jupyter kernels that are forked from one process, in which torch and the lab are imported.

A kernel imports for three seconds before its first cell; a forked one starts at once. `preloaded`
writes a kernel specification named python3, which Jupyter finds before its own. Its command
connects to the server, and sends it the arguments, the environment, the folder and the output
streams. The server forks, and the child becomes the kernel. All else is as in Jupyter: connection
files, messages, interrupts. A kernel ends with the process that asked for it.
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
    """Start the server, and write the kernel specification to a folder.

    Yields:
        The environment by which Jupyter finds the specification; empty where nothing was started.
    """
    if sys.platform != "linux":
        yield {}
        return
    address = f"labkit-{secrets.token_hex(8)}"
    specification = folder / "kernels" / "python3" / "kernel.json"
    specification.parent.mkdir(parents=True)
    # no site packages and no environment: this process only connects, and starts in no time
    command = [sys.executable, "-S", "-E", __file__, "ask", address, "-f", "{connection_file}"]
    specification.write_text(
        json.dumps({"argv": command, "display_name": "Python 3", "language": "python"})
    )
    environment = {**os.environ, "PYTHONPATH": _prepended(Path(__file__).parents[1], "PYTHONPATH")}
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", address], env=environment, stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield {"JUPYTER_PATH": _prepended(folder, "JUPYTER_PATH")}
    finally:
        server.terminate()
        server.wait()


def _prepended(path: Path, variable: str) -> str:
    """Return the paths in an environment variable, with another one before them."""
    paths = [str(path)]
    if os.environ.get(variable):
        paths.append(os.environ[variable])
    return os.pathsep.join(paths)


class _Server:
    """Forks a kernel for each connection.

    A connection stays open as long as its kernel runs. When the kernel ends, the server closes it;
    when the process that asked for the kernel ends, the kernel is killed.
    """

    def __init__(self, listener: socket.socket, wake_read: int) -> None:
        self.listener = listener
        self.wake_read = wake_read
        # The process id of a kernel -> the connection to it.
        self.connections: dict[int, socket.socket] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ)
        self.selector.register(wake_read, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the process is terminated."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    self._fork_kernel()
                elif key.fileobj == self.wake_read:
                    # the bytes only wake the selector
                    os.read(self.wake_read, 64)
                else:
                    # the process that asked for this kernel has ended
                    os.kill(key.data, signal.SIGKILL)
                    self.selector.unregister(key.fileobj)
            self._reap()

    def _fork_kernel(self) -> None:
        connection, _ = self.listener.accept()
        request, streams = received(connection)
        kernel = os.fork()
        if kernel == 0:
            # the child leaves the server for good: it becomes the kernel
            self._close(connection)
            become_kernel(json.loads(request), streams)
            sys.exit()
        for stream in streams:
            os.close(stream)
        connection.sendall(b"%d\n" % kernel)
        self.connections[kernel] = connection
        self.selector.register(connection, selectors.EVENT_READ, kernel)

    def _close(self, connection: socket.socket) -> None:
        """Close what belongs to the server, so that no connection outlives it in a kernel."""
        for other in (self.listener, connection, *self.connections.values()):
            other.close()
        self.selector.close()

    def _reap(self) -> None:
        """Close the connections of kernels that have ended."""
        for kernel in list(self.connections):
            ended, _ = os.waitpid(kernel, os.WNOHANG)
            if not ended:
                continue
            connection = self.connections.pop(kernel)
            if connection in self.selector.get_map():
                self.selector.unregister(connection)
            connection.close()


def serve(address: str) -> None:
    """Import everything, then fork a kernel for each connection."""
    # tests/ must not shadow packages
    sys.path[:] = [path for path in sys.path if path != str(Path(__file__).parent)]
    # ipykernel reads it when it is imported
    os.environ["JPY_PARENT_PID"] = str(os.getpid())
    for module in IMPORTED:
        __import__(module)
    # a kernel that ends must wake the selector: Python writes a byte to this pipe at each signal
    # that has a handler
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as listener:
        # an abstract name: a path has 107 bytes at most
        listener.bind(f"\0{address}")
        listener.listen()
        print("ready", flush=True)
        _Server(listener, wake_read).run()


def received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request, which ends with its first newline, and the streams that came with it."""
    request, streams, *_ = socket.recv_fds(connection, 1 << 20, 3)
    # A large environment comes in parts; it ends early if the process that asked has ended.
    while not request.endswith(b"\n") and (part := connection.recv(1 << 20)):
        request += part
    return request, streams


def become_kernel(request: dict[str, Any], streams: list[int]) -> None:
    """Take over the arguments, environment, folder and streams that were sent, and run a kernel."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["ipykernel_launcher", *request["arguments"]]
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


def ask(address: str, *arguments: str) -> None:
    """Ask the server for a kernel, forward signals to it, and return when it has ended."""
    request = json.dumps(
        {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    )
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(f"\0{address}")
        message = f"{request}\n".encode()
        sent = socket.send_fds(server, [message], [0, 1, 2])
        server.sendall(message[sent:])
        lines = server.makefile()
        kernel = int(lines.readline())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _frame: os.kill(kernel, number))
        # the server closes the connection when the kernel has ended
        lines.readline()


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    if command == "serve":
        serve(*arguments)
    else:
        ask(*arguments)
