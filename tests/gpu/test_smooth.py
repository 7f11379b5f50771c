"""``smooth_lora_down`` on a card: ``xs`` to the bit, LoRA-down against float64. The oracle is the operator's, on the
CPU, and on the card for sizes of a layer.
"""

from __future__ import annotations

import hashlib
import importlib.util
import statistics
from collections.abc import Iterator

import pytest
import torch

from kernel_space.launch.loading import LoadedObject, load_bytes
from kernel_space.launch.runtime_symbols import CudaRuntime
from kernel_space.operators.smooth_lora_down.operator import OPERATOR
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.signature import SIGNATURE
from tests.gpu.smooth_objects import CASES, FOLDER, MANIFEST, Object, build_all, load_all
from tests.operators.nvfp4_quantize.values import ONES, smooth_of
from tests.operators.smooth_lora_down.values import beside_ties

pytestmark = pytest.mark.gpu

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "uint8": torch.uint8}
GUARD = 4096  # bytes around an output that must stay as they are
UNTOUCHED = 0xA5
HOPPER = (9, 0)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Object]:
    if torch.cuda.get_device_capability(0) != HOPPER:
        pytest.skip("the objects are for sm_90a")
    if (FOLDER / MANIFEST).is_file():
        return load_all(FOLDER)
    if importlib.util.find_spec("cutlass") is None:
        pytest.fail(
            "no objects: build them where the DSL is, python -m tests.gpu.smooth_objects .pack/gpu-smooth"
        )
    return build_all(tmp_path_factory.mktemp("smooth"))


@pytest.fixture(scope="module")
def loaded(found: dict[str, Object]) -> Iterator[dict[str, LoadedObject]]:
    torch.zeros(1, device="cuda")  # the context that the objects are loaded into
    runtime = CudaRuntime((0,))
    ready = {}
    for name, one in found.items():
        data = one.path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == one.sha256
        ready[name] = load_bytes(data, one.prefix, runtime, arguments=SIGNATURE.abi)
    yield ready
    torch.cuda.synchronize()
    for object_ in ready.values():
        object_.close()


class Run:
    """One problem on the card: inputs, and outputs between guards. ``launch`` enqueues on the current stream."""

    def __init__(self, problem: SmoothProblem, loaded: LoadedObject, inputs: dict[str, torch.Tensor]) -> None:
        self.problem, self.loaded = problem, loaded
        self.inputs = {name: tensor.cuda() for name, tensor in inputs.items()}
        specs = SIGNATURE.tensors(problem)
        self.buffers = {
            name: torch.full((specs[name].nbytes + 2 * GUARD,), UNTOUCHED, dtype=torch.uint8, device="cuda")
            for name in SIGNATURE.outputs
        }
        self.outputs = {
            name: data[GUARD:-GUARD].view(DTYPES[specs[name].dtype]).view(specs[name].shape)
            for name, data in self.buffers.items()
        }
        tensors = {**self.inputs, **self.outputs}
        pointers = {name: tensor.data_ptr() if tensor.numel() else 0 for name, tensor in tensors.items()}
        self.values = SIGNATURE.values(problem, pointers, clusters=1)

    def launch(self) -> None:
        self.loaded.call(*self.values[:-1], torch.cuda.current_stream().cuda_stream)

    def once(self) -> dict[str, torch.Tensor]:
        """The outputs of one launch; nothing beside them has changed."""
        self.launch()
        torch.cuda.synchronize()
        for data in self.buffers.values():
            assert (data[:GUARD] == UNTOUCHED).all() and (data[-GUARD:] == UNTOUCHED).all()
        return self.outputs


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def check(
    one: Object,
    loaded: LoadedObject,
    inputs: dict[str, torch.Tensor],
    *,
    where: str = "cpu",
    launches: int = 2,
) -> None:
    """Every output against the oracle on ``where``, and the same bits in every launch."""
    problem = one.problem(*inputs["x"].shape)
    run = Run(problem, loaded, inputs)
    first = {name: tensor.clone() for name, tensor in run.once().items()}
    tensors = {name: tensor.to(where) for name, tensor in {**run.inputs, **first}.items()}
    for output, verdict in OPERATOR.check(problem, tensors, one.config).items():
        assert verdict.ok, f"{output}: {verdict}"
    for _ in range(launches):
        run.launch()
    torch.cuda.synchronize()
    assert all(torch.equal(bits(first[name]), bits(tensor)) for name, tensor in run.outputs.items()), (
        "another result of the same launch"
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "shape", [(1, 32), (17, 96), (65, 160), (129, 320), (300, 1056), (1, 3840), (260, 3104)]
)
@pytest.mark.parametrize("source", OPERATOR.sources)
def test_ragged_shapes(
    found: dict[str, Object],
    loaded: dict[str, LoadedObject],
    name: str,
    shape: tuple[int, int],
    source: str,
) -> None:
    one = found[name]
    check(one, loaded[name], OPERATOR.inputs(one.problem(*shape), 7, source, "cpu"))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [(4352, 3840), (1024, 3840), (2100, 12288)])
def test_sizes_of_a_layer(
    found: dict[str, Object], loaded: dict[str, LoadedObject], name: str, shape: tuple[int, int]
) -> None:
    one = found[name]
    inputs = OPERATOR.inputs(one.problem(*shape), 1, "gaussian", "cuda")
    check(one, loaded[name], inputs, where="cuda", launches=50)


def with_x(one: Object, x: torch.Tensor, smooth: torch.Tensor) -> dict[str, torch.Tensor]:
    """Ordinary inputs but for these."""
    inputs = OPERATOR.inputs(one.problem(*x.shape), 1, "gaussian", "cpu")
    return {**inputs, "x": x, **({"smooth": smooth} if one.smooth == "fp32" else {})}


EACH = [
    "rows-fp16-fp32",
    "rows-bf16-fp32",
    "mma-fp16-fp32",
    "mma-bf16-fp32",
    "tma-fp16-fp32",
    "tma-bf16-fp32",
]


@pytest.mark.parametrize("name", EACH)
def test_every_pattern_of_16_bits(
    found: dict[str, Object], loaded: dict[str, LoadedObject], name: str
) -> None:
    """In order of magnitude, by many smooths: 1 / smooth is the card's guess and a step."""
    one = found[name]
    order = torch.arange(1 << 15).repeat_interleave(2)
    order[1::2] += 1 << 15
    x = (order - (order >> 15 << 16)).to(torch.int16).view(DTYPES[one.x_dtype]).view(-1, 512)
    for seed in range(50):
        smooth = smooth_of(512, seed) if seed else torch.full((512,), ONES)
        check(one, loaded[name], with_x(one, x, smooth), launches=0)


@pytest.mark.parametrize("name", EACH)
def test_products_beside_ties_and_odd_smooth(
    found: dict[str, Object], loaded: dict[str, LoadedObject], name: str
) -> None:
    one = found[name]
    x, smooth = beside_ties(DTYPES[one.x_dtype])
    check(one, loaded[name], with_x(one, x, smooth))
    odd = [0.0, -0.0, 1e-45, 1e-40, 2.0**-126, 2.0**-41, 2.0**126, 3e38, float("inf"), float("nan"), -1.5]
    smooth = torch.ones(1056)
    smooth[torch.arange(len(odd)) * 64 + 5] = torch.tensor(odd)
    smooth[-2:] = 1e-45  # what columns beyond K may meet
    draw = torch.Generator().manual_seed(0)
    check(one, loaded[name], with_x(one, torch.randn(300, 1056, generator=draw).to(x.dtype), smooth))


@pytest.mark.alone
@pytest.mark.parametrize(
    "name", ["rows-bf16-fp32", "rows-bf16-none", "mma-tall", "tma-bf16-fp32", "tma-many"]
)
def test_it_is_not_far_from_the_memory(
    found: dict[str, Object], loaded: dict[str, LoadedObject], name: str
) -> None:
    """In a graph of launches over inputs larger than the L2: a quarter of 4.8 TB/s at least (H200). Prints the time."""
    one = found[name]
    problem = one.problem(8704, 15360)
    run = Run(problem, loaded[name], OPERATOR.inputs(problem, 1, "gaussian", "cuda"))
    run.once()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(10):
            run.launch()
    samples = []
    for _ in range(10):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        samples.append(start.elapsed_time(stop) * 100)  # us of one launch
    moved = sum(spec.nbytes for spec in SIGNATURE.tensors(problem).values())
    us = statistics.median(samples)
    print(f"{name} {problem}: {us:.1f} us, {moved / us / 1e6:.2f} TB/s")
    assert moved / us / 1e6 > 1.2
