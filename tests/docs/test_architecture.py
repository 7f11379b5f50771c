"""docs/architecture.md against the imports; links and paths of all pages against the files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

ELSEWHERE = {"dense_blockscaled_gemm_persistent.py"}  # an example of NVIDIA's CUTLASS
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()


def levels(package: str) -> dict[str, int]:
    """Folder -> level, of the picture under the heading of ``package``."""
    picture = re.search(rf"^## {package}\n.*?^```\n(.*?)^```", ARCHITECTURE, re.M | re.S)
    assert picture
    lines = (line.split() for line in picture.group(1).splitlines())
    return {folder: int(level) for level, *folders in lines for folder in folders}


def beside(package: str) -> set[str]:
    """Modules that lie beside the folders of ``package``, below all of them."""
    return {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}


def arrows(package: str) -> Iterator[tuple[str, str]]:
    """(folder, folder that it imports) for every import between folders, those inside of functions too."""
    for path in (ROOT / package).rglob("*.py"):
        folder, *rest = path.relative_to(ROOT / package).parts
        if not rest:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                own, *below = (node.module or "").split(".")
                if own == package and below and below[0] not in (folder, *beside(package)):
                    yield folder, below[0]


@pytest.mark.parametrize("package", ["kernel_space", "tuner"])
def test_picture_is_that_of_the_imports(package: str) -> None:
    drawn = levels(package)
    there = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert set(drawn) == there
    found = set(arrows(package))
    assert len(found) > 10
    assert not [(one, other) for one, other in found if drawn[one] <= drawn[other]]


def test_modules_beside_the_folders_import_none_of_them() -> None:
    assert beside("kernel_space") == {"places"} and beside("tuner") == {"processes"}
    tree = ast.parse((ROOT / "kernel_space" / "places.py").read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert modules == ["__future__", "pathlib"]
    tree = ast.parse((ROOT / "tuner" / "processes.py").read_text())
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert sorted(map(str, modules)) == ["__future__", "collections.abc", "typing"]


def test_every_folder_is_explained() -> None:
    for package in ("kernel_space", "tuner"):
        for folder in levels(package):
            assert re.search(rf"^\| `{folder}` \|", ARCHITECTURE, re.M), folder


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert not [link for link in links if not _is_there(page, link)]


def _is_there(page: Path, link: str) -> bool:
    """The file, and the heading that stands behind ``#`` as GitHub spells it."""
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_modules_that_are_named_exist(page: Path) -> None:
    """As ``tuner/x.py``, or without what the text around it says: ``x.py``."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    files = ["/" + path.relative_to(ROOT).as_posix() for path in _sources()]
    missing = {name for name in named if not any(path.endswith("/" + name) for path in files)}
    assert not missing - ELSEWHERE


def _sources() -> Iterator[Path]:
    yield from ROOT.glob("*.py")
    for folder in ("kernel_space", "tuner", "tests", "benchmarks"):
        yield from (ROOT / folder).rglob("*.py")


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert not {page for page in pages - {"README.md"} if f"]({page})" not in index}
