"""Hooks of MkDocs for the documentation site.

They add README, CONTRIBUTING, CHANGELOG and data/README.md as pages, a page of the API for each
public package, and the live widgets. A link to a file that is not a page leads to the repository if
pyproject.toml names one, and becomes plain text otherwise.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

# Page of the site -> the file with its text.
ELSEWHERE = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "data.md": "data/README.md",
}
PAGES = {source: page for page, source in ELSEWHERE.items()}
API = (
    "formats",
    "interop",
    "gemm",
    "bench",
    "testing",
    "instrument",
    "amp",
    "train",
    "frameworks",
    "faults",
    "clinic",
    "machine",
    "widgets",
)
# A link or an image of Markdown: "!" for an image, the text, which may hold brackets, the target.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LIVE_FOLDER = "live"
LIVE = """
<details class="labkit-live" markdown="0"><summary>Try {name} here</summary>
<div id="live-{name}"></div>
<script type="module">
const place = document.getElementById("live-{name}");
place.closest("details").addEventListener("toggle", async () => {{
  if (place.childElementCount) return;
  const {{ default: widget }} = await import("./{folder}/{name}.mjs");
  widget.render({{ el: place }});
}});
</script></details>
"""


def repository() -> str:
    """Return the address of the repository, without a version; "" if pyproject.toml names none."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    address: str = settings["tool"]["labkit"]["repository"]
    return address.partition("@")[0]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages whose text is elsewhere, and one page for each public package."""
    for page, source in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    for picture in (ROOT / "notebooks" / "images").iterdir():
        place = picture.relative_to(ROOT).as_posix()
        files.append(File.generated(config, place, abs_src_path=str(picture)))
    lines = [
        "# API reference",
        "",
        "Import names from the package: `from labkit.amp import Engine`.",
        "",
    ]
    for package in API:
        lines.append(f"- [labkit.{package}]({package}.md)")
        text = f"::: labkit.{package}\n" + "".join(_hidden_by_modules(package))
        files.append(File.generated(config, f"api/{package}.md", content=text))
    files.append(File.generated(config, "api/index.md", content="\n".join([*lines, ""])))
    return files


def _hidden_by_modules(package: str) -> list[str]:
    """Return the entries of functions named like their module, which griffe finds instead."""
    entries = []
    module = importlib.import_module(f"labkit.{package}")
    for name in getattr(module, "__all__", ()):
        path = f"labkit/{package}/{name}"
        if (ROOT / f"{path}.py").is_file() or (ROOT / path).is_dir():
            home = getattr(module, name).__module__
            options = "heading_level: 2\n      show_root_full_path: false"
            entries.append(f"\n::: {home}.{name}\n    options:\n      {options}\n")
    return entries


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point each link to a page of the site or to the repository, and start the widgets."""
    name = page.file.src_uri
    if name.startswith("api/"):
        return markdown
    folder = (ROOT / ELSEWHERE.get(name, f"docs/{name}")).parent
    parts = FENCE.split(markdown)
    # Every second part is a block of code, which stays as it is.
    parts[::2] = [_relinked(part, folder, files) for part in parts[::2]]
    # Pictures in HTML, as README has them, are relative to the checkout.
    text = "".join(parts).replace('src="docs/', 'src="')
    return _with_widgets(text) if name == "widgets.md" else text


def _relinked(text: str, folder: Path, files: Files) -> str:
    """Return Markdown whose links lead to pages of the site or to the repository.

    Args:
        text: Markdown outside blocks of code.
        folder: The folder of the source, from which its links are relative.
        files: The pages of the site.
    """

    def replaced(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return found[0]
        place = (folder / path).resolve().relative_to(ROOT).as_posix()
        page = PAGES.get(place, place.removeprefix("docs/"))
        if files.get_file_from_path(page) is not None:
            return f"{image}[{words}]({page}{'#' if anchor else ''}{anchor})"
        if not repository():
            return words
        return f"{image}[{words}]({repository()}/blob/main/{place})"

    return LINK.sub(replaced, text)


def _with_widgets(text: str) -> str:
    """Put a place for the live widget below the picture of each widget that needs no Python."""
    from labkit.site.modules import page_widgets

    for widget in page_widgets():
        name = type(widget).__name__
        live = LIVE.format(name=name, folder=LIVE_FOLDER)
        text = re.sub(rf"(!\[{name}:[^\n]*\n)", lambda found, live=live: found[1] + live, text)
        widget.close()
    return text


def on_post_build(config: Any) -> None:
    """Write the widgets that the catalogue shows."""
    from labkit.site.modules import write_modules

    write_modules(Path(config.site_dir) / LIVE_FOLDER)
