"""Modules of JavaScript joined into one script."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from labkit.widgets.base.joining import (
    FOLDERS,
    JoinError,
    Module,
    in_order,
    joined,
    modules_of,
    parse,
    shared_modules,
)
from labkit.widgets.base.widget import module, page_script, script, style

WIDGETS = sorted(
    folder.name
    for folder in FOLDERS.iterdir()
    if folder.is_dir() and (folder / "view.js").is_file()
)
ESBUILD = Path(__file__).parents[2] / "node_modules" / ".bin" / "esbuild"
# What would load another file: an address, a style sheet's import, or a script's.
LOADS = r"https?://|@import\s+[\"'u]|^\s*import\b|\bimport\s*\(|url\([\"']?//"


def modules(**sources: str) -> dict[str, Module]:
    """Return modules by path, `a` being a.js."""
    return {f"{name}.js": parse(f"{name}.js", source) for name, source in sources.items()}


def joined_from(entry: str, **sources: str) -> str:
    known = modules(**sources)

    def find(path: str) -> Module:
        if path not in known:
            raise JoinError(f"{path}: there is no such file")
        return known[path]

    return joined(in_order([f"{entry}.js"], find))


def test_a_module_precedes_those_that_import_it() -> None:
    text = joined_from(
        "a",
        a='import { b } from "./b.js";\nimport { c } from "./c.js";\nexport default b + c;\n',
        b='import { c } from "./c.js";\nexport const b = c;\n',
        c="export const c = 1;\n",
    )
    assert text == "const c = 1;\n\nconst b = c;\n\nexport default b + c;\n"


def test_an_import_over_several_lines_is_stripped() -> None:
    text = joined_from(
        "a",
        a='import {\n  one,\n  two,\n} from "./b.js";\none(two);\n',
        b="export function one() {}\nexport let two;\n",
    )
    assert text.splitlines()[-1] == "one(two);"
    assert "import" not in text


def test_documentation_comments_are_left_out() -> None:
    source = (
        "/** Of a. */\n/**\n * @param {number} b\n */\nexport function a(b) {\n"
        "  /** In it. */\n  return b;\n}\n"
    )
    assert parse("a.js", source).text == "function a(b) {\n  return b;\n}\n"


def test_type_in_a_line_of_code_stays() -> None:
    source = "const a = /** @type {number} */ (b);\n"
    assert parse("a.js", source).text == source


def test_code_between_a_type_and_a_comment_stays() -> None:
    source = "  /** @type {A} */ (a).focus();\n}\n/** Of b. */\nexport default b;\n"
    assert parse("a.js", source).text == source.replace("/** Of b. */\n", "")


def test_import_in_a_comment_or_string_stays() -> None:
    source = (
        '// import { a } from "./a.js"\nexport const text = `\n  import { b } from "./b.js";`;\n'
    )
    assert parse("c.js", source).imports == {}


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (
            {"a": 'import { b } from "./b.js";'},
            "a.js imports b.js: b.js: there is no such file",
        ),
        (
            {"a": 'import { b } from "./b.js";', "b": "export const c = 1;"},
            "a.js imports b, which b.js does not export: correct its name",
        ),
        (
            {"a": 'import { b } from "./b.js";', "b": "const b = 1;"},
            "a.js imports b, which b.js does not export: declare it with export in b.js",
        ),
        (
            {
                "a": 'import { b } from "./b.js";\nexport const a = 1;',
                "b": 'import { a } from "./a.js";\nexport const b = 1;',
            },
            "modules import each other in a circle: a.js -> b.js -> a.js",
        ),
        (
            {"a": 'import { b } from "./b.js";\nconst c = 1;', "b": "export const b = 1;\nlet c;"},
            "b.js and a.js both declare c",
        ),
    ],
)
def test_modules_that_do_not_fit_are_refused(sources: dict[str, str], message: str) -> None:
    with pytest.raises(JoinError, match=re.escape(message)):
        joined_from("a", **sources)


@pytest.mark.parametrize(
    "source",
    [
        'import b from "./b.js";',
        'import * as b from "./b.js";',
        'import { b as c } from "./b.js";',
        'import "./b.js";',
        "export { b };",
        'export * from "./b.js";',
        "export const { b } = c;",
        "export let [b] = c;",
    ],
)
def test_other_forms_of_import_and_export_are_refused(source: str) -> None:
    with pytest.raises(JoinError, match=r"a\.js: expected"):
        parse("a.js", source)


@pytest.mark.parametrize("folder", WIDGETS)
def test_a_script_loads_nothing(folder: str) -> None:
    assert re.findall(LOADS, script(folder) + style(folder), re.MULTILINE) == []


@pytest.mark.parametrize("folder", WIDGETS)
def test_a_script_exports_its_widget_alone(folder: str) -> None:
    assert re.findall(r"^export\b.{8}", script(folder), re.MULTILINE) == ["export default"]
    assert not re.search(r"^export\b", page_script(folder), re.MULTILINE)


def test_shared_script_needs_no_other_folder() -> None:
    assert {part.folder for part in shared_modules()} == {"base"}


def test_own_script_of_a_widget_leaves_out_the_shared_one() -> None:
    shared = shared_modules()[0].text.splitlines()[0]
    assert shared in joined(shared_modules())
    assert shared not in module("underflow")


def test_each_module_is_needed_by_a_widget() -> None:
    needed = {part.path for folder in WIDGETS for part in modules_of(folder)}
    needed |= {part.path for part in shared_modules()}
    needed |= {part.path for part in in_order(["embedded/embedded.js"])}  # of labkit.site
    known = {
        f"{folder.name}/{file.name}"
        for folder in FOLDERS.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".js")
    }
    assert known - needed == set()


def test_folder_without_a_view_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match=r"exact/view\.js"):
        script("exact")


EXPORTS = """
import { pathToFileURL } from "node:url";
const found = {};
for (const file of process.argv.slice(2)) {
  const module = await import(pathToFileURL(file).href);
  found[file] = [Object.keys(module), Object.keys(module.default)];
}
console.log(JSON.stringify(found));
"""


@pytest.mark.skipif(not ESBUILD.exists(), reason="esbuild is missing; `npm ci` installs it")
def test_a_joined_script_exports_what_esbuild_bundles(tmp_path: Path) -> None:
    bundles = tmp_path / "bundles"
    entries = [str(Path(str(FOLDERS)) / folder / "view.js") for folder in WIDGETS]
    options = ["--bundle", "--format=esm", "--log-level=error", "--out-extension:.js=.mjs"]
    subprocess.run([ESBUILD, *entries, *options, f"--outdir={bundles}"], check=True)
    for folder in WIDGETS:
        (tmp_path / f"{folder}.mjs").write_text(script(folder), encoding="utf-8")
    (tmp_path / "exports.mjs").write_text(EXPORTS)
    pairs = {tmp_path / f"{folder}.mjs": bundles / folder / "view.mjs" for folder in WIDGETS}
    files = [str(file) for pair in pairs.items() for file in pair]
    command = ["node", str(tmp_path / "exports.mjs"), *files]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for ours, bundled in pairs.items():
        assert found[str(ours)] == found[str(bundled)], ours.name
