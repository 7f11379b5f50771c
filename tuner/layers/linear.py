"""``SVDQuantLinear``: a ``torch.nn.Linear`` with 4-bit weights and activations and a low-rank branch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.numerics.tensors import require_tensor
from kernel_space.operators.nvfp4_quantize.packing import pack_lora_down, packed_shape, unpack_lora_down
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant, pack_svdquant_weights
from kernel_space.operators.svdquant_gemm.runtime import pad_rank
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.runtime import pad_packed
from tuner.layers.activations import (
    AUTO,
    FP8_LEAST_SHARE,
    Decision,
    decide,
    left_out,
    require_activations,
)
from tuner.layers.adapters import Adapters, Given, Prepared
from tuner.layers.autocast import autocast_dtype
from tuner.layers.decompose import Decomposition, decompose, require_smooth, smoothing
from tuner.layers.linear_op import learn_shape, made_before, made_first
from tuner.layers.quantize import X_DTYPES
from tuner.layers.ranks import launched_rank
from tuner.layers.weight import WEIGHT_NAMES, Peaks, QuantizedWeight, residual_share
from tuner.runtime.load.trampoline import ALIGN

_compiling = torch.compiler.is_dynamo_compiling  # which torch.compile knows to be true where it traces
_autocasting = torch.is_autocast_enabled
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_PACKED = "lora_down_packed"  # as the kernel reads it; a state_dict has the plain lora_down


class SVDQuantLinear(torch.nn.Module):
    """``y = x @ W.T + bias`` with ``x[..., K]`` and ``W`` as ``from_linear`` decomposed it; inference only.

    Made empty here, to load a ``state_dict`` into; ``from_linear`` quantizes a layer. All tensors are buffers with
    fixed dtypes, which ``to``, ``half`` and the like leave alone: they move the layer to a device. On a card the
    branch may have more columns than ``rank``, all zeros, because a kernel for that rank is launched; a ``state_dict``
    never has. The kernel computes in ``dtype``, that of the branch: x is rounded to it first, and ``y`` comes in the
    dtype of x, under ``torch.autocast`` in that of autocast as from ``torch.nn.Linear``.

    ``activations``: ``16bit`` leaves x as it is, which is closest to the original layer; ``fp8`` quantizes its rows and
    the merged weights to FP8; ``nvfp4`` quantizes x to 4 bits. ``auto`` takes what is fastest on the card where the
    layer is and at least as accurate as ``nvfp4`` (``chosen`` tells). An attribute too: it may change.

    ``wpeak`` is no weight: it follows from the other buffers and is in no ``state_dict``. The layer computes it when it
    is loaded, moved or gets adapters, and before an eager call that reads it if a buffer was replaced or written to.
    Who writes to buffers of a compiled model or of a CUDA graph calls ``refresh_peaks`` after it.

    ``fp8`` is as accurate where much of the weight is in 4 bits (``residual_share``). That is looked at once, when the
    layer is filled or loaded, and holds for copies; adapters do not count. It is forgotten when a buffer is assigned to
    and not known of an empty layer: then the next eager call that is not captured looks, and until then, in graphs and
    compiled models too, ``auto`` leaves ``fp8`` out. Who writes into buffers calls ``refresh_peaks``, which looks anew.

    Raises ``InputError`` for sizes the kernels do not take: K a multiple of 32, N of 8, rank of 16 from 0 up to 512.
    """

    wgt: torch.Tensor
    wscales: torch.Tensor
    lora_down_packed: torch.Tensor
    lora_up: torch.Tensor
    smooth: torch.Tensor
    wcscale: torch.Tensor
    bias: torch.Tensor
    error: torch.Tensor
    wpeak: torch.Tensor
    _peaks: Peaks
    _is_replica = False  # torch sets it on the copies that DataParallel makes for each call

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int = 128,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str | None = None,
        activations: str = AUTO,
    ) -> None:
        super().__init__()
        self.activations = require_activations(activations)
        self._know_share(None)
        _problem(in_features, out_features, rank, dtype)
        self.in_features, self.out_features, self.rank, self.dtype = in_features, out_features, rank, dtype
        self.adapters = Adapters(rank, rank)

        def buffer(name: str, shape: tuple[int, ...], of: torch.dtype) -> None:
            self.register_buffer(name, torch.zeros(shape, dtype=of, device=device))

        buffer("wgt", (out_features, in_features // 2), torch.uint8)
        buffer("wscales", (blocked_scale_bytes(out_features, in_features),), torch.uint8)
        buffer(_PACKED, packed_shape(in_features, rank), dtype)
        buffer("lora_up", (out_features, rank), dtype)
        buffer("smooth", (in_features,), torch.float32)
        buffer("wcscale", (out_features,), torch.float32)
        buffer("bias", (out_features,), torch.float32)
        buffer("error", (), torch.float64)
        self.smooth.fill_(1.0)
        self._with_peaks(device)
        self._pad_branch()

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        rank: int = 128,
        calibration: torch.Tensor | None = None,
        *,
        smoothing_strength: float = 0.5,
        smooth: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
        svd: str = "auto",
        activations: str = AUTO,
    ) -> Self:
        """Quantize ``linear``; deterministic, on the device where it is.

        ``calibration``: activations ``[..., K]`` of this layer, from which the smoothing factors come; without them
        x is not smoothed, and its elements should then stay between 2^-4 and 2688 in size, where NVFP4 without a
        second level is at home. ``smoothing_strength``: SmoothQuant's alpha. ``smooth``: fp32 ``[K]``, positive, the
        factors themselves. ``dtype``: float16 or bfloat16; by default the layer's, or bfloat16 for a float32 layer.
        ``svd``: ``auto``, ``exact`` or ``randomized``, see ``decompose``.

        Raises ``InputError`` for sizes, dtypes and values that cannot be quantized.
        """
        weight = linear.weight.detach().contiguous()  # the same bits whatever its strides
        if dtype is None:
            dtype = weight.dtype if weight.dtype in TORCH_DTYPES.values() else torch.bfloat16
        n, k = weight.shape
        layer = cls(k, n, rank=rank, dtype=dtype, device=weight.device, activations=activations)
        with torch.autocast(
            weight.device.type, enabled=False
        ):  # decomposing is float64's and fp32's business
            rows = None
            if calibration is not None:
                rows = _rows(calibration.detach(), k, "calibration").to(weight.device)
                smooth = smoothing(rows, weight, smoothing_strength) if smooth is None else smooth
            if smooth is not None:
                require_smooth(smooth, k)
            parts = decompose(weight, rank, dtype, smooth=smooth, activations=rows, svd=svd)
            layer._fill_from(parts, None if linear.bias is None else linear.bias.detach())
            exact = weight.double()
            layer.error.fill_(((parts.weight() - exact).norm() / exact.norm()).item() if exact.any() else 0.0)
        return layer

    @classmethod
    def from_packed(
        cls,
        packed: PackedSVDQuant,
        lora_down: torch.Tensor,
        smooth: torch.Tensor,
        *,
        error: float = math.nan,
    ) -> Self:
        """A layer of weights that are quantized already, on the device where they are.

        ``lora_down`` ``[K, R]`` in the dtype of ``packed.lora_up``, ``smooth`` fp32 ``[K]``, positive; ``error``:
        ``relative_error``, NaN where nobody knows it. Raises ``InputError`` for what does not fit.
        """
        require_tensor(lora_down, "lora_down", (packed.lora_up.dtype,), (packed.k, packed.r))
        require_smooth(smooth, packed.k)
        layer = cls(packed.k, packed.n, rank=packed.r, dtype=packed.lora_up.dtype, device=packed.device)
        layer._fill(packed, lora_down, smooth)
        layer.error.fill_(error)
        return layer

    def _fill(self, packed: PackedSVDQuant, lora_down: torch.Tensor, smooth: torch.Tensor) -> None:
        for name in ("wgt", "wscales", "lora_up", "wcscale", "bias"):
            part = getattr(packed, name)
            getattr(self, name)[..., : part.shape[-1]].copy_(part)
        self._set_lora_down(lora_down)
        self.smooth.copy_(smooth)
        self.refresh_peaks()

    def _fill_from(self, parts: Decomposition, bias: torch.Tensor | None) -> None:
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
        self._fill(packed, parts.lora_down, parts.smooth)

    @property
    def weight(self) -> QuantizedWeight:
        """Shape, dtype and device of a linear's weight for models that look at these; nothing can be computed."""
        return QuantizedWeight(self.out_features, self.in_features, self.dtype, self.wgt.device)

    @property
    def lora_down(self) -> torch.Tensor:
        """``[K, rank]``, a copy: what is kept is packed as the kernel reads it."""
        return unpack_lora_down(self.get_buffer(_PACKED)[:, : self.rank], self.in_features)

    def _set_lora_down(self, lora_down: torch.Tensor) -> None:
        self.get_buffer(_PACKED)[:, : self.rank].copy_(pack_lora_down(lora_down.to(self.dtype)))

    @property
    def max_rank(self) -> int:
        """Columns of the branch and of adapters together; ``rank`` unless ``reserve_adapters`` was asked for more."""
        return self.adapters.stop

    def reserve_adapters(self, max_rank: int) -> Self:
        """Room for adapters of ``max_rank - rank`` columns, those that are set are dropped. New memory: before a CUDA
        graph or a compiled model. Raises ``InputError`` for less than ``rank`` and for what no kernel has.
        """
        _problem(self.in_features, self.out_features, max_rank, self.dtype)
        if max_rank < self.rank:
            raise InputError(f"max_rank must be at least the layer's rank {self.rank}, got {max_rank}")
        down, up = self.get_buffer(_PACKED), self.get_buffer("lora_up")
        self._buffers[_PACKED] = pad_packed(down[:, : self.rank], max_rank)
        self._buffers["lora_up"] = pad_rank(up[:, : self.rank], max_rank)
        self.adapters = Adapters(self.rank, max_rank)
        self._pad_branch()
        return self

    def set_adapters(self, adapters: Given) -> None:
        """``{name: (down, up, strength)}``: y gets ``strength (x @ down) @ up.T`` of these adapters and no others.

        ``down`` float ``[K, r]`` or ``[r, K]``, ``up`` float ``[N, r]``. Written into the room that
        ``reserve_adapters`` made, so that CUDA graphs and compiled models see it. Tensors that were given before and
        did not change are not packed again. They are not in a ``state_dict``. Raises ``InputError``, changing nothing.
        """
        self.commit_adapters(self.prepare_adapters(adapters))

    def prepare_adapters(self, adapters: Given) -> Prepared:
        """The checks and the packing of ``set_adapters``: what ``commit_adapters`` writes. Raises ``InputError``."""
        return self.adapters.prepare(adapters, self.wcscale, self.in_features, self.dtype)

    def commit_adapters(self, prepared: Prepared) -> None:
        """The writes of ``set_adapters``: copies into the branch, without waiting for the device."""
        self.adapters.commit(prepared, self.lora_down_packed, self.lora_up)
        self._peaks.refresh_branch(self._buffers)

    def refresh_peaks(self) -> None:
        """Compute anew what follows from buffers that were written to: ``wpeak``, in place, by some small kernels, and
        whether ``auto`` may take FP8, which waits for the device, and is left as it is where a graph is captured.
        """
        self._peaks.refresh(self._buffers)
        self._look_at_share()

    def current_peaks(self) -> torch.Tensor:
        """``wpeak`` of the buffers as they are. A graph that is being traced reads the buffer as any other."""
        if not (torch.compiler.is_compiling() or self._peaks.is_known(self._buffers)):
            self._peaks.refresh(self._buffers)
        found: torch.Tensor = self._buffers["wpeak"]  # type: ignore[assignment]  # it is there from the beginning
        return found

    def offered_peaks(self) -> Callable[[], torch.Tensor] | None:
        """``current_peaks`` for a call that may read them; None where ``auto`` must not take FP8."""
        # Most of them by the first.
        may = self._fp8_is_close or self.activations != AUTO or self._may_take_fp8()
        return self.current_peaks if may else None

    def _may_take_fp8(self) -> bool:
        """Whether FP8 is at least as accurate as NVFP4. A constant of a graph that is being traced."""
        if not (self._fp8_is_close or torch.compiler.is_compiling()) and self._share is None:
            self._look_at_share()
        return self._fp8_is_close

    def _look_at_share(self) -> None:
        share = residual_share(self._buffers, self.rank)
        if share is not None:
            self._know_share(share)

    def _know_share(self, share: float | None) -> None:
        """The answer besides: torch.compile guards it, not the number, which differs from layer to layer."""
        self._share = share
        self._fp8_is_close = share is not None and share >= FP8_LEAST_SHARE

    def __setattr__(self, name: str, value: Any) -> None:
        """Buffers that are assigned to, but for those that DataParallel copies, may be another weight's."""
        super().__setattr__(name, value)
        if name in WEIGHT_NAMES and not self._is_replica:
            self._know_share(None)

    def _with_peaks(self, device: torch.device | str | None) -> None:
        peaks = torch.zeros(self.out_features, dtype=torch.float32, device=device)
        self.register_buffer("wpeak", peaks, persistent=False)
        self._peaks = Peaks()

    @property
    def relative_error(self) -> float:
        """Of the quantized weight against the layer's in float64: norm of the difference over norm. Activations not
        included. NaN for a layer that was loaded from a checkpoint without the weight.
        """
        return self.error.item()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., K]`` float16, bfloat16 or float32 -> ``[..., N]`` in the same dtype, under autocast in autocast's.

        Raises ``InputError``.
        """
        return self.activated(x)

    def activated(self, x: torch.Tensor, activation: str = "none") -> torch.Tensor:
        """``forward`` and then ``activation``: ``none``, ``gelu_tanh``, ``silu``, or ``swiglu``, which makes N/2
        columns and takes the first 8 of 16 outputs for gates of the others (``interleave_gates``).
        """
        if not _compiling():
            inputs = (x, *_weights(self._buffers))
            y = made_before(inputs, self.activations, activation, self.offered_peaks())
            if y is not None:  # by a kernel, of an x in the layer's dtype
                return y.to(autocast_dtype(x) or x.dtype) if _autocasting("cuda") else y
        return self._met_first(x, activation)

    def _met_first(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """``activated`` of an x like which none was met before."""
        if x.dtype not in X_DTYPES:
            came = str(x.dtype).removeprefix("torch.")
            raise InputError(f"x must be float16, bfloat16 or float32, got {came}")
        if self._is_replica:
            self._align()
        rows = x if x.ndim == 2 and x.shape[1] == self.in_features else _rows(x, self.in_features, "x")
        if x.dtype is not self.dtype:
            rows = rows.to(self.dtype)
        rows = rows.contiguous()
        inputs, peaks = (rows, *_weights(self._buffers)), self.offered_peaks()
        y = None
        if not _compiling() and rows is not x:
            y = made_before(inputs, self.activations, activation, peaks)
        if y is None:
            y = made_first(inputs, self.activations, activation, peaks)
        if not _compiling() and x.dtype is self.dtype and x.is_contiguous():
            learn_shape(x, inputs, self.activations, activation, peaks)
        wanted = autocast_dtype(x) or x.dtype
        if y.dtype is not wanted:
            y = y.to(wanted)
        return y if x.ndim == 2 else y.view(*x.shape[:-1], y.shape[1])

    def chosen(self, rows: int) -> Decision:
        """What a call of ``rows`` rows does with activations where the layer is, and why."""
        if self.activations != AUTO:
            return Decision(self.activations, "asked for")
        problem = _problem(self.in_features, self.out_features, self.lora_up.shape[1], self.dtype)
        problem, device = dataclasses.replace(problem, m=max(rows, 1)), self.wgt.device
        with_fp8 = decide(problem, device, has_peaks=True)
        if self._may_take_fp8():
            return with_fp8
        return left_out(decide(problem, device, has_peaks=False), with_fp8, self._share)

    def _align(self) -> None:
        """DataParallel sends buffers of a dtype in one piece: behind those of another module they may lie anywhere."""
        for name, buffer in self._buffers.items():
            if buffer is not None and buffer.data_ptr() % ALIGN:
                self._buffers[name] = buffer.clone()

    def _replicate_for_data_parallel(self) -> Self:
        """A replica's buffers are copies, wpeak too, which is right there if it is here."""
        self._may_take_fp8()  # looked at here, as a replica is thrown away
        replica = super()._replicate_for_data_parallel()
        replica._peaks = Peaks(trusted=self._peaks.is_known(self._buffers))
        return replica

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Layers that were pickled before there was ``wpeak``, or before their share was looked at, get it."""
        super().__setstate__(state)
        if "wpeak" not in self._buffers:
            self._with_peaks(self.wgt.device)
            self._peaks.refresh(self._buffers)
        if "_share" not in state:
            self._know_share(None)
            self._look_at_share()

    def extra_repr(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        room = "" if self.max_rank == self.rank else f", max_rank={self.max_rank}"
        sizes = f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}"
        return f"{sizes}, dtype={dtype}{room}, activations={self.activations}"

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """``to`` and its relatives: devices change, dtypes belong to the kernel's contract and do not."""

        def keep_dtype(tensor: torch.Tensor) -> torch.Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(keep_dtype, recurse)
        self._pad_branch()
        return self

    def _pad_branch(self) -> None:
        """The branch gets zero columns up to the rank that is launched where it is: ``launched_rank``."""
        problem = _problem(self.in_features, self.out_features, self.max_rank, self.dtype)
        rank = launched_rank(self.wgt.device, problem)
        down, up = self.get_buffer(_PACKED), self.get_buffer("lora_up")
        if down.shape[1] != rank:
            self._buffers[_PACKED] = pad_packed(down[:, : self.max_rank], rank)
        if up.shape[1] != rank:
            self._buffers["lora_up"] = pad_rank(up[:, : self.max_rank], rank)
        self._peaks.refresh(self._buffers)  # whoever pads has new buffers

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """The branch as it is on every device: plain, of ``rank`` columns."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        del destination[prefix + _PACKED]
        destination[prefix + "lora_down"] = self.lora_down
        if self.lora_up.shape[1] != self.rank:
            destination[prefix + "lora_up"] = self.lora_up[:, : self.rank].contiguous()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        metadata: dict[str, Any],
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        """``lora_down`` is packed on the way, and called by its own name where it is missing or does not fit."""
        own, packed = prefix + "lora_down", prefix + _PACKED
        given = state_dict.pop(own, None)
        fits = isinstance(given, torch.Tensor) and tuple(given.shape) == (self.in_features, self.rank)
        if isinstance(given, torch.Tensor) and fits:
            down = pack_lora_down(given.to(self.dtype))
            state_dict[packed] = pad_packed(down, self.lora_up.shape[1])
        up, rank = state_dict.get(prefix + "lora_up"), self.lora_up.shape[1]
        if isinstance(up, torch.Tensor) and up.ndim == 2 and up.shape[1] == self.rank != rank:
            state_dict[prefix + "lora_up"] = pad_rank(up, rank)
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
        if packed in missing:
            missing.remove(packed)
            if given is None:
                missing.append(own)
            else:
                came = list(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
                errors.append(f"{own} must be [{self.in_features}, {self.rank}], got {came}")
        self.adapters = Adapters(self.rank, self.max_rank)  # a state_dict has none
        self._pad_branch()  # loading may assign tensors, of another device
        if any(name.startswith(prefix) for name in state_dict):  # not of every file of a checkpoint
            self._know_share(None)
            self._look_at_share()


def _weights(buffers: Any) -> tuple[torch.Tensor, ...]:
    """What ``linear_op`` takes behind x. As attributes of the layer they cost 1.5 us a call more."""
    return (
        buffers["smooth"],
        buffers[_PACKED],
        buffers["wgt"],
        buffers["wscales"],
        buffers["lora_up"],
        buffers["wcscale"],
        buffers["bias"],
    )


def _rows(x: torch.Tensor, k: int, name: str) -> torch.Tensor:
    if x.ndim == 0 or x.shape[-1] != k:
        raise InputError(f"{name} must be [..., {k}], got {list(x.shape)}")
    return x.reshape(-1, k)


def _problem(k: int, n: int, rank: int, dtype: torch.dtype) -> LinearProblem:
    """Of one row. Raises ``InputError`` for sizes and dtypes that are not of the contract."""
    if dtype not in _NAMES:
        raise InputError(f"dtype must be float16 or bfloat16, got {str(dtype).removeprefix('torch.')}")
    return LinearProblem(m=1, k=k, n=n, r=rank, dtype=_NAMES[dtype])
