"""What gets installed is what lies here, and CI runs what the README promises."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

import rankdiff

README_BLOCKS = ("ci:run", "ci:test")


@pytest.fixture(scope="module")
def project(repository: Path) -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


def test_package_list_equals_the_disk(project, repository):
    setuptools = project["tool"]["setuptools"]
    on_disk = set()
    for package, folder in setuptools["package-dir"].items():
        root = repository / folder
        for module in root.rglob("*.py"):
            parts = module.parent.relative_to(root).parts
            on_disk.add(".".join((package, *parts)))
    assert sorted(setuptools["packages"]) == sorted(on_disk)


def test_every_package_has_an_init_file(project, repository):
    setuptools = project["tool"]["setuptools"]
    for package in setuptools["packages"]:
        top, *rest = package.split(".")
        folder = repository.joinpath(setuptools["package-dir"][top], *rest)
        assert (folder / "__init__.py").is_file(), package


def test_every_data_file_is_installed(project, repository):
    setuptools = project["tool"]["setuptools"]
    patterns = {
        key: [re.compile(p.replace(".", r"\.").replace("*", "[^/]*")) for p in globs]
        for key, globs in setuptools["package-data"].items()
    }
    for package in setuptools["packages"]:
        top, *rest = package.split(".")
        folder = repository.joinpath(setuptools["package-dir"][top], *rest)
        for file in folder.rglob("*"):
            owner = file.parent
            while not (owner / "__init__.py").is_file():
                owner = owner.parent
            if owner != folder or not file.is_file() or file.suffix in {".py", ".pyc", ".nbi", ".nbc"}:
                continue
            name = file.relative_to(folder).as_posix()
            taken = any(p.fullmatch(name) for key in ("*", package) for p in patterns.get(key, []))
            assert taken, f"{file} is not in package-data"


def test_versions_agree(project, repository):
    version = project["project"]["version"]
    assert rankdiff.__version__ == version
    assert importlib.metadata.version("rankdiff") == version
    headings = re.findall(r"^## \[(.+?)\]", (repository / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert headings[0] == "Unreleased" or headings[0] == version


def test_lowest_constraints_are_the_declared_bounds(project, repository):
    declared = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["dev"]
    bounds = dict(requirement.split(">=") for requirement in declared)
    lines = (repository / "constraints" / "lowest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert {name: pinned.get(name) for name in bounds} == bounds
    assert set(pinned) - set(bounds) == {"pyparsing"}  # not ours: it came with the matplotlib of its time


def block_of(readme: str, marker: str) -> str:
    """Return the fenced block that follows ``<!-- marker -->``."""
    found = re.findall(rf"^<!-- {marker} -->\n+```\w*\n(.*?)^```$", readme, re.M | re.S)
    assert len(found) == 1, f"README.md has {len(found)} blocks {marker}"
    return found[0]


@pytest.mark.parametrize("marker", README_BLOCKS)
def test_ci_runs_the_commands_of_the_readme(repository, marker):
    bash = shutil.which("bash")
    assert bash
    shown = subprocess.run(
        [bash, repository / ".ci" / "run", "--show", marker], capture_output=True, text=True, check=True
    ).stdout
    commands = block_of((repository / "README.md").read_text(encoding="utf-8"), marker)
    assert commands.strip()
    assert shown == commands


def test_the_readme_tests_and_installs_with_pip(repository):
    readme = (repository / "README.md").read_text(encoding="utf-8")
    assert "python -m pytest" in block_of(readme, "ci:test")
    assert "rankdiff compare" in block_of(readme, "ci:run")
