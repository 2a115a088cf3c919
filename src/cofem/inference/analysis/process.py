r"""Series as a stationary process with a learned spectrum: the analysis operator is what makes it white.

With the covariance K of the samples, `learn_spectrum`, ``B = L^-1`` for ``K = L L^T`` makes independent
numbers of variance one out of the series. Short series have all of L; long ones forget what is more than
`MEMORY` samples back, so that B is a band.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse
from scipy import linalg

from cofem.inference.analysis.spectrum import Spectrum, Window, learn_spectrum, slope_of
from cofem.inference.problem import Problem
from cofem.operators import Operator, as_operator

#: Samples from which on a process is worth learning.
LEAST_SAMPLES = 16
#: Samples up to which B is a full triangle.
SMALL_SIDE = 1024
#: How many samples back a long series remembers.
MEMORY = 64
#: Data that are modelled jointly, at most; of more, so many windows of so many.
JOINTLY, WINDOWS, IN_WINDOW = 600, 4, 400
#: Samples up to which the frequencies are those of the whole series.
LONGEST = 4096
#: Variance that is added to each sample so that K can be inverted: a share of the noise, and of the series.
SHARE_OF_NOISE, SHARE_OF_SERIES = 1e-4, {"float64": 1e-9, "float32": 1e-7}


class Process(NamedTuple):
    """A process that was learned.

    Attributes
    ----------
    operator : Operator
        B, which makes it white, shape (n, n).
    noise_var : float
        Noise variance.
    n_parameters : int
        Number of parameters that were learned.
    label : str
        What it is, in words.
    """

    operator: Operator
    noise_var: float
    n_parameters: int
    label: str


#: Share of the variance of a series that rounding may have in its covariance, and be called learned.
LARGEST_ROUNDING = 0.01


def learn_process(problem: Problem) -> Process | None:
    """Learn a process from data that are samples of a series; None where that is not what they are.

    Each datum must be a sample, times a number. Real data of one task, in NumPy.
    """
    window = samples_of(problem)
    if window is None:
        return None
    n = problem.n_columns
    known = float(problem.noise_var) if np.isfinite(problem.noise_var) else None
    small = n <= SMALL_SIDE
    windows = _windows(window)
    whole = len(windows) == 1 and n <= LONGEST
    length = n if whole else max(int(part.places.max()) + 1 for part in windows)
    spectrum = learn_spectrum(windows, length, noise_var=known, with_slope=whole and small)
    real = problem.real_dtype.name
    extra = max(SHARE_OF_NOISE * spectrum.noise_var, SHARE_OF_SERIES[real] * float(np.var(window.y)), 1e-300)
    covariance = spectrum.covariance(n if small else max(length, MEMORY + 1)) + spectrum.level
    rounding = 4 * n * float(np.finfo(np.float64).eps) * float(covariance[0])
    if rounding > LARGEST_ROUNDING * float(np.var(window.y)):  # a level that drowns what varies
        return None
    covariance[0] += max(extra, rounding)
    matrix = (
        whitening(covariance, n, spectrum.slope) if small else band_whitening(covariance[: MEMORY + 1], n)
    )
    return Process(as_operator(matrix), spectrum.noise_var, spectrum.n_parameters, _words(spectrum))


def samples_of(problem: Problem) -> Window | None:
    """Return the data as samples of a series; None where that is not what they are."""
    y, n = problem.y, problem.n_columns
    if not isinstance(y, np.ndarray) or y.ndim != 1 or problem.is_complex or y.size < LEAST_SAMPLES:
        return None
    matrix = problem.phi.operator.sparse_matrix()
    if matrix is None or np.iscomplexobj(matrix.data) or n < LEAST_SAMPLES:
        return None
    matrix = scipy.sparse.csr_array(matrix)
    matrix.eliminate_zeros()
    if not (np.diff(matrix.indptr) == 1).all():
        return None
    order = np.argsort(matrix.indices, kind="stable")
    y, weights = y.astype(np.float64), matrix.data.astype(np.float64)
    if not np.var(y / weights) > 0:
        return None
    return Window(y[order], matrix.indices[order].astype(np.intp), weights[order])


def _windows(window: Window) -> list[Window]:
    """Return all data, or of many some runs that are spread over the series."""
    count = window.y.size
    if count <= JOINTLY:
        return [window]
    starts = np.linspace(0, count - IN_WINDOW, min(WINDOWS, -(-count // IN_WINDOW))).astype(np.intp)
    parts = [Window(*(x[start : start + IN_WINDOW] for x in window)) for start in starts]
    # A long gap says nothing, and takes time.
    near = [part.places - part.places[0] for part in parts]
    kept = [places <= 4 * IN_WINDOW for places in near]
    return [
        Window(part.y[keep], places[keep], part.weights[keep])
        for part, places, keep in zip(parts, near, kept, strict=True)
    ]


def whitening(covariance: np.ndarray, n: int, slope: float = 0.0) -> np.ndarray:
    """Return ``L^-1`` of the covariance matrix of n samples, shape (n, n).

    Parameters
    ----------
    covariance : ndarray of shape (n,)
        Covariance of samples 0 to n - 1 apart.
    n : int
        Number of samples.
    slope : float
        Variance of a straight line that is added to the process.

    Examples
    --------
    >>> import numpy as np
    >>> (whitening(np.array([4.0, 0.0]), 2) + 0.0).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    line = slope_of(n)
    matrix = linalg.toeplitz(covariance[:n]) + slope * np.outer(line, line)
    factor = linalg.cholesky(matrix, lower=True, check_finite=False)
    inverse, _ = linalg.lapack.dtrtri(factor, lower=1)
    return np.tril(inverse)


def band_whitening(covariance: np.ndarray, n: int) -> scipy.sparse.csr_array:
    """Return what makes a process white that remembers p samples: the errors of the best predictions.

    Parameters
    ----------
    covariance : ndarray of shape (p + 1,)
        Covariance of samples 0 to p apart.
    n : int
        Number of samples, more than p.

    Examples
    --------
    A process that forgets half of its last sample and all before:

    >>> import numpy as np
    >>> band_whitening(np.array([4.0, 2.0]) / 3, 3).toarray().round(3).tolist()
    [[0.866, 0.0, 0.0], [-0.5, 1.0, 0.0], [0.0, -0.5, 1.0]]
    """
    p = covariance.size - 1
    first = whitening(covariance, p + 1)
    last = first[-1]
    start = scipy.sparse.csr_array(first[:p])
    start.resize((p, n))
    rest = scipy.sparse.diags_array(
        [np.full(n - p, number) for number in last], offsets=np.arange(p + 1), shape=(n - p, n)
    )
    return scipy.sparse.csr_array(scipy.sparse.vstack([start, rest], format="csr"))


def _words(spectrum: Spectrum) -> str:
    strongest = sorted((b for b in spectrum.bumps if b.frequency > 0), key=lambda b: -b.power)
    words = "a process whose spectrum was learned"
    if strongest:
        words += f" (periods of {', '.join(f'{1 / bump.frequency:.3g}' for bump in strongest[:4])} samples)"
    return words
