"""What is handed in to break the grading or to cheat it, as data: a cell each, and the row that it must get.

Every notebook holds a right answer to scaling.unscale besides, which must keep its points: nothing here costs more than
its own. HOSTILE breaks things; CHEATS look for the answer elsewhere than in the lesson, and return it if they find it.
"""

from dataclasses import dataclass

from tests.grading.hand_ins import RIGHT, WRONG

CALL, CELL = "at check 1 of 5", "while its cell ran"
CHANNEL = "the code wrote into the channel of the answers"
REFUSED = "0 of 5 checks pass"


@dataclass(frozen=True)
class Row:
    """A cell, and the points and words of its row."""

    source: str
    says: str
    points: int = 0


def body(lines: str) -> str:
    """Return an answer that does this when it is called."""
    return "def my_advance(state, found_inf, config):\n" + "".join(
        f"    {line}\n" for line in lines.split("\n")
    )


def returns(expression: str) -> str:
    """Return an answer that returns this object."""
    return body(f"return {expression}")


def once(expression: str) -> str:
    """Return an answer that returns this object when it is called for the first time."""
    return "calls = []\n" + body(
        f"calls.append(1)\nreturn {expression} if len(calls) == 1 else state"
    )


HOSTILE: dict[str, Row] = {
    # It does not come back. (Times are CPU time, or three times as much and 5 s on the wall.)
    "loops in the cell": Row("while True: pass" + RIGHT, f"of CPU time; {CELL}"),
    "loops in the call": Row(body("while True: pass"), f"of CPU time; {CALL}"),
    "loops in C": Row(body("return sum(range(10 ** 13))"), f"of CPU time; {CALL}"),
    "loops at the third check": Row(
        RIGHT.replace("    if found_inf:\n", "    if found_inf:\n        while True: pass\n"),
        "2 of 5 checks pass; failed: inf or NaN backs off",
        3,
    ),
    "os._exit at the third check": Row(
        RIGHT.replace(
            "    if found_inf:\n", "    if found_inf:\n        __import__('os')._exit(0)\n"
        ),
        "the code ended its process",
    ),
    "catches what interrupts": Row(
        body("while True:\n    try:\n        while True: pass\n    except BaseException: pass"),
        f"of CPU time; {CALL}",
    ),
    "sleeps": Row(body("import time\ntime.sleep(10 ** 6)"), "it waits for something"),
    "waits for its own child": Row(
        body("import os, time\nif os.fork() == 0: time.sleep(10 ** 6)\nos.wait()"), "it waits"
    ),
    "a waiting signal handler": Row(
        "import signal, time\nfor s in range(1, 32):\n    try: signal.signal(s, lambda *a: None)\n    except (OSError, ValueError): pass\n"
        + body("while True: pass"),
        f"of CPU time; {CALL}",
    ),
    # It ends its process.
    "os._exit in the call": Row(
        body("import os\nos._exit(0)"), f"with exit code 0: os._exit?; {CALL}"
    ),
    "os._exit in the cell": Row("import os\nos._exit(3)", f"with exit code 3: os._exit?; {CELL}"),
    "a segmentation fault": Row("import ctypes\nctypes.string_at(0)", f"SIGSEGV; {CELL}"),
    "kills itself": Row("import os\nos.kill(os.getpid(), 9)", f"SIGKILL (out of memory?); {CELL}"),
    "kills its parent": Row(
        "import os\nos.kill(os.getppid(), 9)" + RIGHT, "its cell stopped with PermissionError"
    ),
    "kills everything": Row(
        "import os\nos.kill(-1, 9)" + RIGHT, "its cell stopped with ProcessLookupError"
    ),
    "becomes another program": Row(
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'pass'])",
        "its cell stopped with FileNotFoundError",
    ),
    "ends later": Row(
        "import atexit, os\natexit.register(lambda: os._exit(9))" + RIGHT, "5 of 5 checks pass", 8
    ),
    "sys.exit after the answer": Row(RIGHT + "\nimport sys\nsys.exit(0)", "5 of 5 checks pass", 8),
    "sys.exit in the call": Row(body("import sys\nsys.exit(1)"), "it stopped with sys.exit(1)"),
    "raises KeyboardInterrupt": Row(
        "raise KeyboardInterrupt", "its cell stopped with KeyboardInterrupt"
    ),
    # It takes what is not its own.
    "eats memory": Row(body("return bytearray(1 << 33)"), "MemoryError"),
    "eats memory slowly": Row(
        "hog = []\nwhile True: hog.append(bytearray(1 << 26))", "its cell stopped with MemoryError"
    ),
    "fills the disk": Row(
        "with open('big', 'wb') as f:\n    while True: f.write(bytes(1 << 20))",
        "its cell stopped with OSError",
    ),
    "starts processes without end": Row(
        body("import os\nwhile True:\n    os.fork()"), "scaling.advance: "
    ),
    "starts threads without end": Row(
        body(
            "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()"
        ),
        "it stopped with RuntimeError",
    ),
    "leaves a process behind": Row(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(10 ** 6)\n    os._exit(0)\n"
        + RIGHT,
        "5 of 5 checks pass",
        8,
    ),
    # It writes what is no answer.
    "prints without end": Row("print('x' * (1 << 26))" + RIGHT, "5 of 5 checks pass", 8),
    "writes to all descriptors": Row(
        "import os\nfor n in range(3, 64):\n    try: os.write(n, b'Q' * 999 + b'\\n')\n    except OSError: pass\n"
        + RIGHT,
        CHANNEL,
    ),
    "200 MB into the channel": Row(
        "import os\nfor n in range(3, 64):\n    try:\n        for _ in range(200): os.write(n, b'[' * (1 << 20))\n    except OSError: pass\n"
        + RIGHT,
        "has more than 8 MiB",
    ),
    "closes the channel": Row("import os\nos.closerange(3, 64)" + RIGHT, CELL),
    "an answer without end": Row(
        returns("['x' * 900_000 for _ in range(5)]"), "has more than 8 MiB"
    ),
    "a deep answer": Row(
        "deep = []\nfor _ in range(10 ** 5): deep = [deep]\n" + once("deep"), "of 5 checks pass"
    ),
    "text that is no unicode": Row(returns("'\\ud800'"), REFUSED),
    "a forged end": Row(
        "import json, os\nfor n in range(3, 64):\n    try: os.write(n, b'E\"scaling.advance\"\\n')\n    except OSError: pass\n"
        + RIGHT,
        "the number of answers is not the number of cases",
    ),
    "a forged verdict": Row(
        'import os\nfor n in range(3, 64):\n    try: os.write(n, b\'{"exercise": "scaling.advance", "points": 8}\\n\')\n    except OSError: pass\n'
        + WRONG,
        CHANNEL,
    ),
    # It is no function that can be called.
    "a signature that fails": Row(
        "class A:\n    @property\n    def __signature__(self): raise SystemExit\n    def __call__(self, *a): return 1\nmy_advance = A()",
        "scaling.advance: ",
    ),
    "a coroutine": Row(
        "async def my_advance(state, found_inf, config):\n    return state", REFUSED
    ),
    "a hundred thousand brackets": Row("x = " + "(" * 10**5, "too many nested parentheses"),
    "replaces json and os": Row(
        "import json, os\njson.dumps = os.write = lambda *a, **k: ''\n" + RIGHT, CHANNEL
    ),
    "replaces the interpreter's parts": Row(
        "import builtins\nbuiltins.len = builtins.isinstance = lambda *a: True\n" + RIGHT,
        "scaling.advance: ",
    ),
    "changes what it is given": Row(
        body(
            "object.__setattr__(state, 'scale', 1.0)\nobject.__setattr__(config, 'growth_factor', 1.0)\nreturn state"
        ),
        "of 5 checks pass",
    ),
}


def found(how: str) -> str:
    """Return a cell that looks for a function so, and answers with it; `found` is None where there was none."""
    return f"found = None\n{how}\n" + body("return found(state, found_inf, config)")


GETS_NOTHING = "0 of 5 checks pass"
HERE = (  # the lesson's folder in a checkout
    "import labkit\nfrom pathlib import Path\n"
    "here = Path(labkit.__file__).parents[1] / 'labkit_lessons' / 'lesson_06_loss_scaling'\n"
)
LIST = "from labkit.grading import EXERCISES\nmy_advance = EXERCISES['scaling.advance'].reference"
SEARCH = "\nfor thing in gc.get_objects():\n    "

CHEATS: dict[str, Row] = {
    "imports the reference": Row(
        "from labkit.grading.solutions import Solutions\n"
        + HERE
        + "my_advance = Solutions(here / 'lesson.py').my_advance",
        "its cell stopped with FileNotFoundError",
    ),
    "imports the list": Row(LIST, "its cell stopped with KeyError: 'scaling.advance'"),
    "forgets the stand-in, and imports": Row(
        "import sys\nfor n in [n for n in sys.modules if n.startswith('labkit')]: del sys.modules[n]\n"
        + LIST,
        "its cell stopped with KeyError: 'scaling.advance'",
    ),
    "gives the stand-in its folder back": Row(
        "import labkit.grading\n"
        + HERE
        + "labkit.grading.__path__ = [str(here)]\nfrom labkit.grading.lesson import my_advance",
        "its cell stopped with ModuleNotFoundError",
    ),
    "loads the file": Row(
        HERE + "import runpy\nmy_advance = runpy.run_path(str(here / 'exercises.py'))['reference']",
        "its cell stopped with FileNotFoundError",
    ),
    "loads the compiled file": Row(
        HERE
        + "import marshal\n(pyc,) = (here / '__pycache__').glob('exercises*.pyc')\nexec(marshal.loads(pyc.read_bytes()[16:]))",
        "its cell stopped with ValueError",
    ),
    "looks through gc for functions": Row(
        found(
            "import gc"
            + SEARCH
            + "if 'lesson_06' in getattr(getattr(thing, '__code__', None), 'co_filename', ''): found = thing"
        ),
        GETS_NOTHING,
    ),
    "looks through gc for exercises": Row(
        found(
            "import gc" + SEARCH + "if type(thing).__name__ == 'Exercise': found = thing.reference"
        ),
        GETS_NOTHING,
    ),
    "looks through the frames": Row(
        found(
            "import sys\nframe = sys._getframe()\nwhile frame:\n    for value in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
            "        found = getattr(value, 'reference', None) or found\n    frame = frame.f_back"
        ),
        GETS_NOTHING,
    ),
    "traces the calls": Row(
        "import sys\nseen = []\nsys.settrace(lambda frame, *a: seen.append(frame.f_locals.get('expected')) or None)\n"
        "sys.setprofile(lambda frame, *a: seen.append(frame.f_locals.get('right')))\n"
        + body("return next(x for x in seen if x is not None)"),
        GETS_NOTHING,
    ),
    "looks for a seed": Row(
        found(
            "import os\nfrom pathlib import Path\nfound = next(p for p in [*Path('.').iterdir(), *Path('..').iterdir()] if 'request' in p.name)"
        ),
        "its cell stopped with StopIteration",
    ),
    "looks for a seed in the parent's arguments": Row(
        found(
            "import os\nline = open(f'/proc/{os.getppid()}/cmdline').read()\nfound = line[line.index('--seed'):]"
        ),
        "its cell stopped with",
    ),
    "reads the memory of the grader": Row(
        found(
            "import os\nfor p in range(1, 1 << 16):\n    try: open(f'/proc/{p}/mem', 'rb')\n    except OSError: continue\n"
            "    if p != os.getpid(): found = max"
        ),
        GETS_NOTHING,
    ),
    "attaches to the parent": Row(
        found(
            "import ctypes, os\nif ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0: found = max"
        ),
        GETS_NOTHING,
    ),
    "reads a classmate's file": Row(
        "import json\ncells = json.load(open(CLASSMATE))['cells']\nexec(''.join(cells[1]['source']))",
        "its cell stopped with FileNotFoundError",
    ),
    "lists the classmates": Row(
        "import os\nnames = os.listdir(os.path.dirname(CLASSMATE))" + RIGHT,
        "its cell stopped with FileNotFoundError",
    ),
    "writes the grades": Row(
        "open(GRADES, 'w').write('8,8')" + RIGHT, "its cell stopped with FileNotFoundError"
    ),
    "writes the grades later": Row(
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        try: open(GRADES, 'a').write('cheat,8')\n        except OSError: time.sleep(0.1)\n"
        + WRONG,
        "of 5 checks pass",
    ),
    "asks the machine's own network": Row(
        "import socket\nsocket.create_connection(('127.0.0.1', 22), 3)" + RIGHT,
        "Network is unreachable",
    ),
    "mounts the file system again": Row(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.unshare(0x10020000)\n"
        + HERE
        + "for path in (here, *here.parents[:3]): libc.umount2(str(path).encode(), 2)\nassert (here / 'lesson.py').exists()"
        + RIGHT,
        "its cell stopped with AssertionError",
    ),
    "becomes root again": Row("import os\nos.setuid(0)" + RIGHT, "its cell stopped with"),
    "equals everything": Row(
        "class Yes(ScalerState):\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"
        + returns("Yes(1.0, 0)"),
        "an object of the class Yes",
    ),
    "replaces the comparison": Row(
        "import torch, operator\ntorch.equal = torch.Tensor.__eq__ = operator.eq = lambda *a: True\nScalerState.__eq__ = lambda *a: True"
        + WRONG,
        "of 5 checks pass",
    ),
    "replaces what writes the answers": Row(
        "import labkit.grading.sandbox.worker as child\nchild.answer_case = lambda *a, **k: ['bool', True]"
        + WRONG,
        GETS_NOTHING,
    ),
    "calls the lab's own": Row(
        "import labkit.amp\n" + body("return labkit.amp.advance(state, found_inf, config)"),
        "expected a ScalerConfig",
    ),
    "the visible cases by heart": Row(
        "seen = {}\ndef check(*a): pass\n" + body("return seen[state, found_inf, config]"),
        "KeyError",
    ),
}
