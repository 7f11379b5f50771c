from __future__ import annotations

import dataclasses
import random
import re
from typing import Any

import pytest

from kernel_space.core.config import KernelConfig, flag, number, print_knob, sizes, stages, word
from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

DEFAULT_TEXT = (
    "mma_tiler_mn=256x128 mma_tiler_k=256 cluster_shape_mn=2x1 num_ab_stage=auto num_lora_stage=auto "
    "num_acc_stage=auto num_c_stage=auto lora_tile_k=64 lora_schedule=interleave lora_buffer=dedicated raster_order=m "
    "swizzle_size=1 epi_tile_n=32 split_k=1 swap_ab=false prefetch_dist=0 use_pdl=false"
)
# knob -> (printed form, value) for every form a knob takes
FORMS: dict[str, list[tuple[str, Any]]] = {
    "mma_tiler_mn": [("128x64", (128, 64)), ("256x256", (256, 256))],
    "mma_tiler_k": [("128", 128)],
    "cluster_shape_mn": [("1x1", (1, 1)), ("4x2", (4, 2))],
    "num_ab_stage": [("auto", "auto"), ("7", 7)],
    "num_lora_stage": [("auto", "auto"), ("0", 0)],
    "num_acc_stage": [("auto", "auto"), ("2", 2)],
    "num_c_stage": [("auto", "auto"), ("4", 4)],
    "lora_tile_k": [("all", "all"), ("64", 64)],
    "lora_schedule": [("interleave", "interleave"), ("tail", "tail")],
    "lora_buffer": [("dedicated", "dedicated"), ("ab_stage", "ab_stage")],
    "raster_order": [("m", "m"), ("n", "n")],
    "swizzle_size": [("8", 8)],
    "epi_tile_n": [("64", 64)],
    "split_k": [("4", 4)],
    "swap_ab": [("true", True), ("false", False)],
    "prefetch_dist": [("3", 3)],
    "use_pdl": [("true", True), ("false", False)],
}


def test_the_default_prints_every_knob_in_order() -> None:
    assert str(KernelConfigSm100a()) == f"kernel=sm100a {DEFAULT_TEXT}"
    assert KernelConfigSm100a.parse(DEFAULT_TEXT) == KernelConfigSm100a.parse("") == KernelConfigSm100a()


def test_the_table_of_forms_covers_every_knob() -> None:
    assert tuple(FORMS) == KernelConfigSm100a.knob_names()


@pytest.mark.parametrize(
    "name, text, value", [(name, *form) for name, forms in FORMS.items() for form in forms]
)
def test_each_knob_prints_as_it_parses(name: str, text: str, value: Any) -> None:
    assert KernelConfigSm100a.parse_knob(name, text) == KernelConfigSm100a.parse_knob(name, value) == value
    assert print_knob(value) == text
    config = KernelConfigSm100a.parse(f"{name}={text}")
    assert getattr(config, name) == value
    assert config.fields()[name] == text
    assert config == KernelConfigSm100a(**{name: value}) == KernelConfigSm100a().replace(**{name: value})


def test_random_configs_survive_a_round_trip() -> None:
    rng = random.Random(0)
    for _ in range(200):
        config = KernelConfigSm100a(**{name: rng.choice(forms)[1] for name, forms in FORMS.items()})
        items = str(config).split()
        rng.shuffle(items)  # the order of the words carries no meaning
        assert KernelConfigSm100a.parse(" ".join(items)) == config
        assert KernelConfigSm100a.from_fields(config.fields()) == config
        assert KernelConfigSm100a.from_fields(dataclasses.asdict(config)) == config


def test_a_list_from_yaml_or_json_is_a_pair() -> None:
    assert KernelConfigSm100a.parse_knob("mma_tiler_mn", [256, 128]) == (256, 128)


@pytest.mark.parametrize(
    "config, cta_group, cta_tile, cluster_size",
    [
        (KernelConfigSm100a(mma_tiler_mn=(256, 128), cluster_shape_mn=(4, 2)), 2, (128, 128, 256), 8),
        (
            KernelConfigSm100a(mma_tiler_mn=(128, 192), mma_tiler_k=128, cluster_shape_mn=(1, 1)),
            1,
            (128, 192, 128),
            1,
        ),
    ],
)
def test_derived_shapes(
    config: KernelConfigSm100a, cta_group: int, cta_tile: tuple[int, int, int], cluster_size: int
) -> None:
    assert (config.cta_group, config.cta_tile_mnk, config.cluster_size) == (cta_group, cta_tile, cluster_size)


@pytest.mark.parametrize(
    "text, message",
    [
        ("num_ab_stages=4", "unknown knob 'num_ab_stages'; the knobs are mma_tiler_mn"),
        ("num_ab_stage=4 num_ab_stage=5", "knob 'num_ab_stage' is given twice"),
        ("num_ab_stage", "a config is written knob=value knob=value ..., got 'num_ab_stage'"),
        ("num_ab_stage=", "a config is written knob=value knob=value ..., got 'num_ab_stage='"),
        ("mma_tiler_mn=256", "mma_tiler_mn must be MxN such as 256x128, got '256'"),
        ("mma_tiler_mn=256x128x64", "mma_tiler_mn must be MxN such as 256x128, got '256x128x64'"),
        ("cluster_shape_mn=2x", "cluster_shape_mn must be MxN such as 2x1, got '2x'"),
        ("swap_ab=1", "swap_ab must be true or false, got '1'"),
        ("use_pdl=True", "use_pdl must be true or false, got 'True'"),
        ("lora_schedule=head", "lora_schedule must be one of interleave, tail, got 'head'"),
        ("lora_buffer=own", "lora_buffer must be one of dedicated, ab_stage, got 'own'"),
        ("raster_order=k", "raster_order must be one of m, n, got 'k'"),
        ("num_ab_stage=many", "num_ab_stage must be a whole number or auto, got 'many'"),
        ("num_ab_stage=-1", "num_ab_stage must be a whole number or auto, got '-1'"),
        ("num_ab_stage=all", "num_ab_stage must be a whole number or auto, got 'all'"),
        ("lora_tile_k=auto", "lora_tile_k must be a whole number or all, got 'auto'"),
        ("mma_tiler_k=auto", "mma_tiler_k must be a whole number, got 'auto'"),
        ("split_k=1.5", "split_k must be a whole number, got '1.5'"),
    ],
)
def test_each_input_error_is_one_line_with_the_value(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        KernelConfigSm100a.parse(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["num_ab_stage=²", "mma_tiler_mn=256x¹"])
def test_digits_that_int_does_not_take_are_input_errors(text: str) -> None:
    """``"²".isdigit()`` is true."""
    with pytest.raises(InputError):
        KernelConfigSm100a.parse(text)


def test_a_config_is_frozen_and_hashable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        KernelConfigSm100a().split_k = 2  # type: ignore[misc]
    assert len({KernelConfigSm100a(), KernelConfigSm100a(), KernelConfigSm100a(split_k=2)}) == 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class TwoKnobs(KernelConfig, kernel="two"):
    """A kernel's config is its fields and nothing else."""

    tile: tuple[int, int, int] = sizes(64, 32, 16, form="AxBxC such as 64x32x16")
    course: str = word("ring", "direct", "late")
    depth: int | str = number(2, "most")
    slots: int | str = stages()
    quick: bool = flag(True)


def test_a_knob_is_one_line_of_the_config() -> None:
    assert str(TwoKnobs()) == "kernel=two tile=64x32x16 course=ring depth=2 slots=auto quick=true"
    config = TwoKnobs.parse("course=late tile=1x2x3 depth=most slots=4 quick=false")
    assert config == TwoKnobs(tile=(1, 2, 3), course="late", depth="most", slots=4, quick=False)
    assert TwoKnobs.parse(str(config)) == config
    assert TwoKnobs.stage_names() == ("slots",)
    messages = {
        "course=up": "course must be one of ring, direct, late, got 'up'",
        "tile=1x2": "tile must be AxBxC such as 64x32x16, got '1x2'",
        "depth=auto": "depth must be a whole number or most, got 'auto'",
        "use_pdl=true": "unknown knob 'use_pdl'; the knobs are tile course depth slots quick",
    }
    for text, message in messages.items():
        with pytest.raises(InputError, match=re.escape(message)):
            TwoKnobs.parse(text)
