"""``nvfp4_quantize`` on a card: codes and scales to the bit, LoRA-down against float64. The oracle is the operator's,
on the CPU, and on the card for sizes of a layer.
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
from kernel_space.operators.nvfp4_quantize.operands import check_outputs, make_inputs
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from kernel_space.operators.nvfp4_quantize.signature import SIGNATURE
from tests.gpu.quantize_objects import CASES, FOLDER, LORA_CASES, MANIFEST, Object, build_all, load_all
from tests.operators.nvfp4_quantize.values import (
    DTYPES,
    ONES,
    blocks_at_ties,
    hard_blocks,
    rows_of,
    smooth_of,
)

pytestmark = pytest.mark.gpu

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
            "no objects: build them where the DSL is, python -m tests.gpu.quantize_objects .pack/gpu-quantize"
        )
    return build_all(tmp_path_factory.mktemp("quantize"))


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

    def __init__(
        self,
        one: Object,
        loaded: LoadedObject,
        x: torch.Tensor,
        smooth: torch.Tensor | None,
        lora_down: torch.Tensor | None = None,
    ) -> None:
        m, k = x.shape
        self.problem = QuantizeProblem(
            m=m, k=k, r=one.r, x_dtype=one.x_dtype, smooth="none" if smooth is None else "fp32"
        )
        assert one.smooth == self.problem.smooth
        nothing = torch.empty(0).cuda()
        self.inputs = {
            "x": x.cuda(),
            "smooth": nothing if smooth is None else smooth.cuda(),
            "lora_down": nothing if lora_down is None else lora_down.cuda(),
        }
        specs = SIGNATURE.tensors(self.problem)
        self.buffers = {name: _guarded(specs[name].nbytes) for name in SIGNATURE.outputs}
        self.outputs = {
            name: data[GUARD:-GUARD].view(DTYPES.get(specs[name].dtype, torch.uint8)).view(specs[name].shape)
            for name, data in self.buffers.items()
        }
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        tensors = {**self.inputs, **self.outputs}
        pointers = {name: tensor.data_ptr() if tensor.numel() else 0 for name, tensor in tensors.items()}
        self.values = SIGNATURE.values(self.problem, pointers, clusters=one.config.max_active_clusters(sms))
        self.loaded = loaded

    def launch(self) -> None:
        self.loaded.call(*self.values[:-1], torch.cuda.current_stream().cuda_stream)

    def once(self) -> dict[str, torch.Tensor]:
        """The outputs of one launch; nothing beside them has changed."""
        self.launch()
        torch.cuda.synchronize()
        for data in self.buffers.values():
            assert (data[:GUARD] == UNTOUCHED).all() and (data[-GUARD:] == UNTOUCHED).all()
        return self.outputs


def _guarded(size: int) -> torch.Tensor:
    return torch.full((size + 2 * GUARD,), UNTOUCHED, dtype=torch.uint8, device="cuda")


def check(one: Object, loaded: LoadedObject, x: torch.Tensor, smooth: torch.Tensor | None) -> None:
    """Against the oracle on the CPU."""
    outputs = Run(one, loaded, x, smooth).once()
    wanted = expected_outputs(x, smooth)
    assert wanted.differences(outputs["act"].cpu(), outputs["ascales"].cpu()) == 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", ["1,32", "5,96", "129,160", "300,1056", "1,3840", "260,3104"])
@pytest.mark.parametrize("source", ["gaussian", "patterns"])
def test_ragged_shapes(
    found: dict[str, Object], loaded: dict[str, LoadedObject], name: str, shape: str, source: str
) -> None:
    one = found[name]
    problem = QuantizeProblem.parse(f"{shape},0", x_dtype=one.x_dtype, smooth=one.smooth)
    inputs = make_inputs(problem, 7, source)
    check(one, loaded[name], inputs["x"], inputs["smooth"] if one.smooth == "fp32" else None)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("source", ["gaussian", "patterns"])
def test_sizes_of_a_layer(
    found: dict[str, Object], loaded: dict[str, LoadedObject], name: str, source: str
) -> None:
    """Sixteen million quotients by numbers of any mantissa. The card's oracle is the CPU's, on some rows of it."""
    one = found[name]
    problem = QuantizeProblem.parse("4352,3840,0", x_dtype=one.x_dtype, smooth=one.smooth)
    inputs = make_inputs(problem, 1, source, "cuda")
    smooth = inputs["smooth"] if one.smooth == "fp32" else None
    run = Run(one, loaded[name], inputs["x"], smooth)
    tensors = {**run.inputs, **run.once()}
    for output, verdict in check_outputs(problem, tensors, one.config).items():
        assert verdict.ok, f"{output}: {verdict}"
    some = inputs["x"][:256]
    there = expected_outputs(some, smooth)
    here = expected_outputs(some.cpu(), None if smooth is None else smooth.cpu())
    assert here.differences(there.act.cpu(), there.ascales.cpu()) == 0
    first = {output: tensor.clone() for output, tensor in run.outputs.items()}
    for _ in range(20):
        run.launch()
    torch.cuda.synchronize()
    assert all(torch.equal(first[output], tensor) for output, tensor in run.outputs.items())


def test_ties_and_quotients_beside_them(found: dict[str, Object], loaded: dict[str, LoadedObject]) -> None:
    """What the chip's own reciprocal could spoil: the machine's is rounded to nearest, a card's is not."""
    one, kernel = found["default-fp32-fp32"], loaded["default-fp32-fp32"]
    z = rows_of(blocks_at_ties().flatten(), 512)
    for seed in range(20):
        smooth = smooth_of(512, seed)
        for step in (-1.0, 0.0, 1.0):
            x = z * smooth
            check(one, kernel, torch.nextafter(x, x + step * x.abs()), smooth)
    x, by = (torch.tensor(values) for values in hard_blocks())
    check(one, kernel, x.view(1, -1), by)


def test_every_mantissa_of_smooth(found: dict[str, Object], loaded: dict[str, LoadedObject]) -> None:
    """Two to the 23: in each column x is next to the tie 1.25 times smooth, beside a column that makes the scale 1."""
    one, kernel = found["default-fp32-fp32"], loaded["default-fp32-fp32"]
    mantissas = (torch.arange(1 << 23, dtype=torch.int32) + 0x3F800000).view(torch.float32)
    columns = torch.cat([torch.ones(1 << 19, 1), mantissas.view(1 << 19, 16)[:, 1:]], dim=1).flatten()
    others = torch.cat(
        [torch.ones(1 << 19, 1), mantissas.view(1 << 19, 16)[:, :1].expand(-1, 15)], dim=1
    ).flatten()
    for smooth in (columns, others):
        x = 1.25 * smooth
        x[::16] = 6.0
        for step in (-1.0, 0.0, 1.0):
            moved = torch.nextafter(x, x + step)
            moved[::16] = 6.0
            check(one, kernel, moved.view(1, -1), smooth)


def test_every_pattern_of_fp16(found: dict[str, Object], loaded: dict[str, LoadedObject]) -> None:
    one, kernel = found["default-fp16-fp32"], loaded["default-fp16-fp32"]
    order = torch.arange(1 << 15).repeat_interleave(2)
    order[1::2] += 1 << 15
    x = (order - (order >> 15 << 16)).to(torch.int16).view(torch.float16).view(-1, 512)
    for seed in range(50):
        check(one, kernel, x, smooth_of(512, seed))
    check(one, kernel, x, torch.full((512,), ONES))


def test_smooth_out_of_the_ordinary(found: dict[str, Object], loaded: dict[str, LoadedObject]) -> None:
    one, kernel = found["default-fp32-fp32"], loaded["default-fp32-fp32"]
    odd = [
        0.0,
        -0.0,
        1e-45,
        1e-40,
        2.0**-126,
        2.0**-41,
        2.0**41,
        2.0**126,
        3e38,
        float("inf"),
        float("nan"),
        -1.5,
    ]
    smooth = torch.ones(1024)
    places = torch.arange(len(odd)) * 64 + 5
    smooth[places] = torch.tensor(odd)
    x = torch.randn(300, 1024, generator=torch.Generator().manual_seed(0))
    check(one, kernel, x, smooth)
    x[:, places] *= smooth[places]
    check(one, kernel, x, smooth)


# -- with LoRA-down --


def check_lora(
    one: Object, loaded: LoadedObject, shape: str, source: str, where: str, launches: int = 2
) -> None:
    """Every output, and the same bits in every launch."""
    problem = QuantizeProblem.parse(f"{shape},{one.r}", x_dtype=one.x_dtype, smooth=one.smooth)
    inputs = make_inputs(problem, 5, source, where)
    run = Run(
        one, loaded, inputs["x"], inputs["smooth"] if one.smooth == "fp32" else None, inputs["lora_down"]
    )
    first = {name: tensor.clone() for name, tensor in run.once().items()}
    tensors = {name: tensor.to(where) for name, tensor in {**run.inputs, **first}.items()}
    for output, verdict in check_outputs(problem, tensors, one.config).items():
        assert verdict.ok, f"{output}: {verdict}"
    for _ in range(launches):
        run.launch()
    torch.cuda.synchronize()
    assert all(torch.equal(bits(first[name]), bits(tensor)) for name, tensor in run.outputs.items()), (
        "another result of the same launch"
    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("name", LORA_CASES)
@pytest.mark.parametrize("shape", ["1,32", "65,96", "129,160", "300,1056", "1,3840", "64,3840", "260,3104"])
@pytest.mark.parametrize("source", ["gaussian", "patterns"])
def test_lora_of_ragged_shapes(
    found: dict[str, Object], loaded: dict[str, LoadedObject], name: str, shape: str, source: str
) -> None:
    check_lora(found[name], loaded[name], shape, source, "cpu")


@pytest.mark.parametrize("name", LORA_CASES)
@pytest.mark.parametrize("shape", ["4352,3840", "1024,3840", "2100,12288"])
def test_lora_of_sizes_of_a_layer(
    found: dict[str, Object], loaded: dict[str, LoadedObject], name: str, shape: str
) -> None:
    check_lora(found[name], loaded[name], shape, "gaussian", "cuda", launches=50)


def test_every_pattern_of_fp16_with_lora(found: dict[str, Object], loaded: dict[str, LoadedObject]) -> None:
    """1 / smooth and 1 / scale are the chip's guess and a step in both kernels; codes here must be the same."""
    one, kernel = found["lora-tall"], loaded["lora-tall"]
    order = torch.arange(1 << 15).repeat_interleave(2)
    order[1::2] += 1 << 15
    x = (order - (order >> 15 << 16)).to(torch.int16).view(torch.float16).view(-1, 512)
    lora_down = torch.zeros(8, 128, 64, dtype=torch.float16)
    for seed in range(50):
        smooth = smooth_of(512, seed) if seed else torch.full((512,), ONES)
        outputs = Run(one, kernel, x, smooth, lora_down).once()
        wanted = expected_outputs(x, smooth)
        assert wanted.differences(outputs["act"].cpu(), outputs["ascales"].cpu()) == 0


@pytest.mark.alone
@pytest.mark.parametrize("name", ["default-bf16-fp32", "default-bf16-none", "narrow", "persistent"])
def test_it_is_not_far_from_the_memory(
    found: dict[str, Object], loaded: dict[str, LoadedObject], name: str
) -> None:
    """In a graph of launches over inputs larger than the L2: a quarter of 4.8 TB/s at least (H200). Prints the time."""
    one = found[name]
    problem = QuantizeProblem.parse("8704,15360,0", x_dtype=one.x_dtype, smooth=one.smooth)
    inputs = make_inputs(problem, 1, "gaussian", "cuda")
    run = Run(one, loaded[name], inputs["x"], inputs["smooth"] if one.smooth == "fp32" else None)
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
