"""A module imports only what stands above it, so that each can be read with what one has read already."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import gnlqueue

ROOT = Path(gnlqueue.__file__).parent

#: From top to bottom; the modules and packages of one line may import each other, but not in a circle.
LAYERS = [
    ["ids", "lengths", "exceptions", "conf", "backoff", "payloads", "signals"],  # know no model
    ["options", "answers"],
    ["registry"],
    ["indexes"],
    ["models"],
    ["redaction"],
    ["migrations"],
    ["dialects"],
    ["connection"],
    ["queue"],
    ["durable"],
    ["metrics"],
    ["worker"],
    ["finding"],
    ["bulk"],
    ["backends", "tasks", "templatetags", "admin", "checks", "testing", "inline", "apps"],
    [""],  # the package itself: exports
    ["management"],
]
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}

FILES = sorted(ROOT.rglob("*.py"))
MODULES = {
    ".".join(("gnlqueue", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in FILES
}


def imports_at_top(path: Path) -> Iterator[str]:
    """What a module of ours imports when it is imported: not what its functions do, nor what is for type checkers."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "gnlqueue")
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            if node.module is not None and node.module.split(".")[0] == "gnlqueue":
                for name in node.names:
                    submodule = f"{node.module}.{name.name}"
                    yield submodule if submodule in MODULES else node.module


GRAPH = {module: set(imports_at_top(path)) - {module} for module, path in MODULES.items()}


def part(module: str) -> str:
    """The part of the package that a module belongs to: a line of LAYERS has it."""
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_its_place(module: str) -> None:
    assert part(module) in LAYER, f"where does {module} stand?"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_stands_above_it(module: str) -> None:
    below = [other for other in GRAPH[module] if LAYER[part(other)] > LAYER[part(module)]]
    assert not below, f"{module} imports {', '.join(below)}"


def test_no_modules_import_each_other() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("module", MODULES)
def test_nobody_uses_the_session_s_clock(module: str) -> None:
    """Django's Now is in the session's time zone on MySQL, and the transaction's start on PostgreSQL."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("django"):
            assert "Now" not in [name.name for name in node.names]
        assert not (isinstance(node, ast.Attribute) and node.attr == "Now")
