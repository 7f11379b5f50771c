"""Small random configurations of models that users run, from the classes of their libraries; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def flux() -> tuple[torch.nn.Module, dict[str, Any]]:
    """(diffusers' FluxTransformer2DModel, keyword arguments of a call)."""
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=32,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=64,
        pooled_projection_dim=64,
        guidance_embeds=True,
        axes_dims_rope=(8, 12, 12),
    )
    rng = torch.Generator().manual_seed(1)
    call = {
        "hidden_states": torch.randn(1, 24, 32, generator=rng),
        "encoder_hidden_states": torch.randn(1, 8, 64, generator=rng),
        "pooled_projections": torch.randn(1, 64, generator=rng),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([3.5]),
        "img_ids": torch.zeros(24, 3),
        "txt_ids": torch.zeros(8, 3),
        "return_dict": False,
    }
    return model.eval(), call


def qwen_image() -> tuple[torch.nn.Module, dict[str, Any]]:
    from diffusers import QwenImageTransformer2DModel

    torch.manual_seed(0)
    model = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=32,
        out_channels=8,
        num_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=64,
        axes_dims_rope=(8, 12, 12),
    )
    rng = torch.Generator().manual_seed(1)
    call = {
        "hidden_states": torch.randn(1, 16, 32, generator=rng),
        "encoder_hidden_states": torch.randn(1, 8, 64, generator=rng),
        "encoder_hidden_states_mask": torch.ones(1, 8, dtype=torch.bool),
        "timestep": torch.tensor([0.5]),
        "img_shapes": [[(1, 4, 4)]],
        "return_dict": False,
    }
    return model.eval(), call


def llama() -> tuple[torch.nn.Module, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        max_position_embeddings=64,
    )
    rng = torch.Generator().manual_seed(1)
    call = {"input_ids": torch.randint(0, 96, (2, 12), generator=rng), "return_dict": False}
    return LlamaForCausalLM(config).eval(), call


MODELS: dict[str, Callable[[], tuple[torch.nn.Module, dict[str, Any]]]] = {
    "flux": flux,
    "qwen-image": qwen_image,
    "llama": llama,
}


def output(model: torch.nn.Module, call: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return model(**call)[0]
