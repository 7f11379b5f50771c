"""What is known of a layer's weight besides its numbers: what models ask of one, how large it can be, where it is.

Models look at the ``weight`` of a linear before they call it. ``torch.nn.TransformerEncoderLayer`` asks whether a fused
path may take the weight itself, T5 casts x to the weight's dtype. Neither may compute with a weight that is 4-bit codes
and a branch; whoever tries is told so.

Layers on FP8 activations scale the rows of their weight by wpeak (``Peaks``), which follows from the other buffers.
Whether they are close enough to the layer is a matter of how much of the weight is in 4 bits (``residual_share``).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_linear_fp8.peaks import SLACK, row_peaks

_LOOKS = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class QuantizedWeight(torch.Tensor):
    """``[N, K]`` without memory. torch sees a tensor with functions of its own, so fused paths leave it alone."""

    @staticmethod
    def __new__(
        cls: type[QuantizedWeight], n: int, k: int, dtype: torch.dtype, device: torch.device
    ) -> QuantizedWeight:
        return torch.Tensor._make_wrapper_subclass(cls, (n, k), dtype=dtype, device=device)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Nothing of its own; that there is one is what fused paths ask."""
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub declares no class method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _LOOKS:
            return args[0]
        raise InputError(
            f"the weight of a SVDQuantLinear has shape, dtype and device, but no numbers to compute with ({func}): "
            f"call the layer"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's stub has no name
        return f"QuantizedWeight(shape={list(self.shape)}, dtype={self.dtype}, device={self.device})"


_NAMES = ("wscales", "smooth", "lora_down_packed", "lora_up", "wpeak")
_PIECES = 8  # of a column in a chunk of packed lora_down, and elements of each
WEIGHT_NAMES = ("wgt", "wscales", "lora_down_packed", "lora_up", "smooth", "wcscale")
SAMPLED_ROWS = 128
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # others are fake ones, or parts of one on many devices
Buffers = dict[str, torch.Tensor | None]
Places = tuple[torch.Tensor, torch.Tensor]


class Peaks:
    """Keeps buffer ``wpeak`` of one layer (fp32 ``[N]``, ``row_peaks``), and knows of which tensors it was computed.

    The part of scales and smoothing is kept too, so that other adapters cost eight small kernels. A copy knows nothing:
    its layer computes wpeak again when it is asked for. ``trusted``: wpeak is right whatever the tensors look like.
    """

    def __init__(self, *, trusted: bool = False) -> None:
        self._trusted = trusted
        self._scales: torch.Tensor | None = None
        self._of_scales, self._of_all = _Seen(()), _Seen(())
        self._places: Places | None = None

    def __reduce__(self) -> tuple[type[Peaks], tuple[()]]:
        return Peaks, ()

    def is_known(self, buffers: Buffers) -> bool:
        """Whether wpeak is of these very tensors, not written to since."""
        return self._trusted or self._of_all.are(_all(buffers))

    def refresh(self, buffers: Buffers) -> None:
        """Compute wpeak anew, in place where it can be, as graphs and compiled models have it. Waits for no device."""
        self._scales = None
        self.refresh_branch(buffers)

    def refresh_branch(self, buffers: Buffers) -> None:
        """``refresh`` where nothing but the branch was written to.

        Where tensors are not together yet, as while a model is being loaded, nothing is done until they are.
        """
        wscales, smooth, down, up, peaks = _all(buffers)
        if len({one.device for one in (wscales, smooth, down, up)}) > 1:
            self._of_all = _Seen(())
            return
        with torch.no_grad():
            scales = self.of_scales(buffers)
            if not _is_writable(peaks, scales):
                buffers["wpeak"] = peaks = torch.empty_like(scales)
            if up.shape[1]:
                largest = column_norms(down, up, self.places(down)).amax()
                add_branch(scales, row_norms(up), largest, out=peaks)
            else:
                peaks.copy_(scales)
        self.remember(buffers)

    def remember(self, buffers: Buffers) -> None:
        """wpeak is right for these tensors."""
        self._of_all = _Seen(_all(buffers))

    def places(self, down: torch.Tensor) -> Places:
        """``places_of`` packed ``down``; kept."""
        if self._places is None or self._places[0].device != down.device:
            self._places = places_of(down.device)
        return self._places

    def of_scales(self, buffers: Buffers) -> torch.Tensor:
        """fp32 ``[N]``: the bound without a branch; the same tensor until scales or smoothing change."""
        wscales, smooth, down, up, _ = _all(buffers)
        if self._scales is None or not self._of_scales.are((wscales, smooth)):
            self._scales = row_peaks(wscales, smooth, down[:, :0], up[:, :0])
            self._of_scales = _Seen((wscales, smooth))
        return self._scales


def row_norms(up: torch.Tensor) -> torch.Tensor:
    """``lora_up`` ``[N, R]`` -> fp32 ``[N]``."""
    return torch.linalg.vector_norm(up, dim=1, dtype=torch.float32)


def places_of(device: torch.device) -> Places:
    """int64 ``[8, 8]`` each: of column n % 8 and piece q of 8 elements of K, where packed ``lora_down`` has it."""
    n = torch.arange(_PIECES, device=device)
    return n.unsqueeze(1).expand(_PIECES, _PIECES), n.unsqueeze(1) ^ n


def column_norms(down: torch.Tensor, up: torch.Tensor, places: Places) -> torch.Tensor:
    """Packed ``lora_down`` ``[chunks, R, 64]`` -> fp32 ``[chunks, 8, 8]``: over R, of each element of K.

    Columns without any element of ``up`` do not count: an adapter that is off leaves its half of ``down`` there.
    """
    used = down * up.any(dim=0).unsqueeze(1)
    apart = used.view(
        len(down), -1, _PIECES, _PIECES, _PIECES
    )  # pieces of columns lie in an order of their own
    norms = torch.linalg.vector_norm(apart, dim=1, dtype=torch.float32)
    return torch.linalg.vector_norm(norms[:, places[0], places[1]], dim=1)


def add_branch(scales: torch.Tensor, up: torch.Tensor, down: torch.Tensor, *, out: torch.Tensor) -> None:
    """The bound of ``row_peaks`` from its two parts: no sum over R is larger than ``up * down``, norms of both."""
    torch.addcmul(scales, up, down, value=SLACK, out=out)


class _Seen:
    """Tensors as they were: the same objects and memory, and as often written to."""

    __slots__ = ("_looks",)

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        # Weak: a tensor that was replaced is not kept; and where another one comes to lie there, it is dead.
        self._looks = [(weakref.ref(one), *_look(one)) for one in tensors]

    def are(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Asked at every eager call on FP8 activations, so a loop that makes nothing."""
        if len(self._looks) != len(tensors):
            return False
        for tensor, (ref, writes, address) in zip(tensors, self._looks, strict=True):
            if ref() is not tensor or (writes is not None and tensor._version != writes):
                return False
            if address is not None and tensor.data_ptr() != address:
                return False
        return True


def _look(tensor: torch.Tensor) -> tuple[int | None, int | None]:
    """(writes, address): torch counts none of tensors of inference mode, and fake ones lie nowhere."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        address = None
    return (None if tensor.is_inference() else tensor._version), address


def _all(buffers: Buffers) -> list[torch.Tensor]:
    return [buffers[name] for name in _NAMES]  # type: ignore[misc]  # a layer sets none of these to None


def _is_writable(peaks: torch.Tensor, like: torch.Tensor) -> bool:
    fits = peaks.device == like.device and peaks.shape == like.shape and peaks.dtype == like.dtype
    return fits and not (peaks.is_inference() and not torch.is_inference_mode_enabled())


def residual_share(buffers: Buffers, rank: int) -> float | None:
    """The share of the 4-bit part ``wgt`` in the squares of the smoothed weight ``W' = wgt + lora_up @ (lora_down *
    smooth).T``, by ``SAMPLED_ROWS`` evenly spaced rows of it, exactly; of the branch ``rank`` columns, no adapters.

    Activations that are quantized have sizes of their own in every column of W'. They are not known here, so it is the
    smaller one of two shares: with all columns equally large, as after smoothing of strength 1, and with columns of x
    in proportion to those of W', as strength 0.5 makes them. There large columns count more, and those are the ones
    that the branch holds.

    Waits for the device. None where that cannot be: without numbers (meta, tensors of other classes), and while a CUDA
    graph is captured. NaN for zeros.
    """
    tensors: list[torch.Tensor] = [buffers[name] for name in WEIGHT_NAMES]  # type: ignore[misc]  # none is None
    device = tensors[0].device
    if any(type(one) not in _PLAIN or one.device != device or one.is_meta for one in tensors):
        return None
    if _is_capturing(device):
        return None
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        part, whole = _column_squares(tensors, rank)
        equal, as_weights = part.sum() / whole.sum(), (part @ whole) / (whole @ whole)
        return torch.minimum(equal, as_weights).item()


def _column_squares(tensors: Sequence[torch.Tensor], rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 ``[K]`` of wgt and of W', summed over sampled rows; ``tensors`` as ``WEIGHT_NAMES``."""
    wgt, wscales, down, up, smooth, wcscale = tensors
    n, k = len(wgt), len(smooth)
    count = min(n, SAMPLED_ROWS)
    # From the first row to the last: a distance of N / 128 may be a multiple of what rows repeat by, as gates do.
    rows = torch.arange(count, device=wgt.device) * (n - 1) // max(count - 1, 1)
    scales = unblock_scales(wscales, n, k).view(torch.uint8)[rows].view(torch.float8_e4m3fn)
    part = dequantize_nvfp4(NVFP4Tensor(codes=wgt[rows], scales=scales), torch.float64)
    smoothed = unpack_lora_down(down[:, :rank], k).double() * smooth.double().unsqueeze(1)
    whole = part + up[rows, :rank].double() @ smoothed.T
    units = wcscale[rows].double().square()
    return units @ part.square(), units @ whole.square()


def _is_capturing(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()
