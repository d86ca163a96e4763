"""Scripts after five tutorials of other frameworks, run with labkit's implementations.

Each script in seed_texts calls a framework as its tutorial does, but imports it from labkit. It
compares each training with a loop in torch alone. The names in NAMES are public: none is removed.
"""

import ast
import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.slowness import slowness

ROOT = Path(__file__).parents[2]
TEXTS = Path(__file__).with_name("seed_texts")
FRAMEWORKS_PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")

# A name in the text of a claim: before "(" or "=False", with an underscore, or MixedPrecision.
CLAIMED_NAME = re.compile(r"\b[A-Za-z]\w*(?==False|\()|\w+_\w+|MixedPrecision")
SCRIPTS_OF_CLAIM = {
    "C51": ["apex_text"],
    "C52": ["torch_amp_text", "torch_cuda_amp_text"],
    "C53": ["oneflow_text"],
    "C54": ["fastai_text"],
}

# The names that each tutorial shows, by the name of its script.
NAMES = {
    "apex_text": """
        initialize scale_loss opt_level loss_scale keep_batchnorm_fp32 master_weights
        master_params min_loss_scale max_loss_scale register_float_function
        register_half_function register_promote_function half_function float_function
        promote_function disable_casts num_losses loss_id delay_unscale enabled state_dict
        load_state_dict O0 O1 O2 O3
    """,
    "torch_amp_text": """
        autocast GradScaler device_type dtype enabled scale unscale_ step update
        clip_grad_norm_ state_dict load_state_dict get_scale custom_fwd custom_bwd
        init_scale
    """,
    "torch_cuda_amp_text": """
        autocast GradScaler enabled scale unscale_ step update clip_grad_norm_ get_scale
        custom_fwd custom_bwd cast_inputs init_scale
    """,
    "oneflow_text": """
        Graph config enable_amp set_grad_scaler GradScaler StaticGradScaler init_scale
        growth_factor backoff_factor growth_interval add_optimizer
        set_gradient_accumulation_steps CrossEntropyLoss
    """,
    "fastai_text": """
        convert_network get_master flat_master to_master_grads to_model_params grad_overflow
        test_overflow test_eq test_close test_is synth_learner synth_dbunch RegModel cuda
        splitter opt_func opt param_lists param_groups hypers set_hyper freeze unfreeze
        create_opt SGD Adam mom fit cbs recorder values to_fp16 to_fp32 to_non_native_fp16
        to_non_native_fp32 MixedPrecision ModelToHalf NonNativeMixedPrecision AMPMode
        dynamic max_loss_scale loss_scale model_pgs master_pgs model_grads_to_master_grads
        master_params_to_model_params one_batch BatchNorm Module first listify set_seed
        TestBeforeMixedPrecision TestAfterMixedPrecision
    """,
}


def script(name: str) -> Path:
    return TEXTS / f"{name}.py"


def used_in(name: str) -> set[str]:
    """Return the names, attributes, keywords and texts of a script's code.

    Comments and imports are left out.
    """
    used: set[str] = set()
    for node in ast.walk(ast.parse(script(name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            used.add(node.arg)
        elif isinstance(node, ast.ClassDef):
            used.add(node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value)
    return used


@pytest.mark.parametrize("name", NAMES)
def test_each_script_runs_as_a_file(name):
    done = subprocess.run(
        [sys.executable, str(script(name))],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100 * slowness(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": done\n")


def test_each_script_uses_every_name_of_its_tutorial():
    assert set(NAMES) == {path.stem for path in TEXTS.glob("*.py")}
    for name, names in NAMES.items():
        assert set(names.split()) - used_in(name) == set(), name


def test_scripts_import_labkit_torch_and_stdlib_alone():
    for name in NAMES:
        for node in ast.walk(ast.parse(script(name).read_text(encoding="utf-8"))):
            modules = []
            if isinstance(node, ast.ImportFrom):
                modules = [str(node.module)]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                package = module.split(".")[0]
                assert (
                    module.startswith("labkit.frameworks.")
                    or package == "torch"
                    or package in sys.stdlib_module_names
                ), (name, module)


def test_each_claim_about_a_framework_has_a_script():
    with (ROOT / "data" / "claims.csv").open(newline="", encoding="utf-8") as file:
        claims = {row["id"]: row["claim"] for row in csv.DictReader(file)}
    for claim, names in SCRIPTS_OF_CLAIM.items():
        called = set(CLAIMED_NAME.findall(claims[claim]))
        for name in names:
            text = script(name).read_text(encoding="utf-8")
            assert f"{claim} of data/claims.csv" in ast.get_docstring(ast.parse(text)), name
            assert called - used_in(name) == set(), (claim, name)
        assert called, claim


def test_page_of_frameworks_lists_fastais_names():
    shown = set(re.findall(r"\w+", FRAMEWORKS_PAGE))
    for module in ("basics", "callback", "fp16_utils", "test_utils", "torch_cuda_amp"):
        assert module in shown
    # parameters, attributes and callbacks of fastai's own tests, which the page need not list
    unlisted = {"cuda", "mom", "values", "TestBeforeMixedPrecision", "TestAfterMixedPrecision"}
    assert set(NAMES["fastai_text"].split()) - unlisted - shown == set()


def test_example_on_the_page_of_frameworks_runs():
    (example,) = re.findall(
        r"```python\n(from labkit\.frameworks\.fastai\.basics.*?)```", FRAMEWORKS_PAGE, re.S
    )
    scope: dict[str, Any] = {}
    exec(compile(example, "frameworks.md", "exec"), scope)
    assert [hyper["lr"] for hyper in scope["learn"].opt.hypers] == [1e-4, 1e-2]


def test_pytest_does_not_collect_the_frameworks_test_functions(tmp_path):
    file = tmp_path / "test_mine.py"
    file.write_text(
        "from labkit.frameworks.fastai.basics import *\n"
        "from labkit.frameworks.fastai.callback.fp16 import *\n"
        "from labkit.frameworks.fastai.test_utils import *\n"
        "def test_mine():\n    test_eq(test_overflow(tensor([1.0])), False)\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100 * slowness(),
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 passed in "), done.stdout
    assert "warning" not in done.stdout
