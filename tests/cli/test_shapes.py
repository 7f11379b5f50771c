"""Problems from files and by the name of a model, and the order in which a model gains most."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tests.runtime.test_choice import row
from tuner.cli.main import parser_of
from tuner.cli.options.common import counted_problems, problems_of
from tuner.cli.options.shapes import MODELS, read_model
from tuner.cli.tune import tune as command
from tuner.devices.classes import DEVICE_CLASSES
from tuner.files.plain_yaml import load_yaml
from tuner.tables.dispatch import DispatchTable, render_table
from tuner.tables.gain import SLOWER, UNTUNED, bound_us, gain_of

H200 = DEVICE_CLASSES["h200"]


def parsed(*options: str) -> argparse.Namespace:
    return parser_of("tune").parse_args(list(options))


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "shapes.yaml").write_text(text)
    return str(tmp_path / "shapes.yaml")


def test_entries_of_several_operators_with_calls(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "problems:\n- {op: svdquant_linear, shape: '4096,3072,3072,32', dtype: bf16, calls: 7, fallback: any}\n"
        "- {shape: '17,3840,3072,64', calls: 3}\n- 1,3840,3072,128\n"
        "- {op: svdquant_linear, shape: '4096,3072,3072,32', dtype: bf16, calls: 2}\n",
    )
    linear = LinearProblem(m=4096, k=3072, n=3072, r=32, dtype="bf16")
    wanted = {linear: 9, GemmProblem.parse("17,3840,3072,64"): 3, GemmProblem.parse("1,3840,3072,128"): None}
    assert counted_problems(parsed("--shapes", path)) == wanted
    assert problems_of(parsed("--shapes", path)) == list(wanted)


def test_dtypes_that_the_user_names_hold_where_an_entry_says_nothing(tmp_path: Path) -> None:
    path = written(
        tmp_path, "- {op: svdquant_linear, shape: '8,64,64,16'}\n- {shape: '8,64,64,16', out_dtype: fp16}\n"
    )
    first, second = problems_of(parsed("--shapes", path, "--dtype", "bf16"))
    assert first.dtype == "bf16" and (second.lora_dtype, second.out_dtype) == ("bf16", "fp16")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- {shape: '8,64,64,16', calls: 0}", "entry 1: calls must be a whole number of at least 1, got 0"),
        ("- {shape: '8,64,64,16', calls: many}", "calls must be a whole number of at least 1, got 'many'"),
        ("- {shape: '8,64,64,16', calls: 1.5}", "calls must be a whole number"),
        ("- {shape: '8,64,64,16', call: 1}", "svdquant_gemm has no option call"),
        ("- {op: nothing, shape: '8,64,64,16'}", "entry 1: .*nothing"),
        ("- '-8,64,64,16'", "entry 1: M must be between 1 and .*, got -8"),
        (f"- {{shape: '{'9' * 3000},64,64,16'}}", "entry 1: M must be between 1 and .*, got 3000 characters"),
        ("- {op: svdquant_linear}", "a shape must be four integers M,K,N,R, got ''"),
        ("problems: []", "must hold a list of M,K,N,R"),
    ],
)
def test_entries_that_are_wrong(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as caught:
        problems_of(parsed("--shapes", written(tmp_path, text)))
    assert "\n" not in str(caught.value)


def test_flux_by_its_name() -> None:
    """Counts by hand: 19 double blocks with 6 linears a stream, 38 single ones with 5, an AdaNorm linear each."""
    found = counted_problems(parsed("--model", "flux.1-dev", "--tokens", "2560", "--rank", "128"))
    assert {(one.m, one.r) for one in found} == {(2560, 128), (2048, 128), (512, 128), (1, 128)}
    blocks = sum(calls for one, calls in found.items() if one.m > 1)
    assert blocks == 19 * 2 * 6 + 38 * 5 == 418
    assert sum(calls for one, calls in found.items() if one.m == 1) == 19 * 2 + 38
    weights = sum(one.k * one.n * calls for one, calls in found.items())
    assert weights == pytest.approx(11.8e9, rel=0.01)  # of 12 billion parameters
    assert {one.operator for one in found} == {"svdquant_linear"} and {one.dtype for one in found} == {"bf16"}


@pytest.mark.parametrize("name", load_yaml(MODELS)["models"])
def test_models_are_whole(name: str) -> None:
    entries = list(read_model(name, {}, lambda kind: {}))
    assert entries and all(entry.calls for entry in entries)
    assert len({entry.problem for entry in entries}) == len(entries)


def test_what_the_user_replaces() -> None:
    (layer, *_) = problems_of(parsed("--model", "qwen-image", "--tokens", "6889", "--dtype", "fp16"))
    assert (layer.m, layer.dtype) == (6889, "fp16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "sd"), "--model must be one of flux.1-dev, qwen-image, .*got 'sd'"),
        (("--tokens", "4096"), "--tokens is about the layers of --model"),
        (("--model", "flux.1-dev", "--tokens", "many"), "--tokens must be a whole number, got 'many'"),
        (("--model", "flux.1-dev", "--tokens", "9" * 5000), "--tokens must be a whole number, got '9999"),
        (("--model", "flux.1-dev", "--tokens", "9" * 30), "M must be between 1 and"),
        (("--model", "flux.1-dev", "--tokens", "512"), "--tokens must be more than text, got 512 and 512"),
        (("--model", "flux.1-dev", "--rank", "24"), "R must be a multiple of 16"),
    ],
)
def test_models_that_are_not_there(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        problems_of(parsed(*options))


def table(*shapes: tuple[str, float]) -> DispatchTable:
    return DispatchTable([row(shape, us=us) for shape, us in shapes], H200.arch)


def test_gain_by_hand() -> None:
    near, far = GemmProblem.parse("2048,3840,3072,128"), GemmProblem.parse("8192,3840,3072,128")
    known = table(("1024,3840,3072,128", 100.0))
    assert gain_of(GemmProblem.parse("1024,3840,3072,128"), known, H200).us == 0.0
    for problem, doublings in ((near, 1), (far, 3)):
        found = gain_of(problem, known, H200)
        bound = bound_us(problem, H200) / bound_us(GemmProblem.parse("1024,3840,3072,128"), H200)
        assert found.estimate_us == pytest.approx(100 * bound)
        assert found.fallback_us == pytest.approx(100 * bound * 2 ** (doublings / 3))
    assert math.isclose(SLOWER, 1 / 3)
    assert gain_of(near, table(), H200).us == pytest.approx((UNTUNED - 1) * bound_us(near, H200))


def test_bound_by_hand() -> None:
    """M = 1: the weight's half a byte an element and a scale per 16; M = 8192: operations at half precision."""
    small, large = GemmProblem.parse("1,16384,16384,0"), GemmProblem.parse("8192,16384,16384,0")
    nbytes = 16384 * 16384 * (1 / 2 + 1 / 16)
    assert bound_us(small, H200) == pytest.approx(1e6 * nbytes / H200.dram_bytes_s, rel=0.01)
    assert bound_us(large, H200) == pytest.approx(2e6 * 8192 * 16384**2 / H200.half_flops_s, rel=0.01)


def test_order_is_by_calls_times_gain(tmp_path: Path) -> None:
    rows = [row("1024,3840,3072,128", us=100.0)]
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "dispatch.json").write_text(render_table(rows))
    own, rare, often, uncounted = (GemmProblem.parse(f"{m},3840,3072,128") for m in (1024, 4096, 2048, 512))
    counted: dict[Any, int | None] = {uncounted: None, own: 1000, rare: 1, often: 50}
    device: Any = SimpleNamespace(name="h200")
    lines: list[str] = []
    assert command._most_gain_first(counted, device, tmp_path, lines.append) == [often, rare, own, uncounted]
    said = "\n".join(lines)
    assert command._most_gain_first({**counted, rare: 5000}, device, tmp_path, lines.append)[0] == rare
    assert "50 calls" in said and "modelled by the row of 1024,3840,3072,128" in said
    plain: dict[Any, int | None] = dict.fromkeys(counted)
    assert command._most_gain_first(plain, device, tmp_path, lines.append) == list(counted)
