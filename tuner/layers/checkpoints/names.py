"""Names of layers and of their tensors, as different producers spell them.

Layers of a mapping that was loaded are named as nunchaku v2 and diffusers name modules; earlier spellings of the same
are translated here.
"""

from __future__ import annotations

import re

# Tensors of a layer: the earlier spelling of DeepCompressor and nunchaku.
_TENSORS = {
    "smooth": "smooth_factor",
    "smooth_orig": "smooth_factor_orig",
    "lora_down": "proj_down",
    "lora_up": "proj_up",
}
_SINGLE = re.compile(r"(?:^|\.)single_transformer_blocks\.\d+\.")
_DOUBLE = re.compile(r"(?:^|\.)transformer_blocks\.\d+\.")
# What follows a block of FLUX, in the earlier spelling.
_LAYERS_OF_SINGLE = {
    "qkv_proj": "attn.to_qkv",
    "out_proj": "attn.to_out",
    "norm_q": "attn.norm_q",
    "norm_k": "attn.norm_k",
}
_LAYERS_OF_DOUBLE = {
    "qkv_proj": "attn.to_qkv",
    "qkv_proj_context": "attn.add_qkv_proj",
    "out_proj": "attn.to_out.0",
    "out_proj_context": "attn.to_add_out",
    "mlp_fc1": "ff.net.0.proj",
    "mlp_fc2": "ff.net.2",
    "mlp_context_fc1": "ff_context.net.0.proj",
    "mlp_context_fc2": "ff_context.net.2",
    "norm_q": "attn.norm_q",
    "norm_k": "attn.norm_k",
    "norm_added_q": "attn.norm_added_q",
    "norm_added_k": "attn.norm_added_k",
}
# Linears whose rows nunchaku interleaves, so that one row's shift, scale and gate stand together.
_ADANORM = (
    (re.compile(r"(?:^|\.)single_transformer_blocks\.\d+\.norm\.linear$"), 3),
    (re.compile(r"(?:^|\.)transformer_blocks\.\d+\.norm1(?:_context)?\.linear$"), 6),
    (re.compile(r"(?:^|\.)transformer_blocks\.\d+\.(?:img|txt)_mod\.1$"), 6),
)
_FUSED = re.compile(r"(?:^|\.)(?:qkv_proj|qkv_proj_context|attn\.to_qkv|attn\.add_qkv_proj)$")


def split_name(tensor: str) -> tuple[str, str]:
    """(layer, tensor of it) of a tensor's full name, the earlier spellings translated."""
    layer, _, own = tensor.rpartition(".")
    return _translated(layer), own


def new_spelling(own: str) -> str:
    """``smooth_factor`` of ``smooth``, and so on; others as they are."""
    return _TENSORS.get(own, own)


def _translated(layer: str) -> str:
    for pattern, known in ((_SINGLE, _LAYERS_OF_SINGLE), (_DOUBLE, _LAYERS_OF_DOUBLE)):
        if found := pattern.search(layer):
            rest = layer[found.end() :]
            return layer[: found.end()] + known.get(rest, rest)
    return layer


def adanorm_parts(layer: str) -> int:
    """How many chunks the output of an AdaNorm linear has: 3 or 6; 0 for any other layer."""
    return next((parts for pattern, parts in _ADANORM if pattern.search(layer)), 0)


def is_fused_qkv(layer: str) -> bool:
    """Whether only nunchaku's own models have a layer of that name, rather than the models of diffusers."""
    return _FUSED.search(layer) is not None
