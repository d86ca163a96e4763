"""Build of the wheel: beside the code it holds the data, notebooks and lessons, which a checkout keeps at its top.

`labkit.records.files` finds them in either place. All else about the package stands in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithLessons(build_py):
    """Copies data and notebooks into the package that is built; an editable install reads the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        package = Path(self.build_lib, "labkit")
        for folder in ("data", "notebooks"):
            shutil.rmtree(package / folder, ignore_errors=True)  # what an earlier build left there
        shutil.copytree("data", package / "data")
        (package / "notebooks").mkdir()
        for notebook in Path("notebooks").glob("*.ipynb"):
            shutil.copy(notebook, package / "notebooks")
        shutil.copytree(
            "notebooks/lessons",
            package / "notebooks" / "lessons",
            ignore=shutil.ignore_patterns("__pycache__"),
        )


setup(cmdclass={"build_py": BuildWithLessons})
