"""The run time on a card: numbers, graphs, compilation, threads and host time.

Launches from ``results``, or from ``.pack/runtime`` if that is there: a folder like ``results``, for trying objects
that are not in the project.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernel_space.core.registry import operator
from kernel_space.numerics.nvfp4 import quantize_nvfp4
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import check_packed
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes
from tuner.layers.activations import OPERATORS
from tuner.runtime import (
    InputError,
    SVDQuantLinear,
    explain,
    launch,
    prepare,
    quantize_act,
    svdquant_gemm,
    use_table,
)
from tuner.runtime.state import class_of_card, workspaces

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
OWN = ROOT / ".pack" / "runtime"
LAYER = "3840,3072,128"
HOST_US = 10.0
# An operator of torch's own, and what it took on the hosts where 8.6 us were measured for a call (docs/runtime.md).
YARDSTICK, YARDSTICK_US = "  sin_ on 8 numbers, likewise", 4.6
SMALL = "17,3840,3072,128"
WEIGHTS = ("wgt", "wscales", "lora_up", "wcscale", "bias")
BUFFERS = ("smooth", *WEIGHTS)


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    with use_table(OWN) if OWN.is_dir() else contextlib.nullcontext():
        try:
            explain(SMALL)
        except InputError as error:
            pytest.fail(f"nothing to launch: {error}")
        yield


class OnCard:
    """Operands of a problem on a card, the same for the same seed on every card, and their float64 check there."""

    def __init__(self, shape: str, card: int = 0, seed: int = 1, **dtypes: str) -> None:
        self.problem = GemmProblem.parse(shape, **dtypes)
        made = make_operands(self.problem, seed, source="codes")
        moved = {name: tensor.to(f"cuda:{card}") for name, tensor in made.tensors().items()}
        self.card = card
        self.operands = Operands(problem=self.problem, **moved)
        self.packed = PackedSVDQuant(**{name: moved[name] for name in WEIGHTS})
        self.act, self.ascales, self.lora = (moved[name] for name in ("act", "ascales", "lora_act_in"))

    def call(self, out: torch.Tensor | None = None) -> torch.Tensor:
        return svdquant_gemm(self.act, self.ascales, self.packed, self.lora, out)

    def check(self, y: torch.Tensor) -> None:
        assert y.get_device() == self.card
        choice = explain(self.problem, f"cuda:{self.card}")
        found = check_packed(y, self.operands, split_k=choice.config.partial_sums)
        assert found.ok, f"{choice}\n{found}"


def with_workspace() -> str:
    """A problem of the layer whose kernel needs a workspace: which has one is a matter of the table."""
    for m in (256, 128, 64, 17, 16, 1024, 4352):
        problem = GemmProblem.parse(f"{m},{LAYER}")
        if workspace_bytes(explain(problem).config, problem):
            return str(problem)
    pytest.skip("no kernel of the table needs a workspace")


def bits(y: torch.Tensor) -> torch.Tensor:
    return y.view(torch.int16)


@pytest.mark.parametrize("m", [1, 16, 17, 64, 256, 1024, 4352])
def test_every_element_is_right_and_repeats(m: int) -> None:
    one = OnCard(f"{m},{LAYER}")
    outputs = []
    for _ in range(10):
        out = torch.full((m, one.problem.n), torch.nan, dtype=torch.float16, device="cuda")
        outputs.append(one.call(out))
    one.check(outputs[0])
    assert all(torch.equal(bits(outputs[0]), bits(y)) for y in outputs[1:])


@pytest.mark.parametrize("shape", ["33,1024,520,128", "5,64,16,128"])
def test_a_layer_that_was_never_tuned(shape: str) -> None:
    one = OnCard(shape)
    assert explain(one.problem).source.startswith(("nearest layer", "spare of"))
    one.check(one.call())


def test_bad_input_on_the_card() -> None:
    one = OnCard(SMALL)
    one.call()
    shifted = torch.empty(one.act.numel() + 1, dtype=torch.uint8, device="cuda")[1:].view_as(one.act)
    for act, message in (
        (shifted, "16 bytes"),
        (one.act.cpu(), "act must be on cuda:0 like the other operands, got cpu"),
        (one.act.T.contiguous().T, "contiguous"),
    ):
        with pytest.raises(InputError, match=message):
            svdquant_gemm(act, one.ascales, one.packed, one.lora)


def test_a_cuda_graph_replays_on_another_stream_while_its_own_works() -> None:
    """Split-K counters of a graph are its own: replayed beside eager launches of the same problem."""
    shape = with_workspace()
    one, other = OnCard(shape, seed=1), OnCard(shape, seed=2)
    wanted, expected = one.call().clone(), other.call().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [one.call() for _ in range(3)]
    beside = torch.cuda.Stream()
    wrong = 0
    for _ in range(50):
        with torch.cuda.stream(beside):
            graph.replay()
        eager = [other.call() for _ in range(3)]
        torch.cuda.synchronize()
        wrong += not all(torch.equal(bits(y), bits(wanted)) for y in captured)
        wrong += not all(torch.equal(bits(y), bits(expected)) for y in eager)
    assert wrong == 0


def test_two_threads_on_two_streams_each() -> None:
    cases = [OnCard(f"{m},{LAYER}", seed=m) for m in (1, 16, 64, 256)]
    expected = [one.call().clone() for one in cases]
    torch.cuda.synchronize()
    failures: list[str] = []

    def work(mine: int) -> None:
        streams = [torch.cuda.Stream() for _ in range(2)]
        for turn in range(150):
            results = []
            for index, stream in enumerate(streams):
                case = (turn + mine + index) % len(cases)
                with torch.cuda.stream(stream):
                    results.append((case, cases[case].call()))
            for stream in streams:
                stream.synchronize()
            failures.extend(
                f"thread {mine} case {case}"
                for case, y in results
                if not torch.equal(bits(y), bits(expected[case]))
            )

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:5]


def test_workspaces_belong_to_streams() -> None:
    memory = workspaces(0)
    first = memory.take(1024, 256, torch.cuda.current_stream().cuda_stream)
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        second = memory.take(1024, 256, torch.cuda.current_stream().cuda_stream)
    assert first.memory.data_ptr() != second.memory.data_ptr()
    assert first.mutex != second.mutex
    assert not first.memory[:256].any()


@pytest.mark.alone
@pytest.mark.parametrize("shape", ["1,3840,3072,128", "64,3840,3072,128"])
def test_host_time_of_a_call(shape: str) -> None:
    """In a process of its own: what pytest's plugins do to an interpreter is not ours."""
    table = ["--table", str(OWN)] if OWN.is_dir() else []
    command = [sys.executable, "-m", "benchmarks.bench_runtime", "--json", "--shape", shape, *table]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    times = json.loads(done.stdout)[shape]
    print(*(f"{name}: {least:.2f} {median:.2f} us" for name, (least, median) in times.items()), sep="\n")
    # The least of the rounds: whatever else the machine does only adds. A slower host gets as much more.
    limit = HOST_US * max(1.0, times[YARDSTICK][0] / YARDSTICK_US)
    assert times["svdquant_gemm"][0] < limit
    assert times["svdquant_gemm, out given"][0] < limit


def test_the_operator_is_the_function() -> None:
    one = OnCard(f"64,{LAYER}")
    packed = one.packed
    rest = (one.lora, packed.lora_up, packed.wcscale, packed.bias)
    arguments = (one.act, one.ascales, packed.wgt, packed.wscales, *rest)
    wanted, out = one.call(), torch.full((64, 3072), torch.nan, dtype=torch.float16, device="cuda")
    for _ in range(3):
        torch.ops.svdquant.gemm_out(*arguments, out.fill_(torch.nan))
        assert torch.equal(bits(out), bits(wanted))
        assert torch.equal(bits(torch.ops.svdquant.gemm(*arguments, torch.float16)), bits(wanted))


def test_a_thread_that_never_met_cuda() -> None:
    """The driver needs a current context, which a new thread has not."""
    one = OnCard(SMALL)
    wanted, out = one.call().clone(), torch.zeros(17, 3072, dtype=torch.float16, device="cuda")
    one.call(out)
    torch.cuda.synchronize()
    out.zero_()
    torch.cuda.synchronize()
    thread = threading.Thread(target=one.call, args=(out,))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(bits(out), bits(wanted))


class Model(torch.nn.Module):
    """Two quantized layers between ordinary modules."""

    def __init__(self, rank: int = 128) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.norm = torch.nn.LayerNorm(512)
        up, down = torch.nn.Linear(512, 1024).cuda(), torch.nn.Linear(1024, 512).cuda()
        self.up = SVDQuantLinear.from_linear(up, rank=rank, dtype=torch.float16)
        self.down = SVDQuantLinear.from_linear(down, rank=rank, dtype=torch.float16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)), approximate="tanh"))


@pytest.fixture(scope="module")
def model() -> Model:
    return Model().cuda().half().eval()


@pytest.mark.parametrize("activations", ["auto", "nvfp4", "16bit", "fp8"])
@pytest.mark.parametrize("m", [1, 64])
def test_layer_against_the_float64_operator(
    model: Model, m: int, activations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the layer chose, from its buffers, in float64: every link on what the one before it has really written.

    The branch that another kernel would make of x may differ in the last bit, as sums in fp32 have no order.
    """
    layer = model.up
    monkeypatch.setattr(layer, "activations", activations)
    x = torch.randn(m, 512, generator=torch.Generator().manual_seed(m)).half().cuda()
    one = operator(OPERATORS[layer.chosen(m).activations])
    problem = one.problem.parse(f"{m},512,1024,{layer.lora_up.shape[1]}")
    try:
        choice = explain(problem)
    except InputError as error:
        pytest.skip(str(error))
    inputs = {"x": x, "lora_down": layer.lora_down_packed, **{name: getattr(layer, name) for name in BUFFERS}}
    if "wpeak" in one.signature.inputs:
        inputs["wpeak"] = layer.wpeak
    with torch.inference_mode():
        found = launch(one.name, problem, inputs)
        assert torch.equal(bits(layer(x)), bits(found["y"]))
    checks = one.compare(problem, {**inputs, **found}, choice.config)
    assert checks["y"].ok and all(check.ok for check in checks.values()), checks


def test_compiled_model_equals_eager_for_any_number_of_rows(model: Model) -> None:
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    with torch.inference_mode():
        for m in (2, 17, 130):
            x = torch.randn(m, 512, device="cuda").half()
            got, wanted = compiled(x).float(), model(x).float()
            # LayerNorm and GELU are fused differently, which moves inputs of the quantizer across its steps
            assert (got - wanted).norm() < 0.02 * (wanted - x.float()).norm()


def test_compiled_layer_equals_eager_to_the_bit(model: Model) -> None:
    compiled = torch.compile(model.up, fullgraph=True)
    x = torch.randn(17, 512, device="cuda").half()
    with torch.inference_mode():
        assert torch.equal(bits(compiled(x)), bits(model.up(x)))


def test_compiled_model_in_torch_s_own_cuda_graphs(model: Model) -> None:
    compiled = torch.compile(model.up, mode="reduce-overhead", fullgraph=True)
    with torch.inference_mode():
        for seed in range(5):
            x = torch.randn(17, 512, generator=torch.Generator().manual_seed(seed)).half().cuda()
            assert torch.equal(bits(compiled(x)), bits(model.up(x)))


def test_captured_model_equals_eager(model: Model) -> None:
    still = torch.randn(17, 512, device="cuda").half()
    with torch.inference_mode():
        model(still)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(still)
        for _ in range(5):
            still.normal_()
            graph.replay()
            assert torch.equal(bits(y), bits(model(still)))


def test_from_linear_on_the_card() -> None:
    torch.manual_seed(1)
    linear = torch.nn.Linear(512, 256, device="cuda", dtype=torch.float16)
    x = torch.randn(64, 512, device="cuda").half()
    layer = SVDQuantLinear.from_linear(linear, rank=128, calibration=x)
    with torch.inference_mode():
        error = (layer(x).double() - linear(x).double()).norm() / linear(x).double().norm()
    assert layer.relative_error < 0.1
    assert error < 0.15


def test_bf16_layer_if_it_is_bundled() -> None:
    problem = GemmProblem.parse("17,512,256,128", lora_dtype="bf16", out_dtype="bf16")
    try:
        explain(problem)
    except InputError as error:
        pytest.skip(str(error))
    one = OnCard("17,512,256,128", lora_dtype="bf16", out_dtype="bf16")
    one.check(one.call())


# -- quantize_act ------------------------------------------------------------------------------------------------


def hard_activations() -> Iterator[tuple[str, torch.Tensor]]:
    """Every tie of scales and codes with its neighbours in fp32, every fp16 number, huge, subnormal and zero ones."""
    scales = torch.arange(0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    near = torch.tensor([-1, 0, 1], dtype=torch.int32)

    def around(values: torch.Tensor) -> torch.Tensor:
        return (values.view(torch.int32).unsqueeze(-1) + near).view(torch.float32)

    middles = around((scales[1:] + scales[:-1]) * 3).view(-1)
    ties = torch.zeros(len(middles), 32)
    ties[:, 0], ties[:, 17] = middles, -middles
    yield "ties of scales", ties
    steps = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    codes = around(scales[1:, None] * steps).flatten(1)  # 21 values per scale
    codes = torch.cat([codes[:, :15], 6 * scales[1:, None], codes[:, 6:], 6 * scales[1:, None]], dim=1)
    yield "ties of codes", torch.cat([codes, -codes])
    every = torch.arange(0x7C00, dtype=torch.int32).to(torch.int16).view(torch.float16)
    spread = (every.unsqueeze(1).float() * torch.linspace(-1, 1, 32)).half()
    spread[:, 3] = every
    yield "every fp16 number", spread
    yield (
        "every bf16 magnitude",
        torch.arange(0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(-1, 32),
    )
    odd = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-38, 0.006, -0.001])
    huge = torch.tensor([3e38, -3.4e38, 2688.0, -2689.0, 1e-45, -0.0, 1.0, 1e30])
    yield "subnormal, huge, zero", torch.stack([odd.repeat(4), huge.repeat(4), odd.repeat(4) * 0])
    draw = torch.Generator().manual_seed(0)
    for m, k in ((1, 32), (17, 160), (127, 3840), (129, 288), (300, 1024)):
        yield (
            f"random {m} x {k}",
            torch.randn(m, k, generator=draw) * torch.exp2(torch.rand(m, 1, generator=draw) * 24 - 12),
        )


@pytest.mark.parametrize(
    ("name", "x"), list(hard_activations()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_quantized_to_the_bit(name: str, x: torch.Tensor) -> None:
    wanted = expected_outputs(x, None)
    act, ascales, _ = quantize_act(x.cuda(), None, None)
    assert torch.equal(ascales.cpu(), wanted.ascales)
    assert torch.equal(act.cpu(), wanted.act)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_smoothed_and_quantized_to_the_bit(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(3)
    x = (torch.randn(333, 992, generator=draw) * 20).to(dtype)
    smooth = torch.exp2(torch.rand(992, generator=draw) * 16 - 8)
    wanted = expected_outputs(x, smooth)
    act, ascales, _ = quantize_act(x.cuda(), smooth.cuda(), None)
    assert torch.equal(ascales.cpu(), wanted.ascales)
    assert torch.equal(act.cpu(), wanted.act)


def test_ties_between_codes_on_the_card() -> None:
    ties = [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    smooth = torch.exp2(torch.arange(-64.0, 64.0)).repeat_interleave(16)
    z = torch.tensor([*ties, *(-tie for tie in ties)]).repeat(128)
    act, _, _ = quantize_act((z * smooth).unsqueeze(0).cuda(), smooth.cuda(), None)
    assert torch.equal(act.cpu(), quantize_nvfp4(z.unsqueeze(0)).codes)


def test_the_card_s_process_loads_no_compiler_of_ours() -> None:
    code = (
        "import sys, torch\n"
        "from tuner.runtime import *\n"
        f"with use_table({str(OWN if OWN.is_dir() else ROOT / 'results')!r}): prepare({SMALL!r})\n"
        "print([name for name in ('cutlass', 'optuna', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("device", ["gpu", "cpu", "cuda:99", "cuda:x"])
def test_a_device_that_is_none(device: str) -> None:
    with pytest.raises(InputError):
        explain(SMALL, device)


def test_explain_names_the_card_s_class() -> None:
    assert str(explain(SMALL)) == str(explain(SMALL, class_of_card(0).name))
    assert str(prepare(SMALL)) == str(explain(SMALL))
