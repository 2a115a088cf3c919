"""Convolution with a fixed kernel, by fast Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from scipy.fft import next_fast_len

from cofem._arrays import (
    Array,
    DeviceCache,
    as_floating,
    as_shape,
    by_parts,
    in_precision,
    namespace,
    precision_of,
    squared_modulus,
    to_numpy,
)
from cofem._warn import warn
from cofem.operators.base import Operator
from cofem.operators.circulant import CirculantGram
from cofem.operators.decay import Decay, decay_of
from cofem.operators.entries import lookup
from cofem.operators.filters import FilterBank, gram_at_offsets
from cofem.operators.transforms import dispatch

_CHOICES = {"mode": ("circular", "linear"), "output": ("same", "full")}


#: What a product multiplies spectra by, from the spectrum of the kernel.
_RESPONSES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "forward": lambda spectrum: spectrum,
    "adjoint": np.conj,
    "gram": squared_modulus,
}

#: Shorter kernels are not judged.
SHORTEST_JUDGED = 8


def looks_causal(kernel: np.ndarray) -> bool:
    """Tell whether a kernel looks like a response that begins at its first entry.

    That is a real kernel with one axis and at least `SHORTEST_JUDGED` entries, for which

    1. the largest entry lies in the first third, and
    2. the first half holds 95 % of the energy; or 70 % where the entries go up and down once, as those of
       decays and of haemodynamic responses do, and those of noise do not.

    A kernel that is symmetric or antisymmetric has half of its energy in its first half, and is never meant.

    Examples
    --------
    >>> import numpy as np
    >>> looks_causal(np.exp(-np.arange(40) / 10)), looks_causal(np.exp(-0.5 * np.arange(-9, 10) ** 2))
    (True, False)
    """
    size = kernel.size
    if kernel.ndim != 1 or size < SHORTEST_JUDGED or np.iscomplexobj(kernel):
        return False
    largest = float(np.abs(kernel).max())
    if largest == 0:
        return False
    scaled = kernel / largest
    energy = scaled**2
    share = float(energy[: size // 2].sum() / energy.sum())
    ups_and_downs = float(np.abs(np.diff(scaled, prepend=0, append=0)).sum())  # 2 if it rises and falls once
    is_early = int(np.argmax(energy)) < size / 3
    return is_early and (share >= 0.95 or (share >= 0.7 and ups_and_downs <= 3))


class Convolution(Operator):
    """Convolution of signals of one shape with a kernel, which is centred unless you say ``causal=True``.

    By default the origin of the kernel is its centre: right for a blur, where a spike spreads to both sides.
    A response that begins at its first entry (a decay, a calcium transient, a haemodynamic response) needs
    ``causal=True``; else the response begins half a kernel before its spike, and a fit finds every spike half
    a kernel too late. A kernel that looks like such a response is warned about unless `causal` is given.

    Parameters
    ----------
    kernel : array_like
        Finite numbers, real or complex, with as many axes as the signal.
    shape : int or tuple of int
        Length of the signal, or shape of the array that vectors flatten in C order.
    mode : {"circular", "linear"}
        Whether the signal repeats, as in ``scipy.ndimage.convolve(mode="wrap")``, or is zero outside, as in
        `scipy.signal.convolve`. A circular kernel must not be longer than the signal along any axis.
    output : {"same", "full"}
        Linear convolution only: the centre of the result, in the shape of the signal, or all of it.
    centre : bool, optional
        The older name: ``centre=False`` is the same as ``causal=True``.
    causal : bool, optional
        Whether the origin of the kernel is its first entry, so that a spike acts from its place onwards.
        By default the origin is the centre as in SciPy: of ``K`` entries number ``K // 2`` in a circular
        convolution, number ``(K - 1) // 2`` in a linear one. With ``output="full"``, which begins with the
        first entry either way, it changes nothing.

    Examples
    --------
    >>> import numpy as np
    >>> blur = Convolution([0.25, 0.5, 0.25], 6)
    >>> np.round(blur @ np.array([0.0, 0.0, 4.0, 0.0, 0.0, 0.0]), 12) + 0.0
    array([0., 1., 2., 1., 0., 0.])
    >>> round(blur.norm, 12)
    1.0
    >>> decay = Convolution([1.0, 0.5, 0.25], 6, mode="linear", causal=True)
    >>> np.round(decay @ np.array([0.0, 0.0, 4.0, 0.0, 0.0, 0.0]), 12) + 0.0
    array([0., 0., 4., 2., 1., 0.])
    """

    def __init__(
        self,
        kernel: Any,
        shape: Any,
        mode: str = "circular",
        output: str = "same",
        centre: bool | None = None,
        causal: bool | None = None,
    ) -> None:
        signal_shape = as_shape(shape)
        kernel = as_floating(to_numpy(kernel), "kernel")
        for name, value in (("mode", mode), ("output", output)):
            if value not in _CHOICES[name]:
                raise ValueError(f"{name} must be one of {_CHOICES[name]}, got {value!r}")
        if mode == "circular" and output != "same":
            raise ValueError(f"output must be 'same' in a circular convolution, got {output!r}")
        if kernel.ndim != len(signal_shape) or kernel.size == 0:
            raise ValueError(
                f"kernel must be non-empty with {len(signal_shape)} axes, as many as shape {signal_shape}, "
                f"got shape {kernel.shape}"
            )
        if not np.isfinite(kernel).all():
            raise ValueError("kernel must hold finite numbers, got NaN or infinite entries")
        self.kernel = kernel
        self.signal_shape = signal_shape
        self.mode = mode
        self.output = output
        self.causal = _is_causal(centre, causal)
        self.centre = not self.causal
        self._axes = tuple(range(-kernel.ndim, 0))
        self._set_geometry()
        if centre is None and causal is None and output == "same" and looks_causal(kernel):
            largest = int(np.argmax(np.abs(kernel))) + 1
            warn(
                f"kernel looks causal (entry {largest} of {kernel.size} is the largest), but its origin is "
                f"its centre, so that a fit finds spikes {self._origin[0]} places too late; say causal=True "
                "if it begins at its first entry, causal=False if the centre is right",
                UserWarning,
            )
        super().__init__(
            (prod(self._output_shape), prod(signal_shape)),
            is_complex=np.iscomplexobj(kernel),
            precision=precision_of(kernel),
        )
        self._spectrum = self._kernel_spectrum(self._padded_shape)
        self._responses: dict[str, DeviceCache] = {}

    def _set_geometry(self) -> None:
        """Set the shape of the result, that of the padded arrays, and which kernel entry is the origin."""
        sizes = tuple(zip(self.signal_shape, self.kernel.shape, strict=True))
        if self.mode == "circular":
            if any(k > n for n, k in sizes):
                raise ValueError(
                    f"kernel must not be longer than the signal in a circular convolution, got kernel shape "
                    f"{self.kernel.shape} for signal shape {self.signal_shape}"
                )
            self._output_shape = self._padded_shape = self.signal_shape
            self._origin = tuple(0 if self.causal else k // 2 for _, k in sizes)
            return
        full = tuple(n + k - 1 for n, k in sizes)
        is_real = not np.iscomplexobj(self.kernel)
        self._padded_shape = tuple(next_fast_len(n, real=is_real) for n in full)
        if self.output == "full":
            self._output_shape = full
            self._origin = (0,) * len(sizes)
        else:
            self._output_shape = self.signal_shape
            self._origin = tuple(0 if self.causal else (k - 1) // 2 for _, k in sizes)

    def _decay(self) -> Decay | None:
        if not self.causal or self.output != "same" or self.kernel.ndim > 1:
            return None
        return decay_of(self.kernel, self.signal_shape[0], ring=self.mode == "circular")

    def _kernel_spectrum(self, shape: tuple[int, ...]) -> np.ndarray:
        padded = np.zeros(shape, dtype=self.kernel.dtype)
        padded[tuple(slice(k) for k in self.kernel.shape)] = self.kernel
        # With its origin at index 0 the result starts at index 0 as well; what lies before wraps around into
        # the padding, which is long enough.
        padded = np.roll(padded, [-origin for origin in self._origin], axis=self._axes)
        return dispatch.padded_spectrum(padded, shape, real=not self.is_complex)

    def _forward(self, x: Array) -> Array:
        return self._filter(x, self.signal_shape, self._response("forward", x), self._output_shape)

    def _adjoint(self, y: Array) -> Array:
        return self._filter(y, self._output_shape, self._response("adjoint", y), self.signal_shape)

    def _gram(self, x: Array) -> Array:
        if self.mode == "circular":  # nothing is cut off in between
            return self._filter(x, self.signal_shape, self._response("gram", x), self.signal_shape)
        return super()._gram(x)

    def _response(self, kind: str, x: Array) -> Array:
        """Return what spectra are multiplied by, on the device of ``x``."""
        if kind not in self._responses:
            self._responses[kind] = DeviceCache(_RESPONSES[kind](self._spectrum))
        return self._responses[kind].like(x)

    def _filter(
        self, x: Array, from_shape: tuple[int, ...], response: Array, to_shape: tuple[int, ...]
    ) -> Array:
        """Pad arrays with zeros, multiply their spectra by ``response``, and cut out the result."""

        def apply(x: Array) -> Array:
            xp = namespace(x)
            arrays = xp.reshape(x, (*x.shape[:-1], *from_shape))
            if self.precision == "float64":
                arrays = in_precision(arrays, "float64")
            spectra = dispatch.padded_spectrum(arrays, self._padded_shape, real=not self.is_complex)
            spectra *= response
            result = dispatch.from_spectrum(spectra, self._padded_shape, real=not self.is_complex)
            cut = result[(..., *(slice(n) for n in to_shape))]
            return xp.reshape(cut, (*x.shape[:-1], prod(to_shape)))

        return apply(x) if self.is_complex else by_parts(apply, x)

    def _local_gram(self, indices: np.ndarray) -> Array:
        if self.mode == "linear" and self.output == "same":
            return super()._local_gram(indices)
        # Nothing is cut off, so <phi_i, phi_j> is the autocorrelation of the kernel at i - j.
        power = squared_modulus(self._spectrum).astype(self._spectrum.dtype)
        correlation = dispatch.from_spectrum(power, self._padded_shape, real=not self.is_complex)
        return lookup(correlation, self.signal_shape, indices)

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _circulant_gram(self) -> CirculantGram | None:
        if any(k > n for n, k in zip(self.signal_shape, self.kernel.shape, strict=True)):
            return None
        is_real = not self.is_complex
        # The origin makes no difference to the Gram operator, and a linear one differs at the borders only.
        spectrum = dispatch.padded_spectrum(self.kernel, self.signal_shape, real=is_real)
        circular = self.mode == "circular"
        return CirculantGram(self.signal_shape, squared_modulus(spectrum), is_real, circular, circular)

    def _circulant_between(self, circulant: CirculantGram) -> CirculantGram | None:
        own = self._circulant_gram()
        if self.mode != "circular" or own is None or own.shape != circulant.shape:
            return None
        if own.is_real != circulant.is_real:
            return None
        return replace(circulant, eigenvalues=own.eigenvalues * circulant.eigenvalues)

    def _filter_bank(self) -> FilterBank | None:
        if any(k > n for n, k in zip(self.signal_shape, self.kernel.shape, strict=True)):
            return None
        if self._output_shape != self.signal_shape:
            return None
        spectrum = self._spectrum
        if self.mode == "linear":  # differs at the borders only
            spectrum = self._kernel_spectrum(self.signal_shape)
        return FilterBank(
            self.signal_shape, spectrum[None, None], not self.is_complex, self.mode == "circular"
        )

    def _offset_gram(self, offsets: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
        if self.mode == "circular":
            return super()._offset_gram(offsets, weights)
        # On the padded grid nothing wraps around.
        kernel = np.zeros(self._padded_shape, dtype=np.result_type(self.kernel.dtype, np.float64))
        kernel[tuple(slice(k) for k in self.kernel.shape)] = self.kernel
        kernel = np.roll(kernel, [-origin for origin in self._origin], axis=self._axes)
        padded = np.zeros(self._padded_shape)
        padded[tuple(slice(n) for n in self._output_shape)] = weights.reshape(self._output_shape)
        found = gram_at_offsets(kernel, padded, offsets)
        cut = found[(slice(None), *(slice(n) for n in self.signal_shape))]
        return cut.reshape(len(offsets), -1)

    def _spectral_norm(self) -> float:
        if self.mode == "circular":
            return float(np.abs(self._spectrum).max())
        return super()._spectral_norm()

    def _with_kernel(self, kernel: np.ndarray) -> Convolution:
        return Convolution(kernel, self.signal_shape, self.mode, self.output, causal=self.causal)

    def _abs2(self) -> Operator:
        return self._with_kernel(squared_modulus(self.kernel))

    def _in_precision(self, precision: str) -> Operator:
        if precision == self.precision:
            return self
        return self._with_kernel(in_precision(self.kernel, precision))

    def _expression(self) -> str:
        def text(shape: tuple[int, ...]) -> str:
            return str(shape[0] if len(shape) == 1 else shape)

        causal = ", causal=True" if self.causal else ""
        return f"Convolution({text(self.kernel.shape)} over {text(self.signal_shape)}, {self.mode!r}{causal})"


def _is_causal(centre: bool | None, causal: bool | None) -> bool:
    """Return whether the origin of a kernel is its first entry, from the two names of that setting."""
    for name, value in (("centre", centre), ("causal", causal)):
        if value is not None and not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name} must be True or False, got {value!r}")
    if centre is not None and causal is not None and bool(centre) == bool(causal):
        raise ValueError(
            f"centre and causal must not contradict each other, got centre={centre} and causal={causal}; "
            "give causal alone"
        )
    return bool(causal) if centre is None else not centre
