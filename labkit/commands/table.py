"""The table of all commands, with their arguments and examples."""

from __future__ import annotations

from argparse import REMAINDER
from pathlib import Path

from labkit.commands.arguments import (
    Argument,
    Command,
    date_argument,
    duration,
    new_file,
    new_folder,
    one_of,
    port_up_to,
)

# A port is a number of 16 bits.
LAST_PORT = 65_535
EXAMPLES = (
    "labkit lab                  open the lessons in JupyterLab",
    "labkit watch train.py       run a training script, and report what its numbers do",
    "labkit grade submissions --csv grades.csv",
)
COURSE = Argument(
    "--course",
    action="append",
    default=[],
    type=Path,
    metavar="FOLDER",
    help="add a lesson: its folder lesson_NN_name, or a folder of such folders; repeatable",
)
LESSONS = Argument(
    "--lessons",
    nargs="+",
    default=[],
    metavar="LESSON",
    help="01 or 06_loss_scaling (default: all)",
)
JSON = Argument(
    "--json",
    action="store_true",
    help=(
        "print the findings as JSON (docs/practitioners.md) on standard output; what the script "
        "prints goes to standard error"
    ),
)
SCRIPT = Argument(
    "script", type=Path, help="a training script, run as `python SCRIPT` would run it"
)
GIVING_BACK = "feedback and grade book"

COMMANDS: dict[str, Command] = {
    "lab": Command(
        "Open JupyterLab on a notebook, or on copies of the lessons in a folder",
        "commands.notebooks:lab",
        (
            "labkit lab",
            "labkit lab my_lessons",
            "labkit lab my_lessons/06_loss_scaling.ipynb",
        ),
        (
            Argument(
                "what",
                nargs="?",
                type=Path,
                metavar="PATH",
                help="a notebook to open, or a folder to copy the "
                "lessons into (default: the checkout's notebooks; without a checkout, fp16-lab/)",
            ),
            Argument(
                "--no-browser",
                action="store_true",
                help="print the address instead of opening a browser",
            ),
            COURSE,
            Argument(
                "--port",
                type=port_up_to(LAST_PORT),
                default=8888,
                help="first port to try (default: %(default)s)",
            ),
        ),
    ),
    "check": Command(
        "Check whether this machine is ready for the lab, and say what to do where it is not",
        "commands.machine:check",
        ("labkit check",),
    ),
    "setup": Command(
        "Set up a checkout: .venv, torch, JupyterLab and the lab",
        "commands.machine:setup",
        (
            "labkit setup",
            "labkit setup --here",
        ),
        (
            Argument("--test", action="store_true", help="also install what the tests need"),
            Argument(
                "--here",
                action="store_true",
                help="without a checkout: install the missing requirements into this Python; "
                "installed packages stay, whatever their version",
            ),
        ),
    ),
    "test": Command(
        "Run the checks of a checkout: ruff, codespell, mypy, those of the JavaScript, and pytest",
        "commands.machine:test",
        (
            "labkit test",
            'labkit test --pytest="-k autocast"',
        ),
        (
            Argument("--all", action="store_true", help="also run the slow tests"),
            Argument(
                "--pytest",
                default="",
                metavar="ARGS",
                help='more arguments for pytest, as --pytest="-k autocast"',
            ),
        ),
    ),
    "watch": Command(
        "Run a training script, and report what its numbers do",
        "commands.scripts:watch",
        (
            "labkit watch train.py",
            "labkit watch --every 10 train.py --epochs 1",
            "labkit watch --record healthy.labkit train.py",
        ),
        (
            Argument(
                "--every",
                type=int,
                default=50,
                metavar="N",
                help="sample one step in N (default: %(default)s)",
            ),
            Argument(
                "--folder",
                type=Path,
                default=Path("watch-report"),
                help="folder of the report; the next report "
                "gets -2 behind its name, and so on (default: %(default)s)",
            ),
            Argument(
                "--record",
                type=new_file,
                metavar="FILE",
                help="record the training to a file, which `labkit diff` compares with another one",
            ),
            Argument(
                "--strict",
                action="store_true",
                help=(
                    "if the script itself exits with 0, exit as `labkit diagnose` does: with 1 for "
                    "a fault, with 3 if a main check could not be made"
                ),
            ),
            JSON,
            SCRIPT,
            Argument("arguments", nargs=REMAINDER, help="arguments of the script"),
        ),
    ),
    "diagnose": Command(
        "Run a few steps of a training script, and name its faults with their lines and repairs",
        "commands.scripts:diagnose",
        (
            "labkit diagnose train.py",
            "labkit diagnose --steps 5 --folder report train.py --epochs 1",
        ),
        (
            SCRIPT,
            Argument(
                "--steps",
                type=int,
                default=100,
                metavar="N",
                help="stop after N steps (default: %(default)s)",
            ),
            Argument(
                "--folder",
                type=Path,
                help="write the report into this folder as well, as a page, JSON and text",
            ),
            JSON,
            Argument("arguments", nargs=REMAINDER, help="arguments of the script, after --steps"),
        ),
    ),
    "diff": Command(
        "Compare two recorded trainings: where they part, and whether it is rounding or a fault",
        "commands.diff:run",
        (
            "labkit diff healthy.labkit other.labkit",
            "labkit diff healthy.labkit other.labkit --page diff.html --spread seed1.labkit",
        ),
        (
            Argument("baseline", type=Path, help="recording of the healthy run"),
            Argument("run", type=Path, help="recording of the other run"),
            Argument(
                "--spread",
                type=Path,
                nargs="+",
                default=[],
                metavar="FILE",
                help="further healthy runs: what they differ by is not a fault",
            ),
            Argument(
                "--page",
                type=new_file,
                metavar="FILE",
                help="write the comparison as one page of HTML as well",
            ),
            Argument(
                "--json",
                action="store_true",
                help="print the comparison as JSON (docs/practitioners.md)",
            ),
        ),
    ),
    "explain": Command(
        "Explain an error message of mixed precision",
        "commands.scripts:explain",
        (
            'labkit explain "Attempting to unscale FP16 gradients"',
            "labkit explain mask_constant",
        ),
        (
            Argument(
                "text",
                nargs="*",
                help="an error message, or the name of a fault (default: list all faults)",
            ),
        ),
    ),
    "tolerance": Command(
        "Derive the tolerance of a kernel's test, and print the line for the test",
        "commands.testing:tolerance",
        (
            'labkit tolerance "matmul K=4096 bf16 out=bf16 accumulate=fp32"',
            "labkit tolerance softmax K=512 fp16",
        ),
        (
            Argument(
                "text",
                nargs="+",
                help="an operation (matmul, dot, sum, mean, softmax, layer_norm, rms_norm), "
                "K=TERMS, the format of operands, out=FORMAT, accumulate=FORMAT or GPU",
            ),
        ),
    ),
    "vectors": Command(
        "Write conformance vectors of a format or a GPU, or name the rules that answers break",
        "commands.testing:vectors",
        (
            "labkit vectors",
            "labkit vectors NVFP4 --out v.npz",
            "labkit vectors --check mine.npz",
        ),
        (
            Argument(
                "format",
                nargs="?",
                help="FP16, BF16, E4M3, MXFP8, MXFP4, NVFP4, H100 ... (default: list them all)",
            ),
            Argument(
                "--out", type=new_file, metavar="FILE", help="file to write (default: FORMAT.npz)"
            ),
            Argument(
                "--check",
                type=Path,
                metavar="FILE",
                help="file with answers, and the vectors' name",
            ),
        ),
    ),
    "compare": Command(
        "Train a task under several recipes and seeds, save each run, and compare the recipes",
        "commands.compare:run",
        (
            "labkit compare digits --recipes FP32 O1 --seeds 0 1 2",
            "labkit compare --list",
        ),
        (
            Argument(
                "tasks",
                nargs="*",
                metavar="TASK",
                type=one_of("task", "commands.compare:ALL_TASKS", "all"),
                help='a task to train; "all" are those of a CPU\'s size; --list shows them',
            ),
            Argument(
                "--list",
                action="store_true",
                help="list tasks and recipes, and which tasks have a GPU's size",
            ),
            Argument(
                "--recipes",
                nargs="+",
                type=one_of("recipe", "amp:RECIPES"),
                metavar="NAME",
                default=["FP32", "FP16", "FP16 dynamic"],
                help="the others are compared with the first (default: FP32 FP16 'FP16 dynamic')",
            ),
            Argument(
                "--seeds",
                nargs="+",
                type=int,
                default=[0, 1, 2],
                metavar="N",
                help="seeds of the random numbers, a run for each (default: 0 1 2)",
            ),
            Argument(
                "--device",
                default=None,
                help='"gpu", "cpu" or torch\'s "cuda:1" (default: the GPU, if any)',
            ),
            Argument(
                "--workers",
                type=int,
                default=None,
                metavar="N",
                help=(
                    "processes at once (default: one for each core; 1 on a GPU; those of torchrun "
                    "under torchrun --nproc-per-node 4 -m labkit compare ...)"
                ),
            ),
            Argument(
                "--folder",
                type=new_folder,
                default=None,
                help=(
                    "where runs are saved, those of a GPU in a folder of its name (default: "
                    "data/runs; without a checkout, fp16-lab/data/runs in the home folder)"
                ),
            ),
        ),
    ),
    "device": Command(
        "Show what this machine offers for low precision, and what follows from it",
        "commands.machine:device",
        ("labkit device",),
    ),
    "gpu": Command(
        "Run every check and recording that needs a GPU",
        "gpu.command:run",
        (
            "labkit gpu",
            "labkit gpu --quick",
            "labkit gpu --passport my_gpu.jsonl",
            "labkit gpu --device cpu --quick --folder /tmp/dry-run",
        ),
        (
            Argument(
                "--device",
                choices=["cuda", "cpu"],
                default="cuda",
                help="cpu is a dry run (default: %(default)s)",
            ),
            Argument(
                "--quick",
                action="store_true",
                help="on a GPU: in 3 minutes, the parts that fill the figures of "
                "the lessons; with --device cpu: small cases of every part",
            ),
            Argument(
                "--folder",
                type=new_folder,
                default=None,
                help="where results are saved (default: data; without a "
                "checkout, fp16-lab/data in the home folder)",
            ),
            Argument(
                "--passport",
                type=new_file,
                metavar="FILE",
                exclusive=True,
                help="write a new FILE with a line for each "
                "behaviour of this GPU, to send to the maintainers; 3 minutes, and 2 of timings",
            ),
            Argument(
                "--read",
                type=Path,
                metavar="FILE",
                exclusive=True,
                help="show where such a FILE differs from what "
                "is expected; status 0: complete, 1: a part is missing, 2: not a passport",
            ),
            Argument(
                "--only",
                nargs="+",
                type=one_of("part", "gpu:PARTS"),
                default=None,
                metavar="PART",
                exclusive=True,
                help='run these parts only, "speed" for instance',
            ),
            Argument(
                "--seconds",
                type=duration,
                default=None,
                help="time limit in all (default: 520; --quick on a GPU: 180); with --passport, of "
                "all but the timings (default: 180)",
            ),
            Argument(
                "--progress",
                type=new_file,
                default=None,
                metavar="FILE",
                help="write into FILE a line of JSON as each part begins and ends, for a program "
                "that follows the run",
            ),
        ),
    ),
    "site": Command(
        "Write the course as static pages, with the widgets that need no Python",
        "commands.notebooks:site",
        (
            "labkit site pages",
            "labkit site pages --lessons 01 06",
            "labkit site pages my_lessons/06_loss_scaling.ipynb",
            "labkit site pages --live --serve",
            "labkit site --widgets my_book/widgets",
            "labkit site --playground playground.html",
        ),
        (
            Argument(
                "folder",
                nargs="?",
                type=Path,
                help="where the pages are written: a new folder, or one of such pages",
            ),
            Argument(
                "notebooks",
                nargs="*",
                type=Path,
                metavar="NOTEBOOK",
                help="notebooks as they are, with their "
                "outputs (default: all lessons, which are run first)",
            ),
            Argument(
                "--live",
                action="store_true",
                help="exercises that need no torch are solved and checked in the pages, by "
                "Pyodide, a Python in the browser, which is downloaded from npm once",
            ),
            Argument(
                "--pyodide",
                metavar="FOLDER|URL",
                help="with --live: a folder with the files of Pyodide, or its URL",
            ),
            Argument(
                "--serve",
                action="store_true",
                help="serve the folder on this computer alone; one that holds pages already is "
                "served as it is, without --live, --lessons and notebooks",
            ),
            Argument(
                "--widgets",
                type=new_folder,
                metavar="FOLDER",
                help="write the widgets that need no Python as ES modules, for pages of your own",
            ),
            Argument(
                "--playground",
                type=new_file,
                metavar="FILE",
                help="write the playground as one HTML file, which needs no network",
            ),
            LESSONS,
            COURSE,
        ),
    ),
    "progress": Command(
        "Show which exercises are solved, and which come next",
        "commands.notebooks:progress",
        (
            "labkit progress",
            "labkit progress my_lessons",
        ),
        (
            Argument(
                "folder",
                nargs="?",
                type=Path,
                default=Path(),
                help="folder of the notebooks (default: this one)",
            ),
        ),
    ),
    "restore": Command(
        "List saved answers, print one, or put them back into the notebooks",
        "commands.notebooks:restore",
        (
            "labkit restore",
            "labkit restore scaling.advance",
            "labkit restore --write",
        ),
        (
            Argument("exercise", nargs="?", help="print the best saved answer to this exercise"),
            Argument(
                "--folder",
                type=Path,
                default=Path(),
                help="folder of the notebooks (default: this one)",
            ),
            Argument(
                "--write",
                action="store_true",
                help="put answers back into cells that hold the starter code",
            ),
        ),
    ),
    "grade": Command(
        "Grade submitted notebooks, and write grades, feedback and a report",
        "commands.grade:grade",
        (
            "labkit grade submissions --csv grades.csv",
            "labkit grade submissions --csv grades.csv --feedback pages --report class.html",
            (
                "labkit grade submissions --csv grades.csv --gradebook gradebook.csv --roster "
                "canvas.csv"
            ),
        ),
        (
            Argument(
                "submissions",
                nargs="+",
                type=Path,
                help="folders or archives with <student>.ipynb or <student>/<lesson>.ipynb",
            ),
            Argument(
                "--csv", type=new_file, metavar="FILE", help="where to write the grades; required"
            ),
            Argument(
                "--lesson",
                help=(
                    "grade this lesson only, as 06_loss_scaling (default: all that were handed in)"
                ),
            ),
            Argument(
                "--seconds",
                type=float,
                default=20.0,
                help="CPU time for one exercise (default: %(default)g)",
            ),
            Argument(
                "--memory",
                type=int,
                default=1024,
                metavar="MIB",
                help="memory for one student's code, in MiB (default: %(default)s)",
            ),
            Argument(
                "--workers",
                type=int,
                default=2,
                metavar="N",
                help="students graded at once (default: %(default)s)",
            ),
            Argument(
                "--seed",
                type=int,
                help="repeat a grading: the seed that it printed (default: a new one)",
            ),
            Argument(
                "--changed",
                action="store_true",
                help="grade only what has changed since the last grading",
            ),
            Argument(
                "--student",
                default="",
                metavar="NAME",
                help="grade this one again, and keep the rows of all others",
            ),
            Argument(
                "--old-forms",
                action="store_true",
                help="accept functions with the arguments of an earlier release, and grade them by "
                "its checks, some of which a call of a library passes",
            ),
            Argument(
                "--take",
                choices=("last", "best"),
                help="which of several notebooks of a lesson to grade (default: all; an "
                "exercise counts where it is answered)",
            ),
            Argument(
                "--due",
                type=date_argument,
                metavar="TIME",
                help="deadline, as 2026-11-30 or 2026-11-30T18:00, local time",
            ),
            COURSE,
            Argument(
                "--feedback",
                type=new_folder,
                metavar="FOLDER",
                group=GIVING_BACK,
                help="write a page for each learner",
            ),
            Argument(
                "--report",
                type=new_file,
                metavar="FILE",
                group=GIVING_BACK,
                help="write a page on the class: mistakes, time, predictions",
            ),
            Argument(
                "--anonymous",
                type=new_folder,
                metavar="FOLDER",
                group=GIVING_BACK,
                help="write table, pages and notebooks without names, and FOLDER-key.csv",
            ),
            Argument(
                "--gradebook",
                type=new_file,
                metavar="FILE",
                group=GIVING_BACK,
                help="write a table with one row for each learner",
            ),
            Argument(
                "--roster",
                type=Path,
                metavar="FILE",
                group=GIVING_BACK,
                help="the class: Canvas's gradebook, Moodle's worksheet, or any CSV of names",
            ),
            Argument(
                "--late",
                type=float,
                default=0.0,
                metavar="PERCENT",
                group=GIVING_BACK,
                help="deduction for each day after --due",
            ),
            Argument(
                "--late-cap",
                type=float,
                default=100.0,
                metavar="PERCENT",
                group=GIVING_BACK,
                help="largest deduction for lateness (default: %(default)g)",
            ),
            Argument(
                "--grace",
                type=float,
                default=0.0,
                metavar="MINUTES",
                group=GIVING_BACK,
                help="minutes after --due that are not late",
            ),
            Argument(
                "--column",
                default="",
                metavar="NAME",
                group=GIVING_BACK,
                help='the roster\'s own column for the sum, as "FP16 lab (4711)"',
            ),
            Argument(
                "--manual",
                type=Path,
                metavar="FILE",
                group=GIVING_BACK,
                help="your own points and comments: student,exercise,points,comment",
            ),
        ),
    ),
    "release": Command(
        "Write the learners' lab, without solutions, and the teacher's",
        "commands.teacher:release",
        (
            "labkit release course_2026",
            "labkit release course_2026 --lessons 01 06 --nbgrader",
            "labkit release course_2026 --questions questions.gift --gradescope autograder.zip",
        ),
        (
            Argument("folder", type=new_folder, help="where learners/ and teacher/ are written"),
            LESSONS,
            Argument(
                "--nbgrader",
                action="store_true",
                help="also write teacher/nbgrader, a course folder for nbgrader",
            ),
            Argument(
                "--questions",
                type=new_file,
                metavar="FILE",
                help="also write predictions and quiz as questions for an LMS, in GIFT",
            ),
            Argument(
                "--gradescope",
                type=new_file,
                metavar="FILE",
                help="also write an autograder for Gradescope, a zip archive",
            ),
            Argument(
                "--seed",
                type=int,
                default=1,
                help="seed of the cases in nbgrader's tests (default: %(default)s)",
            ),
            Argument(
                "--guess-first",
                action="store_true",
                help="in the learners' lab, the answer to a prediction opens only after the "
                "learner has committed",
            ),
            COURSE,
        ),
    ),
    "exercises": Command(
        "List all exercises: points, minutes, checks, known mistakes",
        "commands.teacher:exercises",
        (
            "labkit exercises",
            "labkit exercises --csv exercises.csv",
        ),
        (
            Argument(
                "--csv",
                type=new_file,
                metavar="FILE",
                help="where to write the table (default: to the terminal)",
            ),
            COURSE,
        ),
    ),
    "board": Command(
        "Show a class its predictions while it answers, and a leader board",
        "commands.teacher:board",
        (
            "labkit board /srv/class",
            "labkit board submissions --grades grades.csv.kept --address 0.0.0.0",
        ),
        (
            Argument(
                "folder",
                type=Path,
                help="folders of learners, each with the journal of its notebooks",
            ),
            Argument(
                "--grades",
                type=Path,
                metavar="FILE",
                help="grades.csv.kept, for the leader board of lesson 12",
            ),
            Argument(
                "--address",
                default="127.0.0.1",
                help="0.0.0.0 for the network of the class (default: %(default)s)",
            ),
            Argument(
                "--port",
                type=port_up_to(LAST_PORT),
                default=8790,
                help="port to serve on (default: %(default)s)",
            ),
        ),
    ),
    "classroom": Command(
        "Start a JupyterHub for a class on this machine",
        "commands.teacher:classroom",
        ("labkit classroom --users 30 --folder /srv/fp16-classroom",),
        (
            Argument(
                "--users",
                type=int,
                default=30,
                metavar="N",
                help="number of learners (default: %(default)s)",
            ),
            Argument(
                "--folder",
                type=new_folder,
                default=Path("/srv/fp16-classroom"),
                help="folder of the hub's files (default: %(default)s)",
            ),
            LESSONS,
            Argument(
                "--port",
                type=port_up_to(LAST_PORT - 2),
                default=8000,
                help="first of three consecutive ports on 127.0.0.1 (default: %(default)s)",
            ),
            Argument(
                "--memory",
                type=int,
                default=1500,
                metavar="MIB",
                help="MiB for each learner (default: %(default)s)",
            ),
            Argument(
                "--cores",
                type=float,
                default=1.0,
                help="CPU cores for each learner (default: %(default)g)",
            ),
            Argument(
                "--idle",
                type=int,
                default=1800,
                metavar="SECONDS",
                help="end a kernel that is idle for so long (default: %(default)s)",
            ),
            Argument(
                "--guess-first",
                action="store_true",
                help="the answer to a prediction opens only after the learner has committed",
            ),
        ),
    ),
    "version": Command("Print the version", "commands.machine:version", ("labkit version",)),
}
