"""Imports of widgets: only those that compute with tensors import torch."""

import subprocess
import sys

import labkit.widgets

NUMBERS = (
    "AdditionPlayer, BitExplorer, NumberLine, Playground, Predict, Pulse, Quiz, SwallowedUpdates"
)


def runs_without_torch(program: str) -> str:
    """Run a program in a process that cannot import torch; return what it prints."""
    absent = "import sys\nsys.modules['torch'] = None\n"
    run = subprocess.run([sys.executable, "-c", absent + program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_widgets_that_draw_numbers_need_no_torch() -> None:
    program = f"from labkit.widgets import {NUMBERS}\nprint(BitExplorer().script_folder)"
    assert runs_without_torch(program) == "bits"


def test_formats_and_course_need_no_torch() -> None:
    program = (
        "import labkit.formats, labkit.course, labkit.grading\nprint(labkit.formats.FP16.name)"
    )
    assert runs_without_torch(program) == "FP16"


def test_each_public_name_of_the_widgets_is_found() -> None:
    for name in labkit.widgets.__all__:
        assert getattr(labkit.widgets, name) is not None


def test_dir_lists_the_public_names_of_the_widgets() -> None:
    assert dir(labkit.widgets) == sorted(labkit.widgets.__all__)


def test_functions_with_the_names_of_packages_are_functions() -> None:
    # `import labkit.widgets.predict.widget` binds the name `predict` to the package, before the
    # function of this name is looked up.
    program = (
        "import labkit.widgets.predict.widget, labkit.widgets.quiz.widget\n"
        "from labkit.widgets import predict, pulse, quiz\n"
        "print(callable(predict), callable(pulse), callable(quiz))"
    )
    assert runs_without_torch(program) == "True True True"
