"""``SVDQuantLinear``: a ``torch.nn.Linear`` with 4-bit weights and activations and a low-rank branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.packing import pack_svdquant_weights
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.runtime import pad_rank
from tuner.layers.autocast import autocast_dtype
from tuner.layers.decompose import Decomposition, decompose, smoothing
from tuner.layers.gemm import gemm
from tuner.layers.quantize import quantize_act
from tuner.layers.ranks import launched_rank
from tuner.runtime.load.trampoline import ALIGN

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_BRANCH = ("lora_down", "lora_up")


class SVDQuantLinear(torch.nn.Module):
    """``y = x @ W.T + bias`` with ``x[..., K]`` and ``W`` as ``from_linear`` decomposed it; inference only.

    Made empty here, to load a ``state_dict`` into; ``from_linear`` quantizes a layer. All tensors are buffers with
    fixed dtypes, which ``to``, ``half`` and the like leave alone: they move the layer to a device. On a card lora_down
    and lora_up may have more columns than ``rank``, all zeros, because a kernel for that rank is launched; a
    ``state_dict`` never has. ``y`` comes in
    the dtype of x, under ``torch.autocast`` in that of autocast as from ``torch.nn.Linear``; the kernel computes it in
    ``dtype``, that of the low-rank branch.

    Raises ``InputError`` for sizes the kernels do not take: K a multiple of 32, N of 8, rank of 16 up to 256.
    """

    wgt: torch.Tensor
    wscales: torch.Tensor
    lora_down: torch.Tensor
    lora_up: torch.Tensor
    smooth: torch.Tensor
    wcscale: torch.Tensor
    bias: torch.Tensor
    error: torch.Tensor
    _is_replica = False  # torch sets it on the copies that DataParallel makes for each call

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int = 128,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        _problem(in_features, out_features, rank, dtype)
        self.in_features, self.out_features, self.rank, self.dtype = in_features, out_features, rank, dtype

        def buffer(name: str, shape: tuple[int, ...], of: torch.dtype) -> None:
            self.register_buffer(name, torch.zeros(shape, dtype=of, device=device))

        buffer("wgt", (out_features, in_features // 2), torch.uint8)
        buffer("wscales", (blocked_scale_bytes(out_features, in_features),), torch.uint8)
        buffer("lora_down", (in_features, rank), dtype)
        buffer("lora_up", (out_features, rank), dtype)
        buffer("smooth", (in_features,), torch.float32)
        buffer("wcscale", (out_features,), torch.float32)
        buffer("bias", (out_features,), torch.float32)
        buffer("error", (), torch.float64)
        self.smooth.fill_(1.0)
        self._pad_branch()

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        rank: int = 128,
        calibration: torch.Tensor | None = None,
        *,
        smoothing_strength: float = 0.5,
        dtype: torch.dtype | None = None,
        svd: str = "auto",
    ) -> Self:
        """Quantize ``linear``; deterministic, on the device where it is.

        ``calibration``: activations ``[..., K]`` of this layer, from which the smoothing factors come; without them
        x is not smoothed, and its elements should then stay between 2^-4 and 2688 in size, where NVFP4 without a
        second level is at home. ``smoothing_strength``: SmoothQuant's alpha. ``dtype``: float16 or bfloat16; by
        default the layer's, or bfloat16 for a float32 layer. ``svd``: ``auto``, ``exact`` or ``randomized``, see
        ``decompose``.

        Raises ``InputError`` for sizes, dtypes and values that cannot be quantized.
        """
        weight = linear.weight.detach()
        if dtype is None:
            dtype = weight.dtype if weight.dtype in TORCH_DTYPES.values() else torch.bfloat16
        n, k = weight.shape
        layer = cls(k, n, rank=rank, dtype=dtype, device=weight.device)
        with torch.autocast(
            weight.device.type, enabled=False
        ):  # decomposing is float64's and fp32's business
            smooth, rows = None, None
            if calibration is not None:
                rows = _rows(calibration.detach(), k, "calibration").to(weight.device)
                smooth = smoothing(rows, weight, smoothing_strength)
            parts = decompose(weight, rank, dtype, smooth=smooth, activations=rows, svd=svd)
            layer._fill(parts, None if linear.bias is None else linear.bias.detach())
            exact = weight.double()
            layer.error.fill_(((parts.weight() - exact).norm() / exact.norm()).item() if exact.any() else 0.0)
        return layer

    def _fill(self, parts: Decomposition, bias: torch.Tensor | None) -> None:
        ones = torch.ones(self.out_features, device=parts.smooth.device)
        packed = pack_svdquant_weights(
            parts.wgt.codes,
            parts.wgt.scales,
            parts.lora_up,
            ones,
            bias,
            parts.alpha,
            lora_dtype=_NAMES[self.dtype],
        )
        for name in ("wgt", "wscales", "lora_up", "wcscale", "bias"):
            part = getattr(packed, name)
            getattr(self, name)[..., : part.shape[-1]].copy_(part)
        self.lora_down[:, : self.rank].copy_(parts.lora_down)
        self.smooth.copy_(parts.smooth)

    @property
    def relative_error(self) -> float:
        """Of the quantized weight against the layer's in float64: norm of the difference over norm. Activations not
        included.
        """
        return self.error.item()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., K]`` float16, bfloat16 or float32 -> ``[..., N]`` in the same dtype, under autocast in autocast's.

        Raises ``InputError``.
        """
        if self._is_replica:
            self._align()
        rows = _rows(x, self.in_features, "x")
        act, ascales, lora_act_in = quantize_act(rows, self.smooth, self.lora_down)
        y = gemm(act, ascales, self.wgt, self.wscales, lora_act_in, self.lora_up, self.wcscale, self.bias)
        return y.to(autocast_dtype(x) or x.dtype).view(*x.shape[:-1], self.out_features)

    def _align(self) -> None:
        """DataParallel sends buffers of a dtype in one piece: behind those of another module they may lie anywhere."""
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.data_ptr() % ALIGN:
                self._buffers[name] = buffer.clone()

    def extra_repr(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}, dtype={dtype}"

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """``to`` and its relatives: devices change, dtypes belong to the kernel's contract and do not."""

        def keep_dtype(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(keep_dtype, recurse)
        self._pad_branch()
        return self

    def _pad_branch(self) -> None:
        """lora_down and lora_up get zero columns up to the rank that is launched where they are: ``launched_rank``."""
        problem = _problem(self.in_features, self.out_features, self.rank, self.dtype)
        rank = launched_rank(self.wgt.device, problem)
        for name in _BRANCH:
            branch = self.get_buffer(name)
            kept = branch[:, : self.rank]
            if branch.shape[1] != rank:
                self._buffers[name] = kept.contiguous() if rank == self.rank else pad_rank(kept, rank)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """The branch as it is on every device: of ``rank`` columns."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key in (prefix + name for name in _BRANCH):
            if destination[key].shape[1] != self.rank:
                destination[key] = destination[key][:, : self.rank].contiguous()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in _BRANCH:
            given, rank = state_dict.get(prefix + name), self.get_buffer(name).shape[1]
            if isinstance(given, torch.Tensor) and given.ndim == 2 and given.shape[1] == self.rank != rank:
                state_dict[prefix + name] = pad_rank(given, rank)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._pad_branch()  # loading may assign tensors, of another device


def _rows(x: torch.Tensor, k: int, name: str) -> torch.Tensor:
    if x.ndim == 0 or x.shape[-1] != k:
        raise InputError(f"{name} must be [..., {k}], got {list(x.shape)}")
    return x.reshape(-1, k)


def _problem(k: int, n: int, rank: int, dtype: torch.dtype) -> GemmProblem:
    """Of one row. Raises ``InputError`` for sizes and dtypes that are not of the contract."""
    if dtype not in _NAMES:
        raise InputError(f"dtype must be float16 or bfloat16, got {str(dtype).removeprefix('torch.')}")
    return GemmProblem(m=1, k=k, n=n, r=rank, lora_dtype=_NAMES[dtype], out_dtype=_NAMES[dtype])
