"""Builds of small kernels: what is in the artifacts, the cache's key and life, resources, compiler errors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernel_space.build import key as build_key
from kernel_space.build.build import CompiledKernel, CompileError, build, cached_build, default_cache_dir
from kernel_space.build.cache import BuildCache
from kernel_space.build.dsl_compile import compile_for_capture
from kernel_space.build.key import source_hash
from kernel_space.build.resources import Resources, ToolError, disassemble, read_resources, sass_counts
from kernel_space.core.arch import SM90A, SM100A, SM103A, Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import ProblemClass
from kernel_space.core.registry import kernel, operator
from kernel_space.launch.capture import capture
from kernel_space.launch.elf import read_elf
from kernel_space.operators.svdquant_gemm.problem import GemmProblem

STAMP = SM100A
StampProblem, StampConfig = operator("stamp").problem, kernel("stamp", "stamp").config_class
CLASS = StampProblem.class_of(r=0)
# The codes of the operator's kernel.py, which cannot be imported here without the DSL.
PTXAS_ERROR, TRACE_ERROR, WRONG_ARGUMENTS = 104, 105, 106


def config(value: int = 0, code: int = 1, num_stage: int | str = 1) -> KernelConfig:
    return StampConfig(value=value, behaviour=code, num_stage=num_stage)


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def compiled(cache_dir: Path) -> CompiledKernel:
    return build(config(7), CLASS, STAMP, cache_dir=cache_dir)


def test_artifacts_belong_together(compiled: CompiledKernel, cache_dir: Path) -> None:
    assert "10000007" in compiled.ptx
    assert ".target sm_100a" in compiled.ptx
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.cubin in compiled.object_path.read_bytes()
    assert hashlib.sha256(compiled.cubin).hexdigest() == compiled.cubin_sha256
    assert hashlib.sha256(compiled.object_path.read_bytes()).hexdigest() == compiled.object_sha256
    assert compiled.directory == cache_dir / compiled.key
    assert [(a.name, a.kind) for a in compiled.arguments] == [("y", "pointer"), ("stream", "stream")]
    assert (compiled.config, compiled.arch, compiled.problem_class) == (str(config(7)), "sm_100a", str(CLASS))
    (launch,) = capture(compiled, 0x1000, 0)
    assert (launch.grid, launch.block) == ((1, 1, 1), (32, 1, 1))


@pytest.mark.parametrize("arch", [SM103A, SM90A], ids=lambda arch: arch.name)
def test_the_record_decides_the_target(arch: Arch, cache_dir: Path) -> None:
    built = build(config(7), CLASS, arch, cache_dir=cache_dir)
    assert f".target {arch.name}" in built.ptx


def test_no_time_goes_into_source_lines_and_the_code_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the DSL's own ``cute.compile`` with the log of ptxas asked for, which looks up a line per operation."""
    from cutlass import cute
    from cutlass._mlir_helpers import op
    from stamp.stamp import kernel as stamp

    looked_up: list[str] = []
    original = op._fast_frameinfo
    monkeypatch.setattr(
        op, "_fast_frameinfo", lambda frame: looked_up.append(frame.f_code.co_name) or original(frame)
    )
    arch = SM90A
    built = build(config(8), CLASS, arch, cache_dir=tmp_path / "cache")
    assert looked_up == []
    function, arguments = stamp.host_function(config(8), CLASS, arch)
    flags = f"--gpu-arch sm_90a --keep-ptx --dump-dir {tmp_path} remarks{{ptx}} --remark-output {tmp_path}/remarks"
    ours = cute.compile(function, *arguments, options=flags)
    assert "kernel" in looked_up
    assert ours.__ptx__ == built.ptx


def test_host_code_runs_on_any_cpu_of_the_kind(compiled: CompiledKernel) -> None:
    """No AVX (ymm, zmm registers) in the object, whatever the CPU here has. objdump is the witness."""
    try:
        done = subprocess.run(["objdump", "-d", compiled.object_path], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("objdump is not installed")
    assert f"<_mlir_{compiled.prefix}_cuda_init>:" in done.stdout
    assert not re.search(r"%[yz]mm", done.stdout)


def test_a_hit_needs_no_compiler(compiled: CompiledKernel, cache_dir: Path) -> None:
    """In a process of its own: the same record, and the DSL was never imported."""
    script = f"""
import sys
from pathlib import Path
from tests.build.test_build import CLASS, STAMP, config
from kernel_space.build.build import build
print(build(config(7), CLASS, STAMP, cache_dir=Path({str(cache_dir)!r})).cubin_sha256, "cutlass" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [compiled.cubin_sha256, "False"]


def test_builds_are_reproducible(compiled: CompiledKernel, tmp_path: Path) -> None:
    again = build(config(7), CLASS, STAMP, cache_dir=tmp_path)
    assert again.directory != compiled.directory
    for name in ("kernel.ptx", "kernel.cubin", "kernel.o", "kernel.h"):
        assert (again.directory / name).read_bytes() == (compiled.directory / name).read_bytes()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (PTXAS_ERROR, r"^ptxas: line \d+: .*no.*$"),
        (TRACE_ERROR, r"no tile of width 0"),
    ],
)
def test_compiler_errors_are_one_line_and_leave_nothing(code: int, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=reason) as caught:
        build(config(7, code), CLASS, STAMP, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_arguments_must_be_those_of_the_host_function(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="must take the arguments of its operator"):
        build(config(7, WRONG_ARGUMENTS), CLASS, STAMP, cache_dir=tmp_path)


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be resolved before it is built, num_stage is auto"):
        build(config(num_stage="auto"), CLASS, STAMP, cache_dir=tmp_path)
    with pytest.raises(InputError, match="svdquant_gemm has no kernel 'stamp'"):
        build(config(), GemmProblem.class_of(r=0), SM100A, cache_dir=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="the build cache must be a directory"):
        build(config(), CLASS, STAMP, cache_dir=tmp_path / "file" / "cache")


# -- key -----------------------------------------------------------------------------------------------------------


def test_the_key_names_everything_that_decides_the_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(config_: KernelConfig = config(1), class_: ProblemClass = CLASS, arch: Arch = STAMP) -> str:  # noqa: B008
        return build_key.build_key(config_, class_, arch)

    base = key()
    assert base == key()
    others = [
        key(config_=config(2)),
        key(class_=StampProblem.class_of(r=16)),
        key(class_=StampProblem.class_of(r=0, out_dtype="bf16")),
        key(arch=SM103A),
        key(config_=kernel("stamp", "other").config_class(value=1, num_stage=1)),
    ]
    toolchain = build_key.toolchain()
    changed = dataclasses.replace(toolchain, packages=("nvidia-cutlass-dsl-libs-cu13==4.8.1",))
    monkeypatch.setattr(build_key, "toolchain", lambda: changed)
    others.append(key())
    monkeypatch.setattr(build_key, "toolchain", lambda: toolchain)
    monkeypatch.setattr(build_key, "kernel_source_hash", lambda kernel: "other sources")
    others.append(key())
    assert len({base, *others}) == 8


def test_the_toolchain_is_what_pip_installed() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=True,
    )
    versions = {item["name"]: item["version"] for item in json.loads(listed.stdout)}
    toolchain = build_key.toolchain()
    assert toolchain.dsl_version == versions["nvidia-cutlass-dsl"]
    assert f"nvidia-cutlass-dsl-libs-{toolchain.variant}" in versions
    assert f"nvidia-cutlass-dsl-libs-base=={versions['nvidia-cutlass-dsl-libs-base']}" in toolchain.packages


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel module that imports a neighbour, which imports another one; and one that nobody imports."""
    root = tmp_path / "made_up"
    root.mkdir()
    for name, text in {
        "__init__": "",
        "kernel": "from . import near\nimport os\n",
        "near": "def f():\n    from made_up.far import g\n",
        "far": "g = 1\n",
        "unrelated": "h = 1\n",
    }.items():
        (root / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "made_up", raising=False)
    return root


@pytest.mark.parametrize(
    ("name", "counts"),
    [("kernel", True), ("near", True), ("far", True), ("__init__", True), ("unrelated", False)],
)
def test_the_source_hash_covers_what_the_kernel_imports(package: Path, name: str, counts: bool) -> None:
    before = source_hash.__wrapped__("made_up.kernel")
    file = package / f"{name}.py"
    file.write_text(file.read_text() + "changed = True\n")
    assert (source_hash.__wrapped__("made_up.kernel") != before) is counts


def test_a_source_that_is_no_python_is_one_line(package: Path) -> None:
    (package / "near.py").write_text("def f(:\n")
    with pytest.raises(InputError, match=r"made_up\.near is not Python: line 1"):
        source_hash.__wrapped__("made_up.kernel")


def test_the_source_hash_does_not_depend_on_where_files_lie(package: Path) -> None:
    before = source_hash.__wrapped__("made_up.kernel")
    (package / "near.py").unlink()
    (package / "parts").mkdir()
    (package / "parts" / "__init__.py").write_text('"""Parts."""\n')
    (package / "parts" / "nearer.py").write_text("def f():\n    from made_up.far import g  # moved\n")
    (package / "kernel.py").write_text("import os\nfrom made_up.parts import nearer\n")
    assert source_hash.__wrapped__("made_up.kernel") == before


def test_the_real_kernel_depends_on_its_layouts_and_config() -> None:
    names = set(build_key._closure("kernel_space.operators.svdquant_gemm.sm100a.kernel"))
    assert {
        "kernel_space.operators.svdquant_gemm.sm100a.kernel",
        "kernel_space.core.config",
        "kernel_space.operators.svdquant_gemm.signature",
    } <= names
    assert "kernel_space.build.build" not in names


@pytest.mark.parametrize("name", ["svdquant_gemm", "nvfp4_quantize"])
def test_what_generic_code_knows_of_a_kernel_is_no_source_of_it(name: str) -> None:
    """Else a change in the search or the registry would make every measured row stale."""
    generic = {f"kernel_space.core.{one}" for one in ("kernel", "operator", "registry", "rules", "traits")}
    for one in operator(name).kernels:
        assert not generic & set(build_key._closure(kernel(name, one).source)), one


# -- cache ---------------------------------------------------------------------------------------------------------


def key(number: int) -> str:
    """Of an entry: 64 hexadecimal digits."""
    return f"{number:064x}"


def entry(cache: BuildCache, number: int, size: int, used: float) -> None:
    cache.store(key(number), {"data": b"x" * size}, {})
    os.utime(cache.path(key(number)) / "meta.json", (used, used))


def keys(cache: BuildCache) -> list[int]:
    return sorted(int(path.name, 16) for path in cache.directory.iterdir() if not path.name.startswith("."))


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    now = time.time()
    cache = BuildCache(tmp_path, max_bytes=25_000)
    for number, age in ((1, 50_000), (2, 40_000), (3, 30_000)):
        entry(cache, number, 10_000, now - age)
    assert cache.load(key(1)) is not None  # now it is the youngest
    cache.evict()
    assert keys(cache) == [1, 3]


def test_entries_in_use_stay_even_beyond_the_size(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, max_bytes=1)
    entry(cache, 1, 1000, time.time())
    entry(cache, 2, 1000, time.time() - 7200)
    cache.evict()
    assert keys(cache) == [1]


def test_storing_keeps_the_size_without_being_asked(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, max_bytes=10_000, grace_seconds=0)
    for i in range(200):
        cache.store(key(i), {"data": b"x" * 1000}, {})
    assert len(keys(cache)) < 10 + 64  # it looks every 64 entries
    assert 199 in keys(cache)


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "meta", "meta is a list"])
def test_a_damaged_entry_is_rebuilt(damage: str, tmp_path: Path) -> None:
    first = build(config(9), CLASS, STAMP, cache_dir=tmp_path)
    good = first.object_path.read_bytes()
    if damage == "flip":
        first.object_path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "cut":
        first.object_path.write_bytes(good[:100])
    elif damage == "delete":
        first.object_path.unlink()
    else:
        (first.directory / "meta.json").write_text("{" if damage == "meta" else "[]")
    assert cached_build(config(9), CLASS, STAMP, cache_dir=tmp_path) is None
    again = build(config(9), CLASS, STAMP, cache_dir=tmp_path)
    assert again.object_path.read_bytes() == good
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [first.key]


def test_the_first_of_two_writers_stays(tmp_path: Path) -> None:
    first, second = BuildCache(tmp_path), BuildCache(tmp_path)
    first.store(key(1), {"data": b"first"}, {})
    second.store(key(1), {"data": b"second"}, {})
    assert (tmp_path / key(1) / "data").read_bytes() == b"first"
    assert keys(first) == [1]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tmp-")]


def test_a_folder_that_another_process_is_done_with_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between listing the folders and looking at one of them its writer renames it."""
    cache = BuildCache(tmp_path)
    cache.store(key(1), {"data": b"whole"}, {})
    (tmp_path / ".tmp-of-another").mkdir()
    listed = list(os.scandir(tmp_path))
    (tmp_path / ".tmp-of-another").rename(tmp_path / ".gone")
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed if path == tmp_path else scandir(path))
    cache.evict()
    assert (tmp_path / key(1) / "data").read_bytes() == b"whole"


WRITER = """
import sys
from pathlib import Path
from kernel_space.build.cache import BuildCache
cache = BuildCache(Path(sys.argv[1]), max_bytes=30_000, grace_seconds=0)
print("ready", flush=True)
i = 0
while True:
    cache.store(f"{i % 20:064x}", {"a": b"%d" % i * 1000, "b": b"%d" % i * 1000}, {"i": i})
    cache.evict()
    i += 1
"""


def test_readers_never_see_half_an_entry(tmp_path: Path) -> None:
    """A writer that stores and evicts without pause and is killed: every entry loaded meanwhile is whole."""
    cache = BuildCache(tmp_path)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    hits, end = 0, time.monotonic() + 1.5
    while time.monotonic() < end:
        for i in range(20):
            meta = cache.load(key(i))
            hits += meta is not None
            assert meta is None or sorted(meta["files"]) == ["a", "b"]
    writer.kill()
    writer.wait()
    assert hits > 20
    for number in keys(cache):
        data = {name: (tmp_path / key(number) / name).read_bytes() for name in ("a", "b")}
        assert data["a"] == data["b"]


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    (tmp_path / ".tmp-old").mkdir()
    os.utime(tmp_path / ".tmp-old", (0, 0))
    (tmp_path / ".tmp-new").mkdir()
    cache.evict()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [".tmp-new"]


def test_the_default_place_follows_the_xdg_convention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/svdquant-tune/build")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_cache_dir() == Path("/home/someone/.cache/svdquant-tune/build")
    monkeypatch.setenv("SVDQUANT_TUNE_CACHE", "/fast/kernels")
    assert default_cache_dir() == Path("/fast/kernels/build")


# -- resources -----------------------------------------------------------------------------------------------------


def register_count(cubin: bytes) -> int:
    """The EIATTR_REGCOUNT note (format 4, attribute 0x2f: symbol, count) in the cubin's .nv.info section."""
    section = read_elf(cubin).section(".nv.info")
    assert section is not None
    data, at = section.data, 0
    while data[at : at + 2] != b"\x04\x2f":
        at += 4 + int.from_bytes(data[at + 2 : at + 4], "little")
    return int.from_bytes(data[at + 8 : at + 12], "little")


def test_resources_are_those_of_the_cubin(compiled: CompiledKernel) -> None:
    assert compiled.resources.registers == register_count(compiled.cubin)
    assert compiled.resources.stack_bytes == compiled.resources.spill_bytes == 0
    counts = compiled.sass_counts()
    assert counts["STG"] == 1
    listing = disassemble(compiled.cubin_path)
    assert sum(counts.values()) == len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", listing, re.M))


@pytest.mark.filterwarnings("ignore:This static loop")
def test_spills_equal_the_report_of_ptxas(tmp_path: Path) -> None:
    """Oracle: ptxas' own report for this compilation, which the DSL writes as a remark."""
    import torch
    from cutlass.cute.runtime import from_dlpack

    from tests.kernels.spilling import mix

    remarks = tmp_path / "remarks.yaml"
    tensor = from_dlpack(torch.zeros(40960))
    compiled = compile_for_capture(
        mix, tensor, tensor, options=f"--remark-filter ptxas --remark-output {remarks}"
    )
    report = remarks.read_text()
    (stack, stores, loads) = re.search(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", report
    ).groups()
    (registers,) = re.search(r"Used (\d+) registers", report).groups()
    (tmp_path / "mix.cubin").write_bytes(compiled.cubin)
    (resources,) = read_resources(tmp_path / "mix.cubin").values()
    assert int(stores) > 0
    assert resources == Resources(
        registers=int(registers),
        stack_bytes=int(stack),
        static_smem_bytes=0,
        spill_store_bytes=int(stores),
        spill_load_bytes=int(loads),
    )


def test_a_broken_cubin_is_a_tool_error(tmp_path: Path) -> None:
    (tmp_path / "x.cubin").write_bytes(b"no cubin")
    with pytest.raises(ToolError, match="cuobjdump"):
        read_resources(tmp_path / "x.cubin")
    with pytest.raises(ToolError, match="nvdisasm failed"):
        sass_counts(tmp_path / "x.cubin")
