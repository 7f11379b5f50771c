"""An operator that the project does not know, ``tests/plugins/rowstats``: two outputs, one of whole numbers.

Without a card its object is a host function in Python, which reads what the trampoline hands over and computes into
the memory that it finds there; everything from ``launch`` down to it is what runs on a card.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.core import registry
from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Room
from kernel_space.core.stand_in import StandIn
from tests.runtime.test_choice import PLAIN, data_of, entry, row, write
from tuner.runtime import caller, explain, launch, quick, torch_operator, use_table
from tuner.runtime.caller import caller_of
from tuner.runtime.choice.choice import Choice
from tuner.runtime.choice.choose import Library
from tuner.runtime.choice.contract import Runtime, runtime_of
from tuner.runtime.choice.remembered import forget_tables
from tuner.runtime.load import plan as plan_module
from tuner.runtime.load.loaded import Launchable
from tuner.runtime.load.plan import Plan
from tuner.runtime.load.workspace import Workspaces
from tuner.tables.bundle import ObjectFile, launch_facts
from tuner.tables.row import DispatchKey
from tuner.trials.checked import Check

NAME = "rowstats"
Problem = registry.operator(NAME).problem
CONFIG = registry.kernel(NAME, "rows").config_class()
SIGNATURE = registry.operator(NAME).signature
pytestmark = pytest.mark.filterwarnings("ignore:rowstats on cpu is the torch reference")
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)


class Object:
    """A host function of the operator, and the arguments that came: ``x y count m k stream``."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.seen: list[dict[str, int]] = []
        self.function = HOST_FUNCTION(self._call)
        self.entry = ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def _call(self, vector: int, length: int) -> None:
        addresses = (ctypes.c_void_p * length).from_address(vector)
        ctypes.c_int32.from_address(addresses[-1]).value = self.code
        kinds = {"int32": ctypes.c_int32, "pointer": ctypes.c_uint64, "stream": ctypes.c_uint64}
        values = {
            argument.name: kinds[argument.kind].from_address(address).value
            for argument, address in zip(SIGNATURE.abi, addresses[:-1], strict=True)
        }
        self.seen.append(values)
        m, k = values["m"], values["k"]
        x, y = (self._memory(values[name], torch.float16, m * k).view(m, k) for name in ("x", "y"))
        y.copy_(2 * x.float())
        self._memory(values["count"], torch.int32, m).copy_(torch.tensor([int((row > 0).sum()) for row in x]))

    def _memory(self, address: int, dtype: torch.dtype, count: int) -> torch.Tensor:
        size = count * torch.empty((), dtype=dtype).element_size()
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=dtype)

    def plan(self, problem: Any) -> Plan:
        choice: Any = SimpleNamespace(problem=problem, config=CONFIG, is_padded=False)
        loaded: Any = None
        made = Launchable(device=0, entry=self.entry, sm_count=132, clusters=None, loaded=loaded)
        return Plan(choice, made, Workspaces(0))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Object]:
    """The CPU as a card with an object for any problem of the operator."""
    one = Object()
    new = torch._C._dynamo.guards._empty_strided_cpu
    monkeypatch.setattr(quick, "new_tensor", new)
    monkeypatch.setattr(plan_module, "new_tensor", new)
    monkeypatch.setattr(quick, "_raw_stream", lambda device: 77)
    monkeypatch.setattr(quick, "_current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    monkeypatch.setattr(caller, "plan_for", lambda tables, problem, device: one.plan(problem))
    forget_tables()
    yield one
    forget_tables()


def x_of(m: int, k: int) -> torch.Tensor:
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m + k)).half()
    x[::3] = 0
    return x


def right(x: torch.Tensor, found: dict[str, torch.Tensor]) -> bool:
    wanted = [sum(1 for value in row if value > 0) for row in x.tolist()]
    return torch.equal(found["y"], x * 2) and found["count"].tolist() == wanted


def test_launched_with_new_outputs(made: Object) -> None:
    for _ in range(2):  # the long way, then the short one
        x = x_of(5, 8)
        found = launch(NAME, Problem(m=5, k=8), {"x": x})
        assert list(found) == ["y", "count"] and right(x, found)
        assert (found["count"].dtype, found["count"].shape) == (torch.int32, (5,))
        pointers = {name: tensor.data_ptr() for name, tensor in [("x", x), *found.items()]}
        assert made.seen[-1] == {**pointers, "m": 5, "k": 8, "stream": 77}
    assert len(caller_of(NAME).quick.calls) == 1


def test_launched_into_given_outputs(made: Object) -> None:
    x, y, count = x_of(6, 4), torch.empty(6, 4, dtype=torch.float16), torch.empty(6, dtype=torch.int32)
    for _ in range(2):
        y.fill_(7), count.fill_(7)
        found = launch(NAME, "6,4", {"x": x}, {"count": count, "y": y})
        assert found["y"] is y and found["count"] is count and right(x, found)


def test_problems_of_one_shape_are_told_apart(made: Object) -> None:
    """The problem is part of the call: one that does not fit is no known call."""
    x = x_of(4, 6)
    launch(NAME, "4,6", {"x": x})
    for wrong in ("4,8", "2,6"):
        with pytest.raises(InputError, match="x must be float16"):
            launch(NAME, wrong, {"x": x})
    assert len(made.seen) == 1


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": ({"x": torch.zeros(4, 6)}, r"x must be float16 \[4, 6\], got float32 \[4, 6\]"),
    "shape": ({"x": torch.zeros(4, 8).half()}, r"x must be float16 \[4, 6\], got float16 \[4, 8\]"),
    "strides": ({"x": torch.zeros(6, 4).half().T}, "x must be contiguous"),
    "alignment": ({"x": torch.zeros(25).half()[1:].view(4, 6)}, "x must start at a multiple of 16 bytes"),
    "no tensor": ({"x": 3}, "x must be a plain tensor, got int"),
    "missing": ({}, "rowstats needs x; its inputs are x, its outputs y, count"),
    "unknown": ({"x": torch.zeros(4, 6).half(), "z": torch.zeros(1)}, "rowstats has no z"),
    "grad": (
        {"x": torch.zeros(4, 6).half().requires_grad_()},
        "rowstats has no backward pass but x requires",
    ),
}


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize(("inputs", "message"), WRONG.values(), ids=WRONG.keys())
def test_inputs_that_do_not_fit(made: Object, inputs: dict[str, Any], message: str, known: bool) -> None:
    if known:
        launch(NAME, "4,6", {"x": x_of(4, 6)})
    before = len(made.seen)
    with pytest.raises(InputError, match=message) as caught:
        launch(NAME, "4,6", inputs)
    assert "\n" not in str(caught.value) and len(made.seen) == before


OUTPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "one of two": ({"y": torch.zeros(4, 6).half()}, "rowstats needs count"),
    "dtype": ({"count": torch.zeros(4)}, r"count must be int32 \[4\], got float32 \[4\]"),
    "shape": ({"count": torch.zeros(5).int()}, r"count must be int32 \[4\], got int32 \[5\]"),
    "device": (
        {"count": torch.zeros(4, device="meta").int()},
        "count must be on cpu like the other operands",
    ),
    "strides": ({"y": torch.zeros(6, 4).half().T}, "y must be contiguous"),
}


@pytest.mark.parametrize(("changes", "message"), OUTPUTS.values(), ids=OUTPUTS.keys())
def test_outputs_that_do_not_fit(made: Object, changes: dict[str, Any], message: str) -> None:
    whole = {"y": torch.zeros(4, 6).half(), "count": torch.zeros(4).int()}
    outputs = changes if message.startswith("rowstats needs") else {**whole, **changes}
    with pytest.raises(InputError, match=message):
        launch(NAME, "4,6", {"x": x_of(4, 6)}, outputs)
    assert not made.seen


def test_another_operator_s_problem_is_refused(made: Object) -> None:
    other = registry.operator("stamp").problem(n=32, r=0)
    with pytest.raises(InputError, match="a problem of rowstats must be a RowstatsProblem or M,K"):
        launch(NAME, other, {"x": x_of(4, 6)})
    with pytest.raises(InputError, match="there is no operator 'nothing'"):
        launch("nothing", "4,6", {"x": x_of(4, 6)})
    with pytest.raises(InputError, match="stamp has no input"):
        launch("stamp", other, {})


def test_an_error_of_cuda_is_one(made: Object) -> None:
    made.code = 700
    for _ in range(2):
        with pytest.raises(RuntimeError, match="launching 4,6 on cuda:0 returned CUDA error 700"):
            launch(NAME, "4,6", {"x": x_of(4, 6)})


def test_a_kernel_that_wants_what_the_signature_lacks(monkeypatch: pytest.MonkeyPatch, made: Object) -> None:
    kernel = registry.kernel(NAME, "rows")
    monkeypatch.setitem(kernel.__dict__, "room", lambda config, problem: Room(size=256))
    with pytest.raises(
        InputError, match="rowstats/rows needs a workspace, its operator's signature has none"
    ):
        launch(NAME, "4,6", {"x": x_of(4, 6)})


def test_without_a_card_it_is_the_reference_or_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    x = x_of(4, 6)
    assert right(x, launch(NAME, "4,6", {"x": x}))
    monkeypatch.setattr(caller_of(NAME), "runtime", Runtime(keys=("x",)))
    with pytest.raises(InputError, match="rowstats cannot run on cpu.*has no torch reference"):
        launch(NAME, "4,6", {"x": x})


# ------------------------------------------------------------------ as an operator of torch


@pytest.mark.parametrize("given", [False, True])
def test_torch_checks_the_operator(given: bool) -> None:
    torch_operator(NAME)
    x, ops = x_of(5, 8), torch.ops.autotuner
    out = (torch.empty_like(x), torch.empty(5, dtype=torch.int32)) if given else ()
    checked = ops.rowstats_out.default if given else ops.rowstats.default
    assert set(torch.library.opcheck(checked, (x, *out)).values()) == {"SUCCESS"}


def test_torch_launches_it(made: Object) -> None:
    x = x_of(5, 8)
    for _ in range(2):
        y, count = torch_operator(NAME)(x)
        assert right(x, {"y": y, "count": count})
    y, count = torch.empty_like(x), torch.empty(5, dtype=torch.int32)
    torch.ops.autotuner.rowstats_out(x, y, count)
    assert right(x, {"y": y, "count": count}) and len(made.seen) == 3


def test_compiled_whole() -> None:
    stats = torch_operator(NAME)

    def doubled(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, count = stats(x + 0)
        return y + 1, count * 2

    compiled = torch.compile(doubled, backend="aot_eager", fullgraph=True)
    for m in (3, 5):
        x = x_of(m, 8)
        assert all(torch.equal(a, b) for a, b in zip(compiled(x), doubled(x), strict=True))


def test_bad_input_of_the_operator() -> None:
    stats = torch_operator(NAME)
    with pytest.raises(InputError, match="x must be float16"):
        stats(torch.zeros(4, 6))
    with pytest.raises(InputError, match="no backward pass but x requires grad"):
        stats(torch.zeros(4, 6).half().requires_grad_())


def test_an_operator_that_does_not_say_its_problem_is_none_of_torch() -> None:
    with pytest.raises(InputError, match="stamp must say how its problem follows from its inputs"):
        torch_operator("stamp")


# ------------------------------------------------------------------ what an operator says of itself


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"OPTIONS": ("dtype",)}, "OPTIONS of rowstats.torch_side may name none, got 'dtype'"),
        ({"STEADY": "y"}, "STEADY of rowstats.torch_side may name x, got 'y'"),
        ({"KEYS": ("x", "z")}, "KEYS of rowstats.torch_side may name x, got 'z'"),
        ({"WIDEST": {"m": 5}}, "WIDEST of rowstats.torch_side may name none, got 'm'"),
    ],
)
def test_names_that_are_none_of_the_operator_s(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], message: str
) -> None:
    module = importlib.import_module(registry.operator(NAME).runtime)
    for name, value in said.items():
        monkeypatch.setattr(module, name, value, raising=False)
    with pytest.raises(InputError, match=message):
        runtime_of.__wrapped__(NAME)


def test_a_module_that_is_not_there() -> None:
    operator = registry.operator(NAME)
    before = operator.runtime
    try:
        operator.__dict__["runtime"] = "rowstats.nowhere"
        with pytest.raises(
            InputError, match="operator rowstats names the runtime rowstats.nowhere, which fails"
        ):
            runtime_of.__wrapped__(NAME)
    finally:
        operator.__dict__["runtime"] = before


# ------------------------------------------------------------------ choice


def test_a_kernel_of_other_sizes_stands_in_with_adapted_inputs(
    made: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of zeros is added here, so that the outputs tell which problem was launched."""
    seen: list[str] = []

    def wider(tensors: Any) -> dict[str, torch.Tensor]:
        return {"x": torch.nn.functional.pad(tensors["x"], (0, 0, 0, 1))}

    def plan_for(tables: Any, problem: Any, device: Any) -> Any:
        seen.append(str(problem))
        if problem.m == 6:
            return made.plan(problem)
        stand_in = StandIn(problem=Problem(m=6, k=4), adapt=wider)
        return SimpleNamespace(choice=SimpleNamespace(is_padded=True, stand_in=stand_in))

    monkeypatch.setattr(caller, "plan_for", plan_for)
    x = x_of(5, 4)
    for _ in range(3):
        found = launch(NAME, "5,4", {"x": x})
        assert right(torch.cat([x, torch.zeros(1, 4).half()]), found)
    assert seen == ["5,4", "6,4"] and len(made.seen) == 3


def library(*known: str, bundled: bool = True) -> Library:
    """Rows of the operator, and a bundle that has every object."""
    rows = {
        shape: SimpleNamespace(
            key=SimpleNamespace(problem=Problem.parse(shape), op=NAME),
            config=str(CONFIG),
            check=Check.WINNER,
            kind="measured",
            time_us=3.0,
            object=None,
        )
        for shape in known
    }
    file = ObjectFile(path=Path(__file__), prefix="kernel", arguments=SIGNATURE.abi, sha256="0" * 64)
    bundle: Any = SimpleNamespace(entries=(), find=lambda config, problem: file if bundled else None)
    table: Any = SimpleNamespace(rows=rows, arch=SM90A, estimates=None, estimate=lambda config, problem: "")
    return Library(table, bundle, Path("nowhere"))


def chosen(shape: str, *known: str) -> Choice:
    return library(*known).choose(Problem.parse(shape))


@pytest.mark.parametrize(
    ("shape", "source"),
    [
        ("64,256", "exact"),
        ("65,256", "nearest M 64"),
        ("100,256", "nearest M 128"),
        ("90,256", "nearest M 64"),
        ("64,512", "nearest layer 64,256"),
        ("4000,8192", "nearest layer 128,4096"),
    ],
)
def test_rows_by_the_problem_s_own_form(shape: str, source: str) -> None:
    answer = chosen(shape, "64,256", "128,256", "128,4096")
    assert answer.source == source and not answer.is_padded
    assert str(answer).splitlines()[0] == f"problem    {shape}"


def test_nothing_to_launch_says_so_in_the_operator_s_words() -> None:
    with pytest.raises(InputError, match="no row of rowstats in the dispatch table") as caught:
        chosen("64,256")
    assert "run tune.py --shape 64,256 --op rowstats first" in str(caught.value)
    with pytest.raises(InputError, match="exact: its object .*is neither bundled nor in the build cache"):
        library("64,256", bundled=False).choose(Problem.parse("64,256"))


def test_a_table_and_a_bundle_of_two_operators(tmp_path: Path) -> None:
    """Files as a tune leaves them; each operator is answered by its own rows and objects."""
    problem = Problem(m=64, k=256)
    mine = dataclasses.replace(
        row("16,3840,3072,128"), key=DispatchKey.of(problem, "sm_90a"), config=str(CONFIG)
    )
    data = data_of(str(CONFIG), str(problem.problem_class))
    digest = hashlib.sha256(data).hexdigest()
    object_of = dataclasses.replace(
        entry(PLAIN),
        config=str(CONFIG),
        problem=problem,
        file=f"{digest[:16]}.o",
        sha256=digest,
        arguments=SIGNATURE.abi,
        launch=launch_facts(CONFIG, problem),
    )
    root = write(tmp_path, [row("256,3840,3072,128"), mine], [entry(PLAIN), object_of])
    with use_table(root):
        answer = explain("100,256", "h200", op=NAME)
        assert (answer.source, str(answer.config)) == ("nearest M 64", str(CONFIG))
        assert answer.object.read() == data and answer.object.arguments == SIGNATURE.abi
        assert str(explain("256,3840,3072,128", "h200").config) == PLAIN
        with pytest.raises(InputError, match="op must be left out or be that of the problem, rowstats"):
            explain(problem, "h200", op="stamp")
