"""Linears in a tree of modules: which there are, and another module in the place of one."""

from __future__ import annotations

import torch

from kernel_space.core.errors import InputError

LEAST_SIDE = 32  # of a matrix that is worth naming where it stays
_OTHERS = (torch.nn.Linear, torch.nn.Embedding, torch.nn.EmbeddingBag, torch.nn.modules.conv._ConvNd)


def bare(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside what ``torch.compile`` made of it, whose names begin otherwise."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, torch.nn.Module) else model


def is_conv1d(module: torch.nn.Module | None) -> bool:
    """transformers' ``Conv1D``, of which GPT-2 is made: ``y = x @ weight + bias`` with ``weight [K, N]``."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    return (
        type(module).__name__ == "Conv1D"
        and hasattr(module, "nf")
        and isinstance(weight, torch.Tensor)
        and isinstance(bias, torch.Tensor)
        and weight.ndim == 2
        and weight.shape[1:] == bias.shape
    )


def as_linear(module: torch.nn.Module) -> torch.nn.Linear:
    """``module`` itself, or for a ``Conv1D`` a linear with the same memory."""
    if isinstance(module, torch.nn.Linear):
        return module
    weight, bias = (module.get_parameter(name).detach() for name in ("weight", "bias"))
    linear = torch.nn.Linear(weight.shape[0], weight.shape[1], device="meta")
    linear.weight = torch.nn.Parameter(weight.T, requires_grad=False)
    linear.bias = torch.nn.Parameter(bias, requires_grad=False)
    return linear


def matrices(model: torch.nn.Module) -> dict[str, str]:
    """Weights that are multiplied with, though not by a linear: such as experts in one tensor. Name -> what it is."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, _OTHERS) or is_conv1d(module):
            continue
        for own, one in module.named_parameters(recurse=False):
            several = one.ndim == 3 and one.shape[0] > 1
            if (one.ndim == 2 or several) and min(one.shape[-2:]) >= LEAST_SIDE:
                place = f"{name}.{own}" if name else own
                found[place] = (
                    f"it is a parameter {list(one.shape)} of {type(module).__name__}, not torch.nn.Linear"
                )
    return found


def linears(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """``torch.nn.Linear`` and ``Conv1D`` by name, every place of one that has several.

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
        if (type(module) is torch.nn.Linear or is_conv1d(module))
        and not any(name.startswith(one) for one in inside)
    }


def put(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    """``module`` in the place of ``name``; it takes over whether it is training. Raises ``InputError`` for the root."""
    if not name:
        raise InputError("the model is itself a linear: use SVDQuantLinear.from_linear")
    parent, _, own = name.rpartition(".")
    owner = model.get_submodule(parent)
    module.train(owner.training)
    owner._modules[own] = module
