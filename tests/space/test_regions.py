"""Regions against plain sets of points."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from tuner.space.regions import ALL, EMPTY, Regions

CHOICES = {
    "tile": [(64, 8), (128, 8), (256, 16)],
    "stages": ["auto", 2],
    "split": [1, 2, 3, 4],
    "pdl": [False, True],
}
NAMES = list(CHOICES)
POINTS = list(itertools.product(*CHOICES.values()))
Points = set[tuple[object, ...]]


@pytest.fixture(params=["as given", "reversed"])
def regions(request: pytest.FixtureRequest) -> Regions:
    return Regions(CHOICES, NAMES if request.param == "as given" else NAMES[::-1])


def random_boxes(generator: random.Random) -> list[dict[str, list[object]]]:
    """Up to six boxes that may overlap, each of up to four knobs with some of their values."""
    return [
        {
            name: generator.sample(CHOICES[name], generator.randint(1, len(CHOICES[name])))
            for name in generator.sample(NAMES, generator.randint(1, 4))
        }
        for _ in range(generator.randint(0, 6))
    ]


def in_boxes(boxes: list[dict[str, list[object]]]) -> Points:
    return {
        point
        for point in POINTS
        if any(all(dict(zip(NAMES, point, strict=True))[name] in box[name] for name in box) for box in boxes)
    }


def as_set(regions: Regions, region: int) -> Points:
    """Point by point, through ``branches``."""
    if region == EMPTY:
        return set()
    found: list[tuple[tuple[object, ...], int]] = [((), region)]
    for name in NAMES:
        found = [
            ((*point, value), rest)
            for point, region in found
            for value, rest in regions.branches(region, name).items()
        ]
    return {point for point, _ in found}


@pytest.mark.parametrize("seed", range(20))
def test_operations_are_those_of_sets(regions: Regions, seed: int) -> None:
    generator = random.Random(seed)
    one, other = random_boxes(generator), random_boxes(generator)
    here, there = regions.boxes(one), regions.boxes(other)
    inside, beside = in_boxes(one), in_boxes(other)
    assert as_set(regions, here) == inside and regions.points(here) == len(inside)
    assert as_set(regions, regions.both(here, there)) == inside & beside
    assert as_set(regions, regions.either(here, there)) == inside | beside
    assert as_set(regions, regions.only(here, "split", [1, 3])) == {
        point for point in inside if point[2] in (1, 3)
    }
    forgotten = {(*point[:2], split, point[3]) for point in inside for split in CHOICES["split"]}
    assert as_set(regions, regions.any_of(here, "split")) == forgotten


@pytest.mark.parametrize("seed", range(5))
def test_points_with_known_knobs(regions: Regions, seed: int) -> None:
    boxes = random_boxes(random.Random(seed))
    region = regions.boxes(boxes)
    for value, rest in regions.branches(region, "split").items():
        for tile, last in regions.branches(rest, "tile").items():
            expected = sum(point[0] == tile and point[2] == value for point in in_boxes(boxes))
            assert regions.points(last, ["split", "tile"]) == expected


def test_equal_sets_are_one_region(regions: Regions) -> None:
    """The same points from other boxes, and all points from a cover of two halves."""
    assert regions.boxes([{"split": [1]}, {"split": [2], "pdl": [True]}]) == regions.boxes(
        [{"split": [2, 1], "pdl": [True]}, {"pdl": [False], "split": [1]}]
    )
    assert regions.boxes([{"split": [1, 2]}, {"split": [3, 4]}]) == ALL and regions.points(ALL) == 48
    assert regions.boxes([]) == EMPTY and regions.points(EMPTY) == 0


def test_random_points_are_drawn_evenly(regions: Regions) -> None:
    """8 points, 2000 draws: 250 each with a deviation of 15; 5 deviations."""
    region, generator = regions.boxes([{"tile": [(64, 8)], "split": [1, 4]}]), random.Random(0)
    drawn = Counter(
        tuple(regions.random_point(region, generator)[name] for name in NAMES) for _ in range(2000)
    )
    assert set(drawn) == as_set(regions, region) and len(drawn) == 8
    assert all(175 < times < 325 for times in drawn.values())
