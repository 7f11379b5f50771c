"""Linears in a tree of modules: which there are, and another module in the place of one."""

from __future__ import annotations

import torch

from kernel_space.core.errors import InputError


def linears(model: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    """``torch.nn.Linear`` by name, every place of one that has several.

    No subclass: who makes one uses more than its ``forward``. Nor what is in ``torch.nn.MultiheadAttention``, which
    reads the weight itself.
    """
    inside = [
        f"{name}." if name else ""
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, torch.nn.MultiheadAttention)
    ]
    return {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module) is torch.nn.Linear and not any(name.startswith(one) for one in inside)
    }


def put(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    """``module`` in the place of ``name``; it takes over whether it is training. Raises ``InputError`` for the root."""
    if not name:
        raise InputError("the model is itself a linear: use SVDQuantLinear.from_linear")
    parent, _, own = name.rpartition(".")
    owner = model.get_submodule(parent)
    module.train(owner.training)
    owner._modules[own] = module
