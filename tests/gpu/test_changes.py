"""Weights that change between calls, and memory of the host over many M, on a card."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.test_runtime import OWN, WEIGHTS, OnCard, bits
from tuner.layers import gemm as operator_module
from tuner.runtime import InputError, svdquant_gemm, use_table

pytestmark = pytest.mark.gpu
SHAPE = "64,3840,3072,128"


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    with use_table(OWN) if OWN.is_dir() else contextlib.nullcontext():
        yield


def operator(one: OnCard) -> torch.Tensor:
    packed = one.packed
    rest = (one.lora, packed.lora_up, packed.wcscale, packed.bias)
    return torch.ops.svdquant.gemm(one.act, one.ascales, packed.wgt, packed.wscales, *rest, torch.float16)


@pytest.mark.parametrize("name", WEIGHTS)
def test_offloaded_weights_are_refused_and_come_back(name: str) -> None:
    """The tensor stays, its data are on the CPU between calls: a host pointer must not go to a kernel."""
    one = OnCard(SHAPE)
    wanted = one.call().clone()
    tensor = getattr(one.packed, name)
    for _ in range(3):
        tensor.data = tensor.data.cpu()
        for way in (one.call, lambda: operator(one)):
            with pytest.raises(InputError, match="like the other operands|act must be on cpu"):
                way()
        tensor.data = tensor.data.cuda()
        assert torch.equal(bits(one.call()), bits(wanted))
        assert torch.equal(bits(operator(one)), bits(wanted))


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "dtype": lambda tensor: setattr(tensor, "data", tensor.data.view(torch.int8)),
    "sizes": lambda tensor: setattr(tensor, "data", tensor.data[:-8]),
    "strides": lambda tensor: setattr(tensor, "data", tensor.data.repeat_interleave(2, dim=-1)[..., ::2]),
    "misaligned": lambda tensor: setattr(
        tensor, "data", torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)
    ),
    "memory released": lambda tensor: tensor.untyped_storage().resize_(0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_known_weight_that_no_longer_fits(name: str, change: Callable[[torch.Tensor], object]) -> None:
    one, other = OnCard(SHAPE), OnCard(SHAPE, seed=2)
    wanted = other.call().clone()
    one.call(), operator(one)
    change(getattr(one.packed, name))
    for way in (one.call, lambda: operator(one)):
        with pytest.raises(InputError):
            way()
    torch.cuda.synchronize()
    assert torch.equal(bits(other.call()), bits(wanted)), "layers that look alike are not affected"


@pytest.mark.parametrize("name", ["lora_up", "wcscale", "bias"])
def test_a_weight_that_wants_a_gradient(name: str) -> None:
    one = OnCard(SHAPE)
    wanted = one.call().clone()
    getattr(one.packed, name).requires_grad_()
    for way in (one.call, lambda: operator(one)):
        with pytest.raises(InputError, match=f"no backward pass but {name} requires grad"):
            way()
        for quiet in (torch.no_grad, torch.inference_mode):
            with quiet():
                assert all(torch.equal(bits(way()), bits(wanted)) for _ in range(3))
        with pytest.raises(InputError, match=f"no backward pass but {name} requires grad"):
            way()


def test_a_layer_that_looks_like_a_known_one_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = OnCard(SHAPE, seed=1), OnCard(SHAPE, seed=2)
    first.call()
    wanted = second.call().clone()

    def the_long_way(*operands: object, **options: object) -> None:
        raise AssertionError("a call like the one before went the long way")

    monkeypatch.setattr(operator_module, "run", the_long_way)
    third = OnCard(SHAPE, seed=2)
    assert torch.equal(bits(third.call()), bits(wanted))


def test_memory_of_the_host_over_many_m() -> None:
    """Twice as many M of several layers take no more than the first half did."""
    layers = [OnCard("1,512,256,128", seed=seed) for seed in range(3)]
    act = torch.zeros(13_000, 256, dtype=torch.uint8, device="cuda")
    ascales = torch.zeros(-(-13_000 // 128) * 8 * 512, dtype=torch.uint8, device="cuda")
    lora = torch.zeros(13_000, 128, dtype=torch.float16, device="cuda")
    out = torch.zeros(13_000, 256, dtype=torch.float16, device="cuda")

    def resident() -> float:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

    def meet(ms: range) -> None:
        for m in ms:
            for one in layers:
                scales = ascales[: -(-m // 128) * 8 * 512]
                svdquant_gemm(act[:m], scales, one.packed, lora[:m], out[:m])
        torch.cuda.synchronize()

    meet(range(1, 6001))
    half = resident()
    meet(range(6001, 12_001))
    grown = resident() - half
    print(f"{grown:.1f} MB for 6,000 M more")
    assert grown < 12  # without a bound 6,000 M take 18 MB at least


def test_threads_that_meet_the_same_m_first() -> None:
    ms = (33, 65, 97, 129)
    cases = [[OnCard(f"{m},3840,3072,128", seed=index) for m in ms] for index in range(4)]
    got: list[list[torch.Tensor]] = [[] for _ in cases]
    together = threading.Barrier(len(cases))

    def work(index: int) -> None:
        for one in cases[index]:
            together.wait()
            got[index].append(one.call())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for ones, ys in zip(cases, got, strict=True):
        for one, y in zip(ones, ys, strict=True):
            one.check(y)
