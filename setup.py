"""Build of the wheel: beside the code it holds the data and notebooks, which a checkout keeps at its top.

`labkit.records.files` finds them in either place. All else about the package stands in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py


class BuildWithNotebooks(build_py):
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


class WithDataFiles(Distribution):
    """Brings the data files into an editable install, too: settings that every JupyterLab of the environment reads."""

    def has_data(self) -> bool:
        # setuptools asks for this name (editable_wheel, `_run_install`), and has another one: has_data_files
        return bool(self.data_files)


setup(cmdclass={"build_py": BuildWithNotebooks}, distclass=WithDataFiles)
