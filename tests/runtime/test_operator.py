"""The operator without a card: its torch reference against the float64 oracle, and how it behaves inside torch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
import torch

from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.runtime import InputError, caller, svdquant_gemm

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_gemm on cpu is the torch reference")
GEMM, GEMM_OUT = "gemm", "gemm_out"


def operands_of(shape: str, **dtypes: str) -> Operands:
    return make_operands(GemmProblem.parse(shape, **dtypes), seed=3)


def packed(one: Operands) -> PackedSVDQuant:
    return PackedSVDQuant(
        wgt=one.wgt, wscales=one.wscales, lora_up=one.lora_up, wcscale=one.wcscale, bias=one.bias
    )


def tensors(one: Operands) -> tuple[torch.Tensor, ...]:
    """In the order of the operator's schema."""
    weights = (one.lora_up, one.wcscale, one.bias)
    return (one.act, one.ascales, one.wgt, one.wscales, one.lora_act_in, *weights)


def call(one: Operands, **changes: Any) -> torch.Tensor:
    values = {"act": one.act, "ascales": one.ascales, "packed": packed(one), "lora_act_in": one.lora_act_in}
    return svdquant_gemm(**{**values, **changes})


@pytest.mark.parametrize("shape", ["1,64,16,0", "17,160,72,16", "130,256,136,48"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_reference_is_within_tolerance_of_float64(shape: str, dtype: str) -> None:
    one = operands_of(shape, lora_dtype=dtype, out_dtype=dtype)
    one.y.copy_(call(one))
    assert one.check().ok, one.check()


def test_output_dtype_is_that_of_lora_up_unless_asked() -> None:
    one = operands_of("3,64,16,16")
    assert call(one).dtype == torch.float16
    other = operands_of("3,64,16,16", out_dtype="bf16")
    other.y.copy_(call(other, out_dtype=torch.bfloat16))
    assert other.check().ok


def test_out_is_written_and_returned() -> None:
    one = operands_of("5,64,16,16")
    assert call(one, out=one.y) is one.y
    assert one.check().ok


def test_without_lora_there_need_be_no_lora_act_in() -> None:
    one = operands_of("5,64,16,0")
    assert torch.equal(call(one), call(one, lora_act_in=None))


def test_no_rows_give_no_rows() -> None:
    one = operands_of("5,64,16,16")
    y = call(one, act=one.act[:0], ascales=one.ascales[:0], lora_act_in=one.lora_act_in[:0])
    assert y.shape == (0, 16)


WRONG = {
    "act dtype": ({"act": lambda o: o.act.to(torch.int8)}, "act must be uint8"),
    "act shape": ({"act": lambda o: o.act[:, :-16].contiguous()}, r"act must be uint8 \[5, 32\]"),
    "act one-dimensional": ({"act": lambda o: o.act[0]}, "act must be uint8"),
    "act strides": ({"act": lambda o: o.act.repeat(1, 2)[:, ::2]}, "act must be contiguous"),
    "ascales size": ({"ascales": lambda o: o.ascales[:-1]}, "ascales must be uint8"),
    "lora dtype": ({"lora_act_in": lambda o: o.lora_act_in.bfloat16()}, "lora_act_in must be float16"),
    "lora missing": ({"lora_act_in": lambda o: None}, "lora_act_in must be float16"),
    "grad": ({"lora_act_in": lambda o: o.lora_act_in.clone().requires_grad_()}, "no backward"),
    "out shape": ({"out": lambda o: o.y[:4]}, r"out must be float16 \[5, 16\]"),
    "out strides": ({"out": lambda o: o.y.T.contiguous().T}, "out must be contiguous"),
    "out dtype": ({"out": lambda o: o.y.float()}, "y must be float16 or bfloat16"),
    "two dtypes": (
        {"out": lambda o: o.y, "out_dtype": lambda o: torch.bfloat16},
        "out_dtype must be left out",
    ),
}


@pytest.mark.parametrize("changes, message", WRONG.values(), ids=WRONG.keys())
def test_bad_input_is_one_line(changes: dict[str, Any], message: str) -> None:
    one = operands_of("5,64,16,16")
    call(one)  # what was right before must not hide what is wrong now
    with pytest.raises(InputError, match=message) as caught:
        call(one, **{name: make(one) for name, make in changes.items()})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["act", "ascales", "lora_act_in", "out"])
def test_tensors_of_two_devices_are_one_line_and_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No warning about operands that nothing would have run on, either; the first call and a known one alike."""
    monkeypatch.setattr(caller, "_warned", set())
    one = operands_of("5,64,16,16")
    other = (one.y if name == "out" else getattr(one, name)).to("meta")
    for known in (False, True):
        with warnings.catch_warnings(), pytest.raises(InputError) as caught:
            warnings.simplefilter("ignore" if name == "out" else "error")
            call(one, **{name: other})
        assert str(caught.value) == f"{name} must be on cpu like the other operands, got meta", known
        call(one)


@pytest.mark.parametrize("name", ["wscales", "lora_up", "wcscale", "bias"])
def test_weights_of_two_devices_are_one_line(name: str) -> None:
    one = operands_of("5,64,16,16")
    whole = packed(one)
    with pytest.raises(InputError, match=f"{name} must be on cpu like the other operands, got meta"):
        call(one, packed=dataclasses.replace(whole, **{name: getattr(whole, name).to("meta")}))


@pytest.mark.parametrize("name", ["wscales", "lora_up", "wcscale", "bias"])
def test_weights_that_do_not_fit(name: str) -> None:
    one = operands_of("5,64,16,16")
    whole = packed(one)
    fields = {field: getattr(whole, field) for field in ("wgt", "wscales", "lora_up", "wcscale", "bias")}
    fields[name] = fields[name][:-1].clone()
    with pytest.raises(InputError, match=f"{name} must be"):
        call(one, packed=PackedSVDQuant(**fields))


def test_a_tensor_at_an_old_address_is_checked_again() -> None:
    """Checks are remembered by identity, and Python gives a new object the address of one that died."""
    one = operands_of("5,64,16,16")
    weights = packed(one)
    same_address = 0
    for _ in range(50):
        bias = weights.bias.clone()
        call(one, packed=dataclasses.replace(weights, bias=bias))
        address = id(bias)
        del bias
        wrong = torch.zeros(15)
        same_address += id(wrong) == address
        with pytest.raises(InputError, match="bias must be"):
            call(one, packed=dataclasses.replace(weights, bias=wrong))
        del wrong
    assert same_address


def test_torch_checks_the_operator() -> None:
    one = operands_of("17,64,24,16")
    ops = torch.ops.svdquant
    assert set(torch.library.opcheck(ops.gemm.default, (*tensors(one), torch.float16)).values()) == {
        "SUCCESS"
    }
    assert set(torch.library.opcheck(ops.gemm_out.default, (*tensors(one), one.y)).values()) == {"SUCCESS"}


def test_fake_tensors_have_the_shape_of_the_real_ones() -> None:
    one = operands_of("17,64,24,16")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        y = torch.ops.svdquant.gemm(*(mode.from_tensor(tensor) for tensor in tensors(one)), torch.bfloat16)
    assert y.shape == (17, 24)
    assert y.dtype == torch.bfloat16


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_whole_with_any_number_of_rows(backend: str) -> None:
    graphs = []

    def counting(graph: torch.fx.GraphModule, inputs: list) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    whole = packed(operands_of("1,64,24,16"))

    def layer(act: torch.Tensor, ascales: torch.Tensor, lora_act_in: torch.Tensor) -> torch.Tensor:
        return svdquant_gemm(act, ascales, whole, lora_act_in) + 1

    compiled = torch.compile(layer, backend=counting, fullgraph=True, dynamic=True)
    for m in (2, 17, 130):
        one = operands_of(f"{m},64,24,16")
        assert torch.equal(
            compiled(one.act, one.ascales, one.lora_act_in), layer(one.act, one.ascales, one.lora_act_in)
        )
    assert len(graphs) <= 2  # 128 rows more are one more block of scale factors, nothing else is specialised
    assert any(str(node.target).startswith("svdquant.gemm") for node in graphs[0].graph.nodes)


def test_a_profiler_sees_the_operator() -> None:
    """In plain eager mode the dispatcher is passed by; whoever listens must still hear of the call."""
    one = operands_of("5,64,16,16")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call(one)
    assert "svdquant::gemm" in {event.key for event in profile.key_averages()}


def test_the_reference_is_announced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for m in (1, 2, 3):
            call(operands_of(f"{m},64,16,16"))
    messages = [str(one.message) for one in caught if "torch reference" in str(one.message)]
    assert len(messages) == 1


def test_threads_share_the_weights() -> None:
    cases = [operands_of(f"{m},64,16,16") for m in range(1, 9)]
    whole = packed(cases[0])
    expected = [call(one, packed=whole) for one in cases]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(20):
            for index, one in enumerate(cases):
                if not torch.equal(call(one, packed=whole), expected[index]):
                    wrong.append(index)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_the_run_time_loads_neither_compiler_nor_search() -> None:
    code = (
        "import sys, tuner.runtime; print([name for name in ('cutlass', 'optuna', 'pandas', 'sklearn', 'triton') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
