"""An operator that the project does not know, on a card: two outputs, one of whole numbers, right to the bit.

The oracle is torch.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from kernel_space.core import registry
from tests.gpu.stranger import NAME, compiled_for
from tuner.runtime import InputError, explain, launch, prepare, torch_operator
from tuner.runtime.caller import caller_of
from tuner.runtime.choice.choice import Prepared
from tuner.runtime.choice.remembered import forget_tables
from tuner.runtime.state import active, class_of_card

pytestmark = pytest.mark.gpu
Problem = registry.operator(NAME).problem
SHAPES = ["1,2", "64,256", "65,256", "333,1026", "4352,3840"]


@pytest.fixture(scope="module", autouse=True)
def prepared() -> Iterator[None]:
    """The card's library has the operator's object, as ``prepare(compile=True)`` would have put it there."""
    device_class = class_of_card(0)
    library = active()[0].library(device_class)
    config = registry.kernel(NAME, "rows").config_class()
    library.add(
        Prepared(problem=Problem(m=64, k=256), config=config, compiled=compiled_for(device_class.arch))
    )
    forget_tables()
    yield
    forget_tables()


def x_of(shape: str, seed: int = 0) -> torch.Tensor:
    m, k = map(int, shape.split(","))
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)).half()
    x[::7] = 0
    return x.cuda()


def right(x: torch.Tensor, y: torch.Tensor, count: torch.Tensor) -> bool:
    wanted = (x > 0).sum(dim=1, dtype=torch.int32)
    return torch.equal(y, x + x) and count.dtype == torch.int32 and torch.equal(count, wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_element_is_right(shape: str) -> None:
    for seed in range(3):  # the long way, then the short one
        x = x_of(shape, seed)
        found = launch(NAME, shape, {"x": x})
        assert right(x, found["y"], found["count"])
    y, count = torch.full_like(x, 7), torch.full((x.shape[0],), -1, dtype=torch.int32, device="cuda")
    launch(NAME, shape, {"x": x}, {"y": y, "count": count})
    assert right(x, y, count)


def test_explain_and_prepare_know_it() -> None:
    assert explain("64,256", op=NAME).source == "compiled for 64,256"
    assert str(prepare("100,512", "cuda:0", op=NAME).launched) == "100,512"


def test_calls_like_one_before_go_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x = x_of("65,256")
    launch(NAME, "65,256", {"x": x})

    def the_long_way(*operands: object, **options: object) -> None:
        raise AssertionError("a call like the one before went the long way")

    monkeypatch.setattr(caller_of(NAME), "run", the_long_way)
    other = x_of("65,256", seed=5)
    found = launch(NAME, "65,256", {"x": other})
    assert right(other, found["y"], found["count"])


def test_captured_and_replayed_with_other_input() -> None:
    x = x_of("333,1026")
    launch(NAME, "333,1026", {"x": x})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = launch(NAME, "333,1026", {"x": x})
    for seed in (1, 2):
        x.copy_(x_of("333,1026", seed))
        found["y"].fill_(7), found["count"].fill_(-1)
        graph.replay()
        torch.cuda.synchronize()
        assert right(x, found["y"], found["count"])


def test_on_another_stream() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = x_of("4352,3840")
        found = launch(NAME, "4352,3840", {"x": x})
    stream.synchronize()
    assert right(x, found["y"], found["count"])


def test_as_an_operator_of_torch() -> None:
    stats = torch_operator(NAME)
    x = x_of("65,256")
    assert right(x, *stats(x))
    y, count = torch.empty_like(x), torch.empty(65, dtype=torch.int32, device="cuda")
    torch.ops.autotuner.rowstats_out(x, y, count)
    assert right(x, y, count)
    compiled = torch.compile(lambda x: stats(x), backend="aot_eager", fullgraph=True)
    assert right(x, *compiled(x))
    assert set(torch.library.opcheck(torch.ops.autotuner.rowstats.default, (x,)).values()) == {"SUCCESS"}


def test_tensors_that_do_not_fit_are_not_launched() -> None:
    x, count = x_of("65,256"), torch.empty(65, dtype=torch.int32)
    launch(NAME, "65,256", {"x": x})
    y = torch.full_like(x, 7)
    for inputs, outputs, message in (
        ({"x": x.float()}, None, "x must be float16"),
        ({"x": x[:-1]}, None, r"x must be float16 \[65, 256\]"),
        ({"x": x}, {"y": y, "count": count}, "count must be on cuda:0 like the other operands, got cpu"),
        ({"x": x}, {"y": y, "count": count.cuda().long()}, r"count must be int32 \[65\]"),
        ({"x": torch.cat([x.view(-1), x.view(-1)])[1 : x.numel() + 1].view(65, 256)}, None, "16 bytes"),
    ):
        with pytest.raises(InputError, match=message):
            launch(NAME, "65,256", inputs, outputs)
    torch.cuda.synchronize()
    assert (y == 7).all()
