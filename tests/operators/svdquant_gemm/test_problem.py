from __future__ import annotations

import dataclasses

import pytest

from kernel_space.core.errors import InputError
from kernel_space.core.problem import MAX_EXTENT
from kernel_space.operators.svdquant_gemm.problem import GemmProblem


def test_parse_by_hand() -> None:
    problem = GemmProblem.parse("4352,3840,3072,128")
    assert problem == GemmProblem(m=4352, k=3840, n=3072, r=128, lora_dtype="fp16", out_dtype="fp16")
    assert problem.flops == 2 * 4352 * 3072 * (3840 + 128)
    assert problem.problem_class == GemmProblem.class_of(r=128, lora_dtype="fp16", out_dtype="fp16")


@pytest.mark.parametrize(
    "text", ["4352,3840,3072,128", "1,32,8,0", "17,3840,3072,64", f"{MAX_EXTENT},32,8,256"]
)
def test_prints_as_it_parses(text: str) -> None:
    assert str(GemmProblem.parse(text)) == text


def test_parse_passes_dtypes_and_allows_spaces() -> None:
    problem = GemmProblem.parse(" 1, 32 ,8,16", lora_dtype="bf16", out_dtype="fp16")
    assert problem == GemmProblem(m=1, k=32, n=8, r=16, lora_dtype="bf16", out_dtype="fp16")
    assert str(problem.problem_class) == "r=16 lora_dtype=bf16 out_dtype=fp16"


LEGAL = {"m": 1, "k": 32, "n": 8, "r": 16}


@pytest.mark.parametrize(
    "changes",
    [{"m": 1}, {"m": 7}, {"m": MAX_EXTENT}, {"n": 8}, {"n": MAX_EXTENT - 7}]
    + [{"k": 32}, {"k": 96}, {"k": MAX_EXTENT - 31}]
    + [{"r": r} for r in range(0, 257, 16)],
)  # fmt: skip
def test_every_legal_bound_is_accepted(changes: dict[str, int]) -> None:
    problem = GemmProblem(**(LEGAL | changes))
    assert all(getattr(problem, name) == size for name, size in changes.items())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"m": 0}, "M must be between 1 and 2147483647, got 0"),
        ({"m": -1}, "M must be between 1 and 2147483647, got -1"),
        ({"m": MAX_EXTENT + 1}, "M must be between 1 and 2147483647, got 2147483648"),
        ({"n": 0}, "N must be between 1"),
        ({"k": 0}, "K must be between 1"),
        ({"n": 3841}, "N must be a multiple of 8, got 3841; use 3840 or 3848"),
        ({"n": 4}, "N must be a multiple of 8, got 4; use 8$"),
        ({"k": 3856}, "K must be a multiple of 32, got 3856; use 3840 or 3872"),
        ({"k": 16}, "K must be a multiple of 32, got 16; use 32$"),
        ({"r": -16}, "R must be between 0 .no LoRA. and 512, got -16"),
        ({"r": 528}, "R must be between 0 .no LoRA. and 512, got 528"),
        ({"r": 8}, "R must be a multiple of 16, got 8; use 16$"),
        ({"r": 100}, "R must be a multiple of 16, got 100; use 96 or 112"),
    ],
)
def test_each_illegal_size_says_what_to_use(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        GemmProblem(**(LEGAL | changes))


@pytest.mark.parametrize("field", ["lora_dtype", "out_dtype"])
def test_dtypes(field: str) -> None:
    for dtype in ("fp16", "bf16"):
        assert getattr(GemmProblem(**LEGAL, **{field: dtype}), field) == dtype
    with pytest.raises(InputError, match=f"{field} must be one of fp16, bf16, got 'fp32'"):
        GemmProblem(**LEGAL, **{field: "fp32"})


@pytest.mark.parametrize(
    "text",
    [
        "foo",
        "",
        "1,2,3",
        "1,2,3,4,5",
        "1,32,8,-16",
        "1,32,8,1.5",
        "1,32,8,",
        "0x10,32,8,0",
        "1;32;8;0",
        "٣,32,8,0",
    ],
)
def test_a_shape_that_is_no_four_integers(text: str) -> None:
    with pytest.raises(InputError, match="a shape must be four integers M,K,N,R, got") as error:
        GemmProblem.parse(text)
    assert "\n" not in str(error.value)


def test_a_problem_is_frozen_and_hashable() -> None:
    problem = GemmProblem(**LEGAL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.m = 2  # type: ignore[misc]
    assert len({problem, GemmProblem(**LEGAL), GemmProblem(**(LEGAL | {"m": 2}))}) == 2
