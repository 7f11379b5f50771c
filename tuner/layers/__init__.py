"""Layers, and the functions of torch that they are made of: each knows one operator, which ``tuner.runtime`` does not.

``EXPORTS`` are names of ``tuner.runtime`` too. ``OPERATORS`` are modules that register operators of torch; they are
imported with ``tuner.runtime``.
"""

EXPORTS = {
    "PackedSVDQuant": "kernel_space.operators.svdquant_gemm.packing",
    "SVDQuantLinear": "tuner.layers.linear",
    "SVDQuantMLP": "tuner.layers.mlp",
    "attach_svdquant": "tuner.layers.models.attach",
    "interleave_gates": "tuner.layers.mlp",
    "load_svdquant": "tuner.layers.checkpoints.load",
    "pack_svdquant_weights": "kernel_space.operators.svdquant_gemm.packing",
    "quantize_act": "tuner.layers.quantize",
    "quantize_model": "tuner.layers.models.quantize",
    "reserve_adapters": "tuner.layers.models.adapters",
    "save_svdquant": "tuner.layers.checkpoints.own",
    "set_adapters": "tuner.layers.models.adapters",
    "shard": "tuner.layers.models.shard",
    "svdquant_autotune": "tuner.layers.autotune",
    "svdquant_gemm": "tuner.layers.gemm",
}
OPERATORS = ("tuner.layers.gemm", "tuner.layers.quantize")

import tuner.runtime  # noqa: E402, F401 - first, whichever module here is asked for: it imports those above in order
