"""What every test shares: a build cache and results of its own run, and no GPU test without a GPU."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

# With a test process per core, and in what they start, a second thread of a product of matrices only waits at full
# load for the first: 28 instead of 12 s of CPU for the tests of two references. Both libraries ask when they load.
if "PYTEST_XDIST_WORKER" in os.environ:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

import torch

from kernel_space.core import registry

registry.add_folder(Path(__file__).parent / "plugins")  # operators that are found as a user's are


@pytest.fixture(scope="session", autouse=True)
def own_build_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the user has compiled and tuned must not decide whether a test passes, nor fill up with ours."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SVDQUANT_TUNE_CACHE", raising=False)
        patch.delenv("SVDQUANT_TUNE_RESULTS", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield folder


@pytest.fixture(autouse=True)
def compiled_anew() -> Iterator[None]:
    """torch.compile counts what it compiled of one function, whoever asked, and gives up after eight: each test has
    its own eight."""
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


# Files of about 15 s of CPU and more, the longest first. Begun last, one of them leaves the other cores idle.
LONG = (
    "check/test_mutations.py",
    "operators/svdquant_gemm/test_sm90a_small_m.py",
    "operators/nvfp4_quantize/test_lora_mma_in_machine.py",
    "operators/smooth_lora_down/test_rules.py",
    "operators/svdquant_gemm/test_sm90a_expand.py",
    "cli/test_cli.py",
    "operators/svdquant_gemm/test_kernel_ptx.py",
    "selfcheck/test_selfcheck.py",
    "simulated/test_simulated_time.py",
    "operators/svdquant_gemm/test_sm90a_search.py",
    "operators/nvfp4_quantize/test_lora_tma_in_machine.py",
    "cli/test_retime.py",
    "operators/svdquant_gemm/test_sm90a_stream_k.py",
    "operators/svdquant_gemm_16bit/test_in_machine.py",
    "cli/test_check.py",
    "operators/svdquant_gemm/test_sm90a_pingpong.py",
    "check/test_in_a_row.py",
    "compile/test_manifest.py",
    "operators/svdquant_gemm_16bit/test_narrow.py",
    "operators/nvfp4_quantize/test_lora_mma_rules.py",
    "operators/svdquant_gemm/test_sm90a_epilogue.py",
    "check/test_kernel_in_machine.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _longest_first(items)
    if _has_driver():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA driver on this machine"))


def _longest_first(items: list[pytest.Item]) -> None:
    """``LONG``, then those with most tests: pytest-xdist hands files out in this order (``--no-loadscope-reorder``)."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONG)}
    counts = Counter(item.path for item in items)
    items.sort(key=lambda item: (places.get(item.path, len(LONG)), -counts[item.path], str(item.path)))


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Of torch: on a busy machine two wait for each other for milliseconds at every operation on a small matrix."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
