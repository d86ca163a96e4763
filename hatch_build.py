"""Build hook: the data and the learners' notebooks at a checkout's top become part of a wheel.

`labkit.records.files` finds them in either place. An editable install reads the checkout. All else
about the package is in pyproject.toml.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DataAndNotebooks(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the files of `data` and the notebooks, and nothing else that lies beside them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        top = Path(self.root)
        data = [path for path in sorted((top / "data").rglob("*")) if path.is_file()]
        for path in [*data, *sorted((top / "notebooks").glob("*.ipynb"))]:
            place = path.relative_to(top).as_posix()
            build_data["force_include"][str(path)] = f"labkit/{place}"
