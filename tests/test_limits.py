"""What keeps the code readable and its layers apart, held by machine."""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import re
import statistics
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kernel_space.core.kernel import Kernel
from kernel_space.core.registry import folder_of, kernel, operator, operator_names
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.conftest import LONG

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernel_space", "tuner")
SOURCES = sorted(
    [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    + list(ROOT.glob("*.py"))
    + list((ROOT / "benchmarks").glob("*.py"))
)
FILE_LINES = 335
FILE_LINES_MOST = 500
FUNCTION_LINES = 50
MEDIAN_FUNCTION_LINES = 12
MODULES = 15  # of one folder

# A warp role, or the kernel that starts the roles, is one traced sequence of barriers and copies: cut in pieces, its
# order would have to be gathered from several places.
_KERNEL = "kernel_space/operators/svdquant_gemm/sm100a/kernel.py"
_ROLE = "one warp role"
LONG_FILES = {_KERNEL: "the kernel: host side, launch, TMA warp and MMA warp, which walk the same sequence"}
LONG_FUNCTIONS = {
    f"{_KERNEL}:SvdquantGemmSm100a._launch": "TMA descriptors and launch",
    f"{_KERNEL}:SvdquantGemmSm100a.kernel": "allocations and barriers",
    f"{_KERNEL}:SvdquantGemmSm100a.tma_warp": _ROLE,
    f"{_KERNEL}:SvdquantGemmSm100a.mma_warp": _ROLE,
    "kernel_space/operators/svdquant_gemm/sm100a/epilogue.py:EpilogueSm100a.epilogue_warps": _ROLE,
    "kernel_space/operators/svdquant_gemm/sm90a_parts/consumer.py:ConsumerSm90a.consumer_warps": _ROLE,
    "kernel_space/operators/svdquant_gemm/sm90a_ring/producer.py:ProducerSm90a.dequant_warps": _ROLE,
    "kernel_space/operators/svdquant_gemm_16bit/wide/consumer.py:WideConsumer.consumer_warps": _ROLE,
    "benchmarks/published_kernel.py:PublishedKernel.mma_warp": _ROLE,
}

# Imports among the folders right below a package, of all that loads with a module: pairs of folders, and the longest
# way down. They may sink: then the numbers here sink with them.
PAIRS = {"tuner": 64, "kernel_space": 16}
LEVELS = {"tuner": 8, "kernel_space": 4}
# The same where every folder counts, however deep.
DEEP_PAIRS = {"tuner": 133, "kernel_space": 264}

OPERATORS = ROOT / "kernel_space" / "operators"
# Code that may know an operator by name; the name of the distribution, its command and variables say nothing of one.
OPERATOR_CODE = (OPERATORS, ROOT / "tuner" / "layers")
OPERATOR_NAMES = re.compile(r"lora|svdquant|mnk", re.IGNORECASE)
DISTRIBUTION = re.compile(r"svdquant[-_]autotuner|svdquant[-_]tune|SVDQUANT_[A-Z]+")
LOADS_THE_DSL = {
    "benchmarks/published_kernel.py": "a generator too: another's kernel, for the timing evidence only",
    "kernel_space/composite/host.py": "the source of every chain: it calls its links' host functions",
}
TOUCHES_ENVIRONMENT = {
    "kernel_space/core/registry.py": "names folders with operators for the processes that it starts",
    "kernel_space/places.py": "where results and the cache lie",
    "kernel_space/build/dsl_env.py": "sets what the DSL reads at import",
    "tuner/compile/worker.py": "sets what the DSL reads at import, and hides GPUs from it",
}
OPENS_BY_ITSELF = {
    "tuner/files/plain_yaml.py": "the loader",
    "tuner/simulated/constants/store.py": "a file of this checkout",
    "kernel_space/selfcheck/fixture.py": "a file that the user names",
    "tuner/simulated/machine_check.py": "verdicts in the user's build cache",
}


@pytest.fixture(scope="module", autouse=True)
def syntax_trees() -> Iterator[None]:
    """A dozen tests walk them all; tests of other files need the memory."""
    yield
    parse.cache_clear()


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(module, line) of every import below ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.lineno


def imported_at_load(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Imports that run when the module is loaded: outside functions and ``if TYPE_CHECKING``."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imported(node)
        waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """(qualified name, node) of every function and method, nested ones included."""
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        prefix, node = waiting.pop()
        for child in ast.iter_child_nodes(node):
            name = getattr(child, "name", "")
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{prefix}{name}", child
            waiting.append((f"{prefix}{name}." if name else prefix, child))


def code_lines(path: Path, node: ast.FunctionDef) -> int:
    """Lines of the body without docstring, comments and blank lines."""
    body = node.body
    if isinstance(body[0], ast.Expr) and isinstance(getattr(body[0], "value", None), ast.Constant):
        body = body[1:]
    if not body:
        return 0
    return sum(body[0].lineno <= line <= (node.end_lineno or 0) for line in lines_with_code(path))


def lines_with_code(path: Path, _seen: dict[Path, set[int]] = {}) -> set[int]:  # noqa: B006
    """Line numbers that hold a token other than a comment."""
    if path not in _seen:
        skip = {
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        }
        with path.open("rb") as file:
            tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in skip]
        _seen[path] = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    return _seen[path]


def test_kernel_space_never_imports_tuner() -> None:
    found = [
        f"{relative(path)}:{line} imports {module}"
        for path in SOURCES
        if relative(path).startswith("kernel_space/")
        for module, line in imported(parse(path))
        if module.split(".")[0] in ("tuner", "tune")
    ]
    assert not found


def test_tuner_never_imports_the_command_line() -> None:
    found = [
        f"{relative(path)}:{line} imports {module}"
        for path in SOURCES
        if relative(path).startswith("tuner/") and not relative(path).startswith("tuner/cli/")
        for module, line in imported(parse(path))
        if module == "tune" or re.match(r"tuner\.cli", module)
    ]
    assert not found


def test_only_kernel_files_load_the_dsl() -> None:
    """Below ``operators/``; and what they import is there too, so that no other module loads it with one of them."""
    at_load = {path: list(imported_at_load(parse(path))) for path in SOURCES}
    kernels = {
        relative(path).removesuffix(".py").replace("/", ".")
        for path, found in at_load.items()
        if any(module.split(".")[0] in ("cutlass", "cuda") for module, _ in found)
    }
    found = [
        f"{relative(path)}:{line} imports {module}"
        for path in SOURCES
        if OPERATORS not in path.parents and relative(path) not in LOADS_THE_DSL
        for module, line in at_load[path]
        if module.split(".")[0] in ("cutlass", "cuda") or module in kernels
    ]
    assert not found
    light = {relative(path) for path in SOURCES if path.name in ("config.py", "rules.py", "budget.py")}
    assert not [name for name in light if name.removesuffix(".py").replace("/", ".") in kernels]


def test_folders_are_small() -> None:
    counts = collections.Counter(relative(path.parent) for path in SOURCES if path.name != "__init__.py")
    assert not {name: count for name, count in counts.items() if count > MODULES and name != "benchmarks"}


def test_folders_say_what_they_hold() -> None:
    inits = [path for path in SOURCES if path.name == "__init__.py"]
    assert not [relative(path) for path in inits if not ast.get_docstring(parse(path))]


def test_folders_do_not_import_one_another_in_a_circle() -> None:
    """By what is imported when modules load."""
    modules = {relative(path).removesuffix(".py").replace("/", "."): path for path in SOURCES}
    needs: dict[str, set[str]] = collections.defaultdict(set)
    for path in SOURCES:
        for module, names in imported_names_at_load(parse(path)):
            found = [modules.get(f"{module}.{name}") or modules.get(module) for name in names]
            needs[relative(path.parent)] |= {relative(one.parent) for one in found if one}
    above = {folder: reached(needs, folder) for folder in list(needs)}
    circles = {frozenset({a, b}) for a in above for b in above[a] if a != b and a in above.get(b, ())}
    assert not [sorted(pair) for pair in circles]


def imported_names_at_load(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    lines = {line for _, line in imported_at_load(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.lineno in lines:
            yield node.module or "", [alias.name for alias in node.names]


def reached(needs: dict[str, set[str]], start: str) -> set[str]:
    """Folders that ``start`` imports, directly or not."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for folder in needs.get(waiting.pop(), set()) - found:
            found.add(folder)
            waiting.append(folder)
    return found


def folder_pairs(package: str, depth: int | None) -> set[tuple[str, str]]:
    """(folder, folder that it imports) below ``package``; what is deeper than ``depth`` counts as what it is in."""

    def place(path: Path) -> str:
        return "/".join(path.parent.relative_to(ROOT).parts[:depth])

    sources = [path for path in SOURCES if relative(path).startswith(f"{package}/")]
    modules = {relative(path).removesuffix(".py").removesuffix("/__init__"): path for path in sources}
    found = set()
    for path in sources:
        for module, names in imported_names_at_load(parse(path)):
            at = module.replace(".", "/")
            needed = [modules.get(f"{at}/{name}") or modules.get(at) for name in names]
            found |= {(place(path), place(one)) for one in needed if one}
    return {(user, used) for user, used in found if user != used and package not in (user, used)}


def levels(pairs: set[tuple[str, str]]) -> int:
    """Folders on the longest way down, the first and the last included."""
    below: dict[str, set[str]] = collections.defaultdict(set)
    for user, used in pairs:
        below[user].add(used)

    def height(folder: str) -> int:
        return 1 + max(map(height, below.get(folder, ())), default=0)

    return max(map(height, list(below)))


def test_pairs_and_levels_of_a_picture() -> None:
    """a needs b and c, b needs d, d needs e."""
    assert levels({("a", "b"), ("a", "c"), ("b", "d"), ("d", "e"), ("c", "e")}) == 4


@pytest.mark.parametrize("package", PACKAGES)
def test_folders_import_few_others(package: str) -> None:
    pairs = folder_pairs(package, 2)
    counts = collections.Counter(user for user, _ in pairs)
    assert (len(pairs), levels(pairs)) == (PAIRS[package], LEVELS[package]), counts.most_common()
    assert len(folder_pairs(package, None)) <= DEEP_PAIRS[package]


GENERIC = [
    path for path in SOURCES if relative(path).startswith(PACKAGES) and not {*path.parents} & {*OPERATOR_CODE}
]


def test_generic_code_names_no_operator() -> None:
    """Code, comments and texts of everything but the operators and the layers made from them."""
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in GENERIC
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if OPERATOR_NAMES.search(DISTRIBUTION.sub("", line))
    ]
    assert not found
    assert not [relative(path) for path in GENERIC if OPERATOR_NAMES.search(path.name)]


def test_generic_code_imports_no_operator() -> None:
    """Which operators there are, and the name of the usual one, is all that it may ask of their folder."""
    found = [
        f"{relative(path)}:{line} imports {module}"
        for path in GENERIC
        for module, line in imported(parse(path))
        if re.match(r"kernel_space\.operators\.", module)
    ]
    asked = {
        alias.name
        for path in GENERIC
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ImportFrom) and node.module == "kernel_space.operators"
        for alias in node.names
    }
    assert not found
    assert asked <= {"DEFAULT"}


def test_kernel_files_have_live_annotations() -> None:
    """The DSL evaluates annotations of traced functions: as strings they are lost."""
    found = [
        relative(path)
        for path in SOURCES
        if re.search(r"^ *@cute\.(jit|kernel|struct)", path.read_text(), re.M)
        and "from __future__ import annotations" in path.read_text()
    ]
    assert not found


def test_types_are_checked_but_in_what_another_compiler_reads() -> None:
    overrides = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    left_out = [module for one in overrides if one.get("ignore_errors") for module in one["module"]]
    compiled = [
        relative(path).removesuffix(".py").replace("/", ".")
        for path in SOURCES
        if {module.split(".")[0] for module, _ in imported_at_load(parse(path))}
        & {"cutlass", "cuda", "triton"}
    ]
    assert sorted(left_out) == sorted(compiled)


def test_every_silenced_type_error_says_why() -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if "# type: ignore" in line and not re.search(r"# type: ignore\[[\w-]+\]  # \w", line)
    ]
    assert not found


def test_environment_is_read_in_one_place_each() -> None:
    found = {
        f"{relative(path)}:{node.lineno}"
        for path in SOURCES
        if relative(path).startswith(PACKAGES) and relative(path) not in TOUCHES_ENVIRONMENT
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb", "putenv")
    }
    assert not found


def test_files_of_others_are_opened_in_one_place_each() -> None:
    """YAML by ``plain_yaml``, which knows bombs; JSON of folders by ``store``; whole folders are never copied."""
    found = {
        relative(path)
        for path in SOURCES
        if relative(path).startswith(PACKAGES)
        and re.search(
            r"\byaml\.(safe_)?load|\bcopytree\(|shutil\.copy|json\.loads\(path\.read", path.read_text()
        )
    }
    assert found == OPENS_BY_ITSELF.keys()


def test_files_are_short() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in SOURCES}
    too_long = {
        name: lines for name, lines in lengths.items() if lines > FILE_LINES and name not in LONG_FILES
    }
    most = max(len(too_long), 1)
    assert all(lines <= FILE_LINES_MOST for lines in too_long.values()), too_long
    assert most <= max(1, len(lengths) // 10), (
        f"more than one file in ten is over {FILE_LINES} lines: {too_long}"
    )
    assert all(lengths.get(name, 0) > FILE_LINES for name in LONG_FILES), (
        "an exemption is not needed any more"
    )


def test_functions_are_short() -> None:
    lengths = {
        f"{relative(path)}:{name}": code_lines(path, node)
        for path in SOURCES
        for name, node in functions(parse(path))
    }
    too_long = {
        name: lines
        for name, lines in lengths.items()
        if lines > FUNCTION_LINES and name not in LONG_FUNCTIONS
    }
    assert not too_long
    assert statistics.median(lengths.values()) <= MEDIAN_FUNCTION_LINES
    assert all(lengths.get(name, 0) > FUNCTION_LINES for name in LONG_FUNCTIONS), (
        "an exemption is not needed any more"
    )


KERNELS = [
    kernel(name, one)
    for name in operator_names()
    if OPERATORS in folder_of(name).parents
    and operator(name).composed is None  # a chain's follow from its links'
    for one in operator(name).kernels
]


@pytest.mark.parametrize("one", KERNELS, ids=lambda one: one.full_name)
def test_knobs_of_the_space_are_the_fields_of_the_config(one: Kernel) -> None:
    document = yaml.safe_load((ROOT / "search_spaces" / f"{one.full_name}.yaml").read_text())
    assert list(document["knobs"]) == [field.name for field in dataclasses.fields(one.config_class)]


@pytest.mark.parametrize("one", KERNELS, ids=lambda one: one.full_name)
def test_every_knob_is_explained_where_it_is_defined(one: Kernel) -> None:
    """And nothing else: a knob that is gone is not."""
    knobs = re.findall(r"^    ``(\w+)``  ", one.config_class.__doc__ or "", re.M)
    assert knobs == list(one.config_class.knob_names())


def test_readme_names_what_exists() -> None:
    """Every knob, command and option of README exists, and every knob and command is in README."""
    from tuner.cli.main import COMMANDS, parser_of

    text = (ROOT / "README.md").read_text()
    assert not [
        name for name in (*KernelConfigSm100a.knob_names(), *COMMANDS) if not re.search(rf"\b{name}\b", text)
    ]
    options = {option for name in COMMANDS for option in parser_of(name)._option_string_actions}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    assert mentioned <= options | {"--version", "--extra-index-url"}, mentioned - options


def test_readme_paths_exist() -> None:
    for document in ("README.md", "CONTRIBUTING.md", "docs/architecture.md"):
        text = (ROOT / document).read_text()
        paths = set(
            re.findall(r"`((?:kernel_space|tuner|search_spaces|docs|tests|benchmarks)/[\w./]+)`", text)
        )
        missing = sorted(path for path in paths if not (ROOT / path).exists())
        assert not missing, f"{document} names {missing}"


def test_make_targets_of_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\s*make ([a-z-]+)", (ROOT / "README.md").read_text(), re.M):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_files_that_begin_first_exist() -> None:
    assert [name for name in LONG if not (ROOT / "tests" / name).is_file()] == []


def test_nothing_names_the_machine_it_was_made_on() -> None:
    found = [
        f"{relative(path)}: {match.group()}"
        for path in [
            *SOURCES,
            *ROOT.glob("*.md"),
            *(ROOT / "docs").glob("*.md"),
            *(ROOT / "tests").rglob("*.py"),
        ]
        if path.name != "test_limits.py"
        for match in re.finditer(r"(?<![\w.])/(?:root|work)/[\w./-]+", path.read_text())
    ]
    assert not found
