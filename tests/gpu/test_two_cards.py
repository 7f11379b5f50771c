"""The run time on several cards of one host: whichever is current, both at once, and never half on one and half on the
other. The oracle is the float64 operator on the card; the same operands must also give the same bits on either card.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from tests.gpu.test_runtime import OWN, ROOT, WEIGHTS, OnCard, bits, with_workspace
from tuner.layers import gemm as operator_module
from tuner.runtime import InputError, SVDQuantLinear, explain, prepare, quantize_act, svdquant_gemm, use_table
from tuner.runtime.state import active, workspaces

CARDS = (0, 1)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < len(CARDS), reason="needs two cards in one host"),
]
LAYER = "3840,3072,128"
SHAPES = [f"{m},{LAYER}" for m in (1, 17, 64, 256, 1024)]


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    with use_table(OWN) if OWN.is_dir() else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def first_card_is_current() -> Iterator[None]:
    torch.cuda.set_device(0)
    yield
    torch.cuda.set_device(0)


def other(card: int) -> int:
    return 1 - card


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("card", CARDS)
def test_every_element_is_right_whichever_card_is_current(card: int, shape: str) -> None:
    one = OnCard(shape, card)
    outputs = []
    for current in (other(card), card, other(card)):
        torch.cuda.set_device(current)
        outputs += [one.call() for _ in range(3)]
        outputs.append(one.call(out=torch.full_like(outputs[0], torch.nan)))
        assert torch.cuda.current_device() == current
    one.check(outputs[0])
    assert all(torch.equal(bits(outputs[0]), bits(y)) for y in outputs)


@pytest.mark.parametrize("shape", SHAPES)
def test_either_card_gives_the_same_bits(shape: str) -> None:
    first, second = (OnCard(shape, card).call().cpu() for card in CARDS)
    assert torch.equal(bits(first), bits(second))


def test_the_short_way_is_taken_on_a_card_that_is_not_current(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OnCard(with_workspace(), 1)
    wanted = one.call()

    def the_long_way(*operands: object, **options: object) -> None:
        raise AssertionError("a call like the one before went the long way")

    monkeypatch.setattr(operator_module, "run", the_long_way)
    for current in CARDS:
        torch.cuda.set_device(current)
        assert torch.equal(bits(one.call()), bits(wanted))


@pytest.mark.parametrize(
    "name", ["act", "ascales", "lora_act_in", "out", "wgt", "wscales", "lora_up", "bias"]
)
def test_tensors_on_two_cards_are_one_clear_line(name: str) -> None:
    one = OnCard(f"17,{LAYER}")
    wanted = one.call()
    operands = {**one.operands.tensors(), "out": torch.empty_like(wanted)}
    operands[name] = operands[name].to("cuda:1")
    packed = PackedSVDQuant(**{field: operands[field] for field in WEIGHTS})
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            svdquant_gemm(
                operands["act"], operands["ascales"], packed, operands["lora_act_in"], operands["out"]
            )
        message = str(caught.value)
        assert "\n" not in message and "like the other operands" in message
        assert "cuda:0" in message and "cuda:1" in message
    assert torch.equal(bits(one.call()), bits(wanted)), "nothing was launched that could do harm"


def test_both_cards_from_two_threads() -> None:
    """Each thread works on one card, with either card as its current one, on two streams."""
    shapes = [f"1,{LAYER}", f"64,{LAYER}", with_workspace()]
    cases = {card: [OnCard(shape, card, seed=card) for shape in shapes] for card in CARDS}
    expected = {card: [one.call().clone() for one in ones] for card, ones in cases.items()}
    for card, ones in cases.items():
        for one, y in zip(ones, expected[card], strict=True):
            one.check(y)
    failures: list[str] = []
    together = threading.Barrier(len(CARDS))

    def work(card: int) -> None:
        streams = [torch.cuda.Stream(card) for _ in range(2)]
        together.wait()
        for turn in range(150):
            torch.cuda.set_device((card + turn) % 2)
            results = []
            for index, stream in enumerate(streams):
                which = (turn + index) % len(shapes)
                with torch.cuda.stream(stream):
                    results.append((which, cases[card][which].call()))
            for stream in streams:
                stream.synchronize()
            failures.extend(
                f"card {card} turn {turn} {shapes[which]}"
                for which, y in results
                if not torch.equal(bits(y), bits(expected[card][which]))
            )

    run_in_threads(work)
    assert not failures, failures[:5]


def run_in_threads(work: Any) -> None:
    """``work(card)`` in a thread per card; what it raises is raised here."""
    errors: list[BaseException] = []

    def guarded(card: int) -> None:
        try:
            work(card)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(card,)) for card in CARDS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_two_threads_meet_a_problem_for_the_first_time() -> None:
    """Objects are loaded and plans made by both at once, on both cards."""
    shape = "48,3840,3072,128"
    cases = {card: OnCard(shape, card, seed=3) for card in CARDS}
    found: dict[int, torch.Tensor] = {}
    together = threading.Barrier(len(CARDS))

    def work(card: int) -> None:
        together.wait()
        found[card] = cases[card].call()

    with use_table(OWN if OWN.is_dir() else ROOT / "results"):  # a new state: nothing is loaded
        run_in_threads(work)
        for card, one in cases.items():
            one.check(found[card])


@pytest.mark.parametrize("current", CARDS)
def test_a_cuda_graph_on_each_card(current: int) -> None:
    """Captured with either card current, replayed on both cards at once beside eager calls, with new operands."""
    torch.cuda.set_device(current)
    shape = with_workspace()
    cases = [OnCard(shape, card, seed=card) for card in CARDS]
    fresh = [OnCard(shape, card, seed=card + 7) for card in CARDS]
    graphs, captured = [], []
    for one in cases:
        one.call()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(one.card)
        torch.cuda.synchronize(one.card)
        with torch.cuda.graph(graph, stream=stream):
            captured.append([one.call() for _ in range(3)])
        graphs.append(graph)
    assert torch.cuda.current_device() == current
    for one, new in zip(cases, fresh, strict=True):
        for name in ("act", "ascales", "lora"):
            getattr(one, name).copy_(getattr(new, name))
    wanted = [one.call().clone() for one in cases]
    for one, y in zip(cases, wanted, strict=True):
        one.check(y)
    for _ in range(30):
        for graph in graphs:
            graph.replay()
        eager = [one.call() for one in cases]
        for card in CARDS:
            torch.cuda.synchronize(card)
            results = [*captured[card], eager[card]]
            assert all(torch.equal(bits(y), bits(wanted[card])) for y in results)
            for y in captured[card]:
                y.fill_(torch.nan)


def test_what_was_prepared_on_a_card_can_be_captured_there_at_once() -> None:
    one = OnCard("200,3840,3072,128", 1, seed=5)
    assert str(prepare(one.problem, "cuda:1")) == str(explain(one.problem, "cuda:1"))
    known = active()[0]._plans
    assert known.get((1, one.problem)) is not None and known.get((0, one.problem)) is None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(1)):
        y = one.call()
    graph.replay()
    torch.cuda.synchronize(1)
    one.check(y)


def test_workspaces_belong_to_their_card() -> None:
    """The default stream has the same handle on every card."""
    taken = []
    for card in CARDS:
        with torch.cuda.device(card):
            taken.append(workspaces(card).take(1024, 256, torch.cuda.current_stream().cuda_stream))
    assert [room.memory.get_device() for room in taken] == list(CARDS)


# -- quantize_act and the layer


@pytest.mark.parametrize("current", CARDS)
@pytest.mark.parametrize("card", CARDS)
def test_activations_are_quantized_to_the_bit_on_either_card(card: int, current: int) -> None:
    torch.cuda.set_device(current)
    draw = torch.Generator().manual_seed(3)
    x = (torch.randn(333, 992, generator=draw) * 20).half()
    smooth = torch.exp2(torch.rand(992, generator=draw) * 16 - 8)
    wanted = expected_outputs(x, smooth)
    down = torch.randn(992, 16, generator=draw).half()
    act, ascales, lora = quantize_act(
        x.to(f"cuda:{card}"), smooth.to(f"cuda:{card}"), down.to(f"cuda:{card}")
    )
    assert (act.get_device(), ascales.get_device(), lora.get_device()) == (card, card, card)
    assert torch.equal(ascales.cpu(), wanted.ascales)
    assert torch.equal(act.cpu(), wanted.act)
    exact = x.double() @ down.double()
    assert (lora.cpu().double() - exact).abs().max() <= 1e-3 * exact.abs().max()


def layer_of(k: int = 512, n: int = 1024, card: int = 0) -> SVDQuantLinear:
    torch.manual_seed(7)
    linear = torch.nn.Linear(k, n).half().to(f"cuda:{card}")
    return SVDQuantLinear.from_linear(linear, rank=128, dtype=torch.float16)


def rows_of(m: int, k: int = 512, seed: int = 1) -> torch.Tensor:
    return torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).half()


def test_a_layer_that_moves_from_card_to_card() -> None:
    layer, x = layer_of(), rows_of(17)
    with torch.inference_mode():
        first = layer(x.to("cuda:0"))
        moved = layer.to("cuda:1")
        second = moved(x.to("cuda:1"))
        with pytest.raises(InputError, match="x must be on cuda:1 like the other operands, got cuda:0"):
            moved(x.to("cuda:0"))
        third = moved.to("cuda:0")(x.to("cuda:0"))
    assert (first.get_device(), second.get_device(), third.get_device()) == (0, 1, 0)
    assert torch.equal(bits(first.cpu()), bits(second.cpu())) and torch.equal(bits(first), bits(third))


def test_a_linear_layer_is_quantized_on_a_card_that_is_not_current() -> None:
    torch.manual_seed(1)
    linear = torch.nn.Linear(512, 256, device="cuda:1", dtype=torch.float16)
    x = rows_of(64).to("cuda:1")
    layer = SVDQuantLinear.from_linear(linear, rank=128, calibration=x)
    with torch.inference_mode():
        exact = x.double() @ linear.weight.double().T + linear.bias.double()
        error = (layer(x).double() - exact).norm() / exact.norm()
    assert layer.wgt.get_device() == 1 and torch.cuda.current_device() == 0
    assert layer.relative_error < 0.1 and error < 0.15


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("current", CARDS)
def test_compiled_on_the_second_card(current: int, mode: str) -> None:
    torch._dynamo.reset()
    torch.cuda.set_device(current)
    layer = layer_of(card=1)
    compiled = torch.compile(layer, fullgraph=True, mode=mode)
    with torch.inference_mode():
        for seed in range(5):
            x = rows_of(17, seed=seed).to("cuda:1")
            got = compiled(x).clone()
            assert got.get_device() == 1
            assert torch.equal(bits(got), bits(layer(x)))


def test_one_compiled_layer_per_card() -> None:
    torch._dynamo.reset()
    layers = [torch.compile(layer_of(card=card), fullgraph=True) for card in CARDS]
    x = rows_of(17)
    with torch.inference_mode():
        first, second = (layer(x.to(f"cuda:{card}")) for card, layer in zip(CARDS, layers, strict=True))
    assert torch.equal(bits(first.cpu()), bits(second.cpu()))


def test_data_parallel() -> None:
    """Replicas are made anew for each call, in a thread per card; every half must be what its card gives alone."""
    layer = layer_of().eval()
    odd = torch.nn.Identity()  # its buffer shifts those of the same dtype that are sent behind it
    odd.register_buffer("three", torch.zeros(3, device="cuda:0"))
    parallel = torch.nn.DataParallel(torch.nn.Sequential(odd, layer, torch.nn.ReLU()), device_ids=list(CARDS))
    there = layer_of(card=1)
    with torch.inference_mode():
        for turn in range(5):
            x = rows_of(64, seed=turn)
            got = parallel(x.to("cuda:0"))
            halves = [layer(x[:32].to("cuda:0")), there(x[32:].to("cuda:1")).to("cuda:0")]
            assert torch.equal(bits(got), bits(torch.cat(halves).relu()))


def test_a_pipeline_over_both_cards_on_side_streams() -> None:
    """One layer per card, copies between them not waited for by the host: only streams order them."""
    up, down = layer_of(512, 1024, card=0), layer_of(1024, 512, card=1)
    xs = [rows_of(33, seed=seed) for seed in range(4)]
    with torch.inference_mode():
        wanted = [down(up(x.to("cuda:0")).to("cuda:1")).cpu() for x in xs]
        pinned = [x.pin_memory() for x in xs]
        streams = [torch.cuda.Stream(card) for card in CARDS]
        for turn in range(40):
            with torch.cuda.stream(streams[0]):
                middle = up(pinned[turn % 4].to("cuda:0", non_blocking=True))
                done = streams[0].record_event()
            with torch.cuda.stream(streams[1]):
                streams[1].wait_event(done)
                arrived = middle.to("cuda:1", non_blocking=True)
                y = down(arrived)
                back = torch.empty(y.shape, dtype=y.dtype, pin_memory=True).copy_(y, non_blocking=True)
                ended = streams[1].record_event()
            ended.synchronize()
            assert torch.equal(bits(back), bits(wanted[turn % 4]))


# -- which card is meant


def test_explain_means_the_card_that_is_named_or_current() -> None:
    problem = f"64,{LAYER}"
    assert str(explain(problem, "cuda:1")) == str(explain(problem, "cuda:0"))
    with torch.cuda.device(1):
        assert str(explain(problem)) == str(explain(problem, "cuda:1"))
    count = torch.cuda.device_count()
    with pytest.raises(InputError, match=f"cuda:{count} is not there: torch sees {count} cards"):
        explain(problem, f"cuda:{count}")


def test_a_process_that_serves_one_card_leaves_the_other_alone() -> None:
    """No context there: it would take half a gigabyte, and a busy or broken card would be in the way."""
    code = (
        "import torch\n"
        "from tests.gpu.test_two_cards import OnCard, layer_of, rows_of\n"
        f"one = OnCard('256,{LAYER}', 1)\n"
        "one.check(one.call()); one.call()\n"
        "with torch.inference_mode(): layer_of(card=1)(rows_of(17).to('cuda:1'))\n"
        "torch.cuda.synchronize(1)\n"
        "print([torch._C._cuda_hasPrimaryContext(card) for card in (0, 1)])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[False, True]"
