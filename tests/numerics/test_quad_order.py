"""Order of activations for packed weights: against the place of each element by its formula."""

import torch

from kernel_space.numerics.quad_order import from_quad_order, ordered_columns, to_quad_order


def test_every_element_lies_where_the_formula_says() -> None:
    x = torch.arange(3 * 96, dtype=torch.float32).view(3, 96)
    ordered = to_quad_order(x)
    assert ordered.shape == (3, ordered_columns(96)) == (3, 128)
    for k in range(128):
        span, rest = divmod(k, 64)
        t, w, e, i = rest // 16, rest // 8 % 2, rest // 4 % 2, rest % 4
        assert rest == 16 * t + 8 * w + i + 4 * e
        place = 64 * span + 8 * (4 * w + 2 * (i % 2) + i // 2) + 2 * t + e
        expected = x[:, k] if k < 96 else torch.zeros(3)
        assert torch.equal(ordered[:, place], expected)


def test_it_goes_back() -> None:
    x = torch.randn(5, 160, generator=torch.Generator().manual_seed(0))
    assert torch.equal(from_quad_order(to_quad_order(x), 160), x)
