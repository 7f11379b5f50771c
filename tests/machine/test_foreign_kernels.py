"""The script that runs others' kernels, on a program written here in their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.foreign.card import Card
from benchmarks.foreign.cutlass_cases import EXAMPLES
from benchmarks.foreign.dsl_launch import like
from benchmarks.foreign.oracle import Comparisons
from benchmarks.foreign_kernels import main

PROGRAM = """
import argparse
import torch
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack
from tests.kernels.ragged import doubled

parser = argparse.ArgumentParser()
parser.add_argument("--M", type=int)
parser.add_argument("--N", type=int)
args = parser.parse_args()
count = args.M * args.N
x = torch.randn(count).cuda()
y = torch.empty(count, device="cuda")
tensors = [from_dlpack(t).mark_layout_dynamic() for t in (x, y)]
cute.compile(doubled, *tensors, count, False)(*tensors, {count})
torch.cuda.synchronize()
torch.testing.assert_close(y.cpu(), {factor} * x.cpu())
"""


def test_without_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for arguments, words in (
        ([], "name the folder of a corpus"),
        (["--cutlass", str(tmp_path)], f"has no folder {EXAMPLES}"),
    ):
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1 and words in captured.err


def test_memory_of_the_card_is_not_the_hosts() -> None:
    """Were ``cuda()`` the same memory, an output would always equal what it is compared with."""
    with Card() as card:
        host = torch.zeros(4)
        there = host.cuda()
        host += 1
        assert there.device.type == "cuda" and there.is_cuda and host.device.type == "cpu"
        assert there.tolist() == [0, 0, 0, 0]
        back = there.cpu()
        there += 5
        assert back.tolist() == [0, 0, 0, 0] and back.device.type == "cpu"
        for made in (
            there + 1,
            there.to(torch.float16),
            host.to(there.device),
            torch.zeros_like(there),
            there[1:],
        ):
            assert made.is_cuda
        assert not host.to(torch.float16).is_cuda and not there.to("cpu").is_cuda
        assert torch.empty(3, device="cuda").isnan().all()
        sizes = sorted(part.numel() for part in card.memory())
    assert sizes.count(16) >= 3 and 8 in sizes and 12 in sizes


def test_memory_of_the_card_is_aligned_as_there() -> None:
    """Kernels ask for up to 128 bytes; the host's allocator gives 64. A move keeps values and strides."""
    with Card():
        for size in range(1, 40):
            host = torch.arange(6 * size, dtype=torch.float32).reshape(2, 3, size).permute(2, 0, 1)
            for there in (
                host.cuda(),
                torch.empty(size, device="cuda"),
                torch.zeros(size, device="cuda") + 1,
            ):
                assert there.data_ptr() % 512 == 0
            assert host.cuda().stride() == host.stride() and host.cuda().tolist() == host.tolist()


def test_the_worst_error_of_all_comparisons() -> None:
    seen = Comparisons()
    seen.note(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.25]))
    seen.note(torch.tensor([float("inf"), 4.0]), torch.tensor([float("inf"), 4.125]))
    assert (seen.count, seen.worst, seen.largest) == (2, 0.25, 4.125)


def test_a_number_in_a_tuple_is_an_argument() -> None:
    """The DSL finds no pointer to a number of Python's inside a tuple, and the arguments behind it would move up."""
    cutlass = pytest.importorskip("cutlass")
    first, none, second = like((7, None, 0.5), (cutlass.Int32(1), None, cutlass.Float32(1)))
    assert isinstance(first, cutlass.Int32) and first.value == 7 and none is None
    assert isinstance(second, cutlass.Float32) and second.value == 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "factor", "status"),
    [("count", 2, "exact"), ("count", 3, "wrong"), ("count + 64", 2, "finding")],
)
def test_a_program_from_end_to_end(
    count: str, factor: int, status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``tests.kernels.ragged`` doubles; told of 64 elements more than there are, it leaves the tensor."""
    script = tmp_path / EXAMPLES / "cute/ampere/kernel/elementwise/elementwise_add.py"
    script.parent.mkdir(parents=True)
    script.write_text(PROGRAM.format(count=count, factor=factor))
    out = tmp_path / "out.json"
    code = main(["--cutlass", str(tmp_path), "--only", "ampere elementwise_add", "--json", str(out)])
    (document,) = json.loads(out.read_text())
    assert document["status"] == status, document
    assert code == (0 if status == "exact" else 1)
    assert (status == "finding") == bool(document["findings"]) and document["comparisons"] <= 1
    assert capsys.readouterr().out.startswith("ampere elementwise_add")
