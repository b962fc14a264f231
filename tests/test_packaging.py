"""What import-linter cannot see: every package is in the wheel, and the library does not import the services."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

import kvboost
from kvboost.extras import EXTRAS

ROOT = Path(__file__).resolve().parent.parent


def packages_in(folder: str, name: str) -> set[str]:
    return {
        ".".join([name, *init.parent.relative_to(ROOT / folder).parts]) for init in (ROOT / folder).rglob("__init__.py")
    }


def test_the_wheel_holds_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["setuptools"]["packages"]) == (
        packages_in("kvboost", "kvboost") | packages_in("services", "kvboost.services")
    )


def test_the_version_is_said_once_and_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["version"] == kvboost.__version__


def test_the_library_does_not_import_the_services() -> None:
    for file in (ROOT / "kvboost").rglob("*.py"):
        assert "kvboost.services" not in file.read_text(encoding="utf-8"), file


TRANSFORMERS_API = ROOT / "kvboost" / "runtime" / "attention" / "transformers_api.py"
PRIVATE = re.compile(
    r"from transformers\.|import transformers\.|_attn_implementation|_hf_peft_config_loaded|ALL_(MASK_)?ATTENTION_"
    r"|AttentionInterface|AttentionMaskInterface|eager_attention_forward|model\._[a-z]"
)


def test_what_transformers_does_not_promise_is_named_in_one_file() -> None:
    files = [*(ROOT / "kvboost").rglob("*.py"), *(ROOT / "services").rglob("*.py"), *(ROOT / "evals").rglob("*.py")]
    named = {file for file in files if PRIVATE.search(file.read_text(encoding="utf-8"))}
    assert named == {TRANSFORMERS_API}


def test_the_private_names_of_transformers_are_these() -> None:
    tree = ast.parse(TRANSFORMERS_API.read_text(encoding="utf-8"))
    imports = {
        f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers.")
        for name in node.names
    }
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert imports == {
        "transformers.cache_utils.DynamicLayer",
        "transformers.integrations.sdpa_attention.sdpa_attention_forward",
        "transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS",
        "transformers.masking_utils.sdpa_mask",
        "transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS",
    }
    assert {name for name in attributes if re.match("_[a-z]", name)} == {
        "_attn_implementation",
        "_get_logits_processor",
        "_prepare_generation_config",
        "_prepare_special_tokens",
    }


def test_the_oldest_versions_that_are_tested_are_those_that_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    declared = [Requirement(line) for line in lines]
    pinned = dict(line.split("==") for line in (ROOT / "constraints-lowest.txt").read_text().split() if "==" in line)
    for one in declared:
        if one.name == "kvboost-chunks" or one.name == "torch":
            continue
        (floor,) = (spec.version for spec in one.specifier if spec.operator == ">=")
        assert Version(pinned[one.name]).release[: len(Version(floor).release)] == Version(floor).release, one
