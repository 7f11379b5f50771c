"""Shards against the unsharded layer: by hand in one process, and in two processes with gloo."""

from __future__ import annotations

import datetime
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from tests.layers.test_linear import activations, linear_of, relative, weight_of
from tuner.layers.gemm import svdquant_gemm
from tuner.layers.models.slices import packed_of
from tuner.runtime import InputError, SVDQuantLinear, quantize_act, shard

pytestmark = pytest.mark.filterwarnings("ignore:.* on cpu is the torch reference")
N, K = 144, 384


def whole(n: int = N, k: int = K, rank: int = 16) -> SVDQuantLinear:
    return SVDQuantLinear.from_linear(linear_of(n, k), rank=rank, calibration=activations(64, k))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_column_shards_are_rows_of_the_weight(count: int) -> None:
    """To the bit: a row of y depends on nothing of the others."""
    layer, x = whole(), activations(5, K)
    parts = [shard(layer, index, count, "column") for index in range(count)]
    assert [part.out_features for part in parts] == [N // count] * count
    assert torch.equal(torch.cat([part(x) for part in parts], dim=-1), layer(x))
    assert torch.equal(torch.cat([weight_of(part) for part in parts]), weight_of(layer))


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_row_shards_are_columns_of_the_weight(count: int) -> None:
    layer, x = whole(), activations(5, K)
    parts = [shard(layer, index, count, "row") for index in range(count)]
    width = K // count
    assert torch.equal(torch.cat([weight_of(part) for part in parts], dim=1), weight_of(layer))
    assert torch.equal(parts[0].bias, layer.bias)
    assert all(not part.bias.any() for part in parts[1:])
    pieces = [part(piece).double() for part, piece in zip(parts, x.split(width, dim=1), strict=True)]
    assert relative(sum(pieces), layer(x)) < 2.0**-7  # every partial sum is rounded to bf16


def test_one_shard_is_the_layer_and_the_whole_stays() -> None:
    layer = whole()
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    for way in ("column", "row"):
        shard(layer, 1, 2, way)
        assert all(torch.equal(before[name], tensor) for name, tensor in layer.state_dict().items())


@pytest.mark.parametrize("way", ["column", "row"])
@pytest.mark.parametrize("rank", [0, 16])
def test_packed_weights(way: str, rank: int) -> None:
    layer, x = whole(rank=rank), activations(7, K).bfloat16()
    packed = packed_of(layer)
    pieces = [x, x] if way == "column" else list(x.split(K // 2, dim=1))
    found = []
    for index, piece in enumerate(pieces):
        part = shard(packed, index, 2, way)
        assert isinstance(part, PackedSVDQuant)
        own = slice(None) if way == "column" else slice(index * K // 2, (index + 1) * K // 2)
        act, ascales, lora = quantize_act(piece.contiguous(), layer.smooth[own], layer.lora_down[own])
        found.append(svdquant_gemm(act, ascales, part, lora).double())
    y = torch.cat(found, dim=1) if way == "column" else found[0] + found[1]
    assert relative(y, layer(x)) < 2.0**-7


BAD = {
    "way": ((0, 2, "diagonal"), "parallel must be one of column, row, got 'diagonal'"),
    "index": ((2, 2, "row"), "shard_index must be from 0 to shard_count - 1, got 2 of 2 shards"),
    "negative": ((-1, 2, "row"), "shard_index must be"),
    "count": ((0, 0, "row"), "shard_index must be"),
    "N": ((0, 4, "column"), "N must be a multiple of 8 in each of 4 shards, got N = 144"),
    "K": ((0, 4, "row"), "K must be a multiple of 64 in each of 4 shards, got K = 384"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD.keys())
def test_shards_that_cannot_be(given: tuple[int, int, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        shard(whole(), *given)


def _process(index: int, count: int, port: int, folder: str) -> None:
    """A gated pair of layers as models have them: column-parallel, then row-parallel, then one all-reduce."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=index,
        world_size=count,
        timeout=datetime.timedelta(seconds=60),
    )
    try:
        first, second = whole(256, 128), whole(72, 256)
        up, down = shard(first, index, count, "column"), shard(second, index, count, "row")
        y = down(torch.relu(up(activations(9, 128))))
        dist.all_reduce(y)
        torch.save(y, Path(folder) / f"{index}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_process, args=(2, port, str(tmp_path)), nprocs=2)
    found = [torch.load(tmp_path / f"{index}.pt", weights_only=True) for index in range(2)]
    assert torch.equal(found[0], found[1])
    first, second = whole(256, 128), whole(72, 256)
    hidden = torch.relu(first(activations(9, 128)))
    assert relative(found[0], second(hidden)) < 2.0**-7
    exact = torch.relu(linear_of(256, 128)(activations(9, 128)))
    assert relative(found[0], linear_of(72, 256)(exact)) < 0.2
