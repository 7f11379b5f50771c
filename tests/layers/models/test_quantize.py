"""``quantize_model`` on models of diffusers and transformers, and on small ones whose numbers are known."""

from __future__ import annotations

import copy
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.layers.models.published import MODELS, output
from tests.layers.test_linear import linear_of, relative
from tuner.layers.decompose import smoothing
from tuner.layers.models import one, quantize
from tuner.layers.models.one import STRENGTHS
from tuner.runtime import (
    InputError,
    SVDQuantLinear,
    attach_svdquant,
    load_svdquant,
    quantize_model,
    save_svdquant,
)

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_linear on cpu is the torch reference")


class Small(torch.nn.Module):
    """Three linears in a row, one that never runs, one whose sizes no kernel takes, one that is two places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = linear_of(64, 96)
        self.second = torch.nn.Linear(64, 32)
        self.never = torch.nn.Linear(32, 32)
        self.odd = torch.nn.Linear(32, 12)
        self.again = self.second

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.odd(torch.tanh(self.second(torch.relu(self.first(x) * scale))))


def batches(count: int = 3, rows: int = 20) -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(5)
    found = [torch.randn(2, rows // 2, 96, generator=rng) for _ in range(count)]
    for batch in found:
        batch[..., 7::31] *= 30
    return found


def quiet(model: torch.nn.Module, *args: Any, **options: Any) -> quantize.QuantizeReport:
    return quantize_model(model, *args, progress=False, **options)


def states(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name].nan_to_num(), second[name].nan_to_num()) for name in first
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_published_models(name: str) -> None:
    """Every linear is replaced, and y is as near as 4-bit weights and activations of random layers are."""
    model, call = MODELS[name]()
    linears = [one for one in model.modules() if type(one) is torch.nn.Linear]
    before = output(model, call)
    report = quiet(model, [call], rank=32)
    assert not report.left and len(report.layers) == len(linears)
    assert not [one for one in model.modules() if type(one) is torch.nn.Linear]
    after = output(model, call)
    assert torch.isfinite(after).all() and 0 < relative(after, before) < 0.15
    assert max(one.output_error for one in report.layers) < 0.15


def test_errors_and_smoothing_are_those_of_what_was_seen() -> None:
    model, data = Small(), batches()
    first = model.first
    report = quiet(model, data, rank=16)
    layer = model.first
    assert isinstance(layer, SVDQuantLinear)
    rows = torch.cat([batch.view(-1, 96) for batch in data])
    assert torch.equal(layer.smooth, smoothing(rows, first.weight, 0.5))
    said = report.layers[0]
    assert (said.name, said.n, said.k, said.rank, said.strength) == ("first", 64, 96, 16, 0.5)
    assert said.relative_error == layer.relative_error
    with torch.no_grad():
        assert said.output_error == pytest.approx(relative(layer(rows), first(rows)), rel=0.02)


def test_what_stays_and_what_is_not_seen() -> None:
    model = Small()
    report = quiet(model, batches(), rank=16)
    assert report.left == {"odd": "N must be a multiple of 8, got 12; use 8 or 16"}
    by_name = {one.name: one for one in report.layers}
    assert by_name["never"].note == "not run in the calibration, not smoothed"
    assert by_name["never"].output_error is None and by_name["never"].strength is None
    assert by_name["second"].places == ("second", "again") and model.again is model.second
    assert isinstance(model.second, SVDQuantLinear) and type(model.odd) is torch.nn.Linear
    assert "second: K=64 N=32 R=16" in str(report) and "also again" in str(report)


def test_without_calibration() -> None:
    model = Small()
    linear = model.first
    report = quiet(model, rank=16)
    assert {one.output_error for one in report.layers} == {None}
    assert same(model.first.state_dict(), SVDQuantLinear.from_linear(linear, rank=16).state_dict())


class _Own(torch.nn.Linear):
    pass


def test_linears_that_are_more_than_linears_stay() -> None:
    attention = torch.nn.MultiheadAttention(64, 2)
    model = torch.nn.ModuleDict({"own": _Own(64, 64), "attention": attention, "fc": torch.nn.Linear(64, 64)})
    model["bad"] = linear_of(32, 64)
    with torch.no_grad():
        model["bad"].weight[3, 5] = float("nan")
    model["whole"] = torch.nn.Linear(64, 64).to("meta")
    report = quiet(model, rank=16)
    assert [one.name for one in report.layers] == ["fc"]
    assert report.left["own"] == "it is _Own, not torch.nn.Linear itself"
    assert "attention.out_proj" in report.left
    assert report.left["bad"] == "the weight must be finite, it holds NaN or infinity"
    assert "meta" in report.left["whole"]
    x = torch.randn(3, 1, 64)
    attention(x, x, x)


def test_replaced_linears_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a model would need the memory of both: while the last is made, the others' weights are gone."""
    model, alive = Small(), []
    weights = [weakref.ref(one.weight) for one in (model.first, model.second, model.never)]
    real = quantize.quantized

    def spy(*args: Any) -> Any:
        alive.append([one() is not None for one in weights])
        return real(*args)

    monkeypatch.setattr(quantize, "quantized", spy)
    quiet(model, batches(), rank=16)
    assert alive == [[True, True, True], [False, True, True], [False, False, True]]


def test_a_linear_of_two_places_is_saved_and_attached_to_both(tmp_path: Path) -> None:
    model, fresh = Small(), Small()
    quiet(model, batches(), rank=16)
    save_svdquant(model, tmp_path / "small.safetensors")
    attach_svdquant(fresh, load_svdquant(tmp_path / "small.safetensors"))
    assert fresh.again is fresh.second and isinstance(fresh.again, SVDQuantLinear)
    with torch.no_grad():
        assert all(torch.equal(fresh(batch), model(batch)) for batch in batches())


class Conv1D(torch.nn.Module):
    """As transformers has it, for GPT-2."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = torch.nn.Parameter(linear_of(nf, nx).weight.detach().T.contiguous())
        self.bias = torch.nn.Parameter(torch.randn(nf, generator=torch.Generator().manual_seed(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


def test_a_weight_with_its_inputs_first() -> None:
    model = torch.nn.Sequential(Conv1D(64, 96), torch.nn.GELU(), Conv1D(12, 64))
    linear, kept = torch.nn.Linear(96, 64), model[2]
    with torch.no_grad():
        linear.weight.copy_(model[0].weight.T)
        linear.bias.copy_(model[0].bias)
    wanted = SVDQuantLinear.from_linear(linear, rank=16, calibration=torch.cat(batches()).view(-1, 96))
    fresh = copy.deepcopy(model)
    report = quiet(model, batches(), rank=16)
    assert [one.name for one in report.layers] == ["0"] and list(report.left) == ["2"] and model[2] is kept
    assert same(model[0].state_dict(), wanted.state_dict())
    attach_svdquant(fresh, {"0": model[0]})
    assert fresh[0] is model[0]


def test_matrices_that_no_linear_has_are_named() -> None:
    model = torch.nn.ModuleDict({"fc": torch.nn.Linear(64, 64), "table": torch.nn.Embedding(64, 64)})
    model["experts"] = experts = torch.nn.Module()
    experts.up = torch.nn.Parameter(torch.zeros(4, 96, 64))
    experts.mix, experts.place = (torch.nn.Parameter(torch.zeros(*size)) for size in ((64, 64), (1, 64, 64)))
    report = quiet(model, rank=16)
    assert report.left == {
        "experts.up": "it is a parameter [4, 96, 64] of Module, not torch.nn.Linear",
        "experts.mix": "it is a parameter [64, 64] of Module, not torch.nn.Linear",
    }


@pytest.mark.slow
def test_a_compiled_model_by_the_names_of_its_own() -> None:
    model, expected = Small(), Small()
    report = quiet(torch.compile(model, backend="eager"), batches(), rank=16)
    assert [one.name for one in report.layers] == ["first", "second", "never"]
    quiet(expected, batches(), rank=16)
    assert same(states(model), states(expected))
    fresh = Small()
    attach_svdquant(torch.compile(fresh, backend="eager"), {"first": model.first})
    assert fresh.first is model.first


def test_skipping() -> None:
    for skip in ("sec*", ["second"], lambda name, linear: linear.in_features == 64):
        model = Small()
        report = quiet(model, batches(), rank=16, skip=skip)
        assert report.left["second"] == "skipped" and type(model.second) is torch.nn.Linear
        assert isinstance(model.first, SVDQuantLinear)


@pytest.mark.parametrize("kind", ["tensors", "tuples", "dicts", "function", "generator"])
def test_ways_to_calibrate(kind: str) -> None:
    data = batches()
    ways: dict[str, Any] = {
        "tensors": data,
        "tuples": [(batch, 1.0) for batch in data],
        "dicts": [{"x": batch} for batch in data],
        "function": lambda model: [model(batch) for batch in data],
        "generator": (batch for batch in data),
    }
    model, expected = Small(), Small()
    quiet(model, ways[kind], rank=16, memory=1)
    quiet(expected, data, rank=16, memory=1)
    assert same(states(model), states(expected))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model runs once a share; no share keeps more rows than fit."""
    watched: list[tuple[int, int]] = []
    real = quantize.watch

    def spy(model: torch.nn.Module, linears: Any, *args: Any) -> Any:
        found = real(model, linears, *args)
        size = sum(seen.rows.numel() * seen.rows.element_size() for seen in found.values())
        watched.append((len(linears), size))
        return found

    monkeypatch.setattr(quantize, "watch", spy)
    row_bytes = 4 * 10
    for memory, shares in ((1, [1, 1, 1]), (row_bytes * (96 + 64), [2, 1]), (1 << 20, [3])):
        watched.clear()
        quiet(Small(), batches(), rank=16, rows=10, memory=memory)
        assert [count for count, _ in watched] == shares
        assert all(size <= max(memory, row_bytes * 96) for _, size in watched)


def test_later_shares_see_earlier_layers_quantized() -> None:
    model, data = Small(), batches()
    quiet(model, data, rank=16, memory=1)
    reference = Small()
    quiet(reference, data, rank=16, skip=("second",))  # the first layer alone
    seen = []
    reference.second.register_forward_pre_hook(lambda _, args: seen.append(args[0].view(-1, 64)))
    with torch.no_grad():
        for batch in data:
            reference(batch)
    assert torch.equal(model.second.smooth, smoothing(torch.cat(seen), reference.second.weight, 0.5))


def test_rows_are_a_sample_and_the_largest_is_of_all() -> None:
    seen = one.Seen(10)
    calls = [torch.arange(start, start + 40.0).view(20, 2) for start in range(0, 400, 40)]
    for call in calls:
        seen.add(call)
    every = {tuple(row) for call in calls for row in call.tolist()}
    kept = [tuple(row) for row in seen.rows.tolist()]
    assert len(kept) == len(set(kept)) == 10 and set(kept) <= every and kept == sorted(kept)
    assert seen.largest.tolist() == [398.0, 399.0]
    assert len({int(row[0]) // 40 for row in kept}) > 3  # not of the first or last call alone


def test_searched_smoothing_is_the_best_of_those_tried() -> None:
    data = batches()
    searched = {one.name: one for one in quiet(Small(), data, rank=16, smoothing_strength="search").layers}
    fixed = {}
    for strength in STRENGTHS:
        for layer in quiet(Small(), data, rank=16, smoothing_strength=strength).layers:
            fixed[layer.name, strength] = layer.output_error
    for name in ("first", "second"):
        best = min(fixed[name, strength] for strength in STRENGTHS)
        assert searched[name].output_error <= best
        if searched[name].strength is not None:
            assert fixed[name, searched[name].strength] == searched[name].output_error == best
    assert searched["first"].output_error < fixed["first", 0.2]
    assert searched["never"].strength is None


def stopped_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle."""
    real, made = quantize.quantized, []

    def stops(*args: Any) -> Any:
        if len(made) == count:
            raise KeyboardInterrupt
        made.append(1)
        return real(*args)

    monkeypatch.setattr(quantize, "quantized", stops)


@pytest.mark.parametrize("memory", [1, 1 << 20])
def test_goes_on_where_it_was_stopped(memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"rank": 16, "memory": memory}
    whole = Small()
    report = quiet(whole, batches(), **options)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stopped_after(2, patch)
        quiet(Small(), batches(), resume=tmp_path, **options)
    again = Small()
    resumed = quiet(again, batches(), resume=tmp_path, **options)
    assert [one.resumed for one in resumed.layers] == [True, True, False]
    assert same(states(again), states(whole))
    for first, second in zip(report.layers, resumed.layers, strict=True):
        assert (first.output_error, first.strength, first.places) == (
            second.output_error,
            second.strength,
            second.places,
        )


def test_what_was_made_from_something_else_is_not_taken(tmp_path: Path) -> None:
    base: dict[str, Any] = {"rank": 16, "memory": 1 << 20, "resume": tmp_path}
    quiet(Small(), batches(), **base)
    for changed in ({"rank": 32}, {"smoothing_strength": 0.25}, {"dtype": torch.float16}, {"rows": 8}):
        assert not any(one.resumed for one in quiet(Small(), batches(), **{**base, **changed}).layers)
    assert not any(one.resumed for one in quiet(Small(), batches(2), **base).layers)
    other = Small()
    with torch.no_grad():
        other.first.weight[0, 0] += 1
    assert [one.resumed for one in quiet(other, batches(), **base).layers] == [False, True, True]
    assert all(one.resumed for one in quiet(Small(), batches(), **base).layers)


@pytest.mark.parametrize("suffix", [".safetensors", ".json"])
def test_damaged_leftovers_are_named(suffix: str, tmp_path: Path) -> None:
    quiet(Small(), batches(), rank=16, resume=tmp_path)
    for path in tmp_path.glob(f"*{suffix}"):
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=str(tmp_path)) as caught:
        quiet(Small(), batches(), rank=16, resume=tmp_path)
    assert "\n" not in str(caught.value)


def test_what_the_model_raises_is_raised_and_hooks_are_gone() -> None:
    model = Small()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        quiet(model, [torch.randn(2, 95)], rank=16)
    assert not model.first._forward_pre_hooks
    assert type(model.first) is torch.nn.Linear


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "rank": ({"rank": 24}, "R must be a multiple of 16"),
    "strength": (
        {"smoothing_strength": 2.0},
        "smoothing strength must be between 0 and 1 or 'search', got 2.0",
    ),
    "strength as text": ({"smoothing_strength": "best"}, "or 'search', got 'best'"),
    "dtype": ({"dtype": torch.float32}, "dtype must be float16 or bfloat16"),
    "rows": ({"rows": 0}, "rows must be at least 1"),
    "one tensor": ({"calibration": torch.randn(2, 96)}, "calibration must be batches"),
    "one dict": ({"calibration": {"x": torch.randn(2, 96)}}, "calibration must be batches"),
    "no batch": ({"calibration": []}, "calibration has no batch"),
    "skip": ({"skip": ("norm*",)}, "skip names 'norm\\*', and no linear of the model has such a name"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_are_one_line(options: dict[str, Any], message: str) -> None:
    options = {"rank": 16, **options}
    model = Small()
    with pytest.raises(InputError, match=message) as caught:
        quiet(model, **options)
    assert "\n" not in str(caught.value) and type(model.first) is torch.nn.Linear


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="resume must be a folder"):
        quiet(Small(), rank=16, resume=tmp_path / "x")


def test_a_bar_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Where no terminal overwrites a line there are few; none for who asked for none."""
    quantize_model(Small(), rank=16)
    shown = capsys.readouterr()
    assert "3/3" in shown.err and "never" in shown.err and shown.err.count("\r") <= 3 and not shown.out
    quantize_model(Small(), rank=16, progress=False)
    assert not capsys.readouterr().err


class _Cast(torch.nn.Module):
    """As T5's feed-forward has it."""

    def __init__(self) -> None:
        super().__init__()
        self.wo = torch.nn.Linear(64, 64).bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.wo.weight, torch.Tensor) and x.dtype != self.wo.weight.dtype:
            x = x.to(self.wo.weight.dtype)
        return self.wo(x.to(self.wo.weight.device))


def test_models_that_look_at_the_weight() -> None:
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(64, 2, 128, batch_first=True),
        num_layers=2,
        enable_nested_tensor=False,
    ).eval()
    x = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(1))
    for model, data in ((encoder, x), (_Cast(), x)):
        with torch.no_grad():
            before = model(data)
            report = quiet(model, [data], rank=16)
            assert report.layers
            assert relative(model(data), before) < 0.15


def test_a_weight_without_numbers_says_so() -> None:
    layer = SVDQuantLinear(64, 32, rank=16)
    assert (layer.weight.shape, layer.weight.dtype, layer.weight.device.type) == (
        (32, 64),
        torch.bfloat16,
        "cpu",
    )
    assert not layer.weight.requires_grad and "weight" not in layer.state_dict()
    with pytest.raises(InputError, match="no numbers to compute with .*: call the layer"):
        torch.nn.functional.linear(torch.randn(2, 64).bfloat16(), layer.weight)
