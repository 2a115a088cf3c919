"""What a comparison of priors says: a table, and the prior that was chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Compared:
    """One prior, as data that were held out judge it.

    Attributes
    ----------
    prior : Prior
        The prior.
    label : str
        The same in words.
    density : float
        Mean log density of a datum that was held out, in nats, in the user's units.
    difference, standard_error : float
        Mean difference to the best prior over the data that both were judged by, and its standard error; 0
        for the best.
    outside : float
        Share of the data that were held out that lie outside of their 90 % intervals.
    noise_std : float
        Noise that was found, or known.
    count : int
        Data that it was judged by: fewer than the others for a prior that was plainly worse after some.
    applications, seconds : float
        What the fits cost.
    analysis : Operator or None
        The analysis operator whose rows the prior is for.
    """

    prior: Any
    label: str
    density: float
    difference: float
    standard_error: float
    outside: float
    noise_std: float
    count: int
    applications: float
    seconds: float
    analysis: Any = None


@dataclass(frozen=True, eq=False)
class Comparison:
    """Priors compared by the log density of data that were held out; what `cofem.compare` returns.

    Attributes
    ----------
    rows : tuple of Compared
        One for each prior, in the order in which they were tried.
    chosen : int
        Number of the row that was chosen: the one with the largest density, or the default prior if that is
        within two standard errors of it; with fewer than 100 data, of those within two standard errors the
        one that ties coefficients to each other most.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((60, 100))
    >>> y = Phi[:, 3] - Phi[:, 17] + 0.1 * rng.standard_normal(60)
    >>> table = cofem.compare(Phi, y, priors=[cofem.Independent(), cofem.Power(2)], rng=0)
    >>> table.prior, [row.label for row in table.rows]
    (Independent(), ['Independent()', 'Power(2)'])
    >>> bool(table.rows[1].difference < -10 * table.rows[1].standard_error)
    True
    """

    rows: tuple[Compared, ...]
    chosen: int

    @property
    def best(self) -> Compared:
        """The row that was chosen."""
        return self.rows[self.chosen]

    @property
    def prior(self) -> Any:
        """The prior that was chosen."""
        return self.best.prior

    @property
    def applications(self) -> float:
        """Applications of ``Phi^H Phi`` in all fits."""
        return sum(row.applications for row in self.rows)

    @property
    def seconds(self) -> float:
        """Seconds that all fits took."""
        return sum(row.seconds for row in self.rows)

    def in_words(self) -> str:
        """Return the choice as a sentence for a status.

        Examples
        --------
        >>> row = Compared(None, "ridge", -1.0, 0.0, 0.0, 0.1, 0.5, 20, 30.0, 0.1)
        >>> Comparison((row,), 0).in_words()
        'prior="auto" chose ridge by the log density of 20 data held out, for 30 applications'
        """
        top = max(self.rows, key=lambda row: row.difference)
        others = ", ".join(
            f"{row.label} {against(row.difference, row.standard_error)}"
            for row in self.rows
            if row is not top
        )
        words = (
            f'prior="auto" chose {self.best.label} by the log density of {self.best.count} data held out, '
            f"for {self.applications:.0f} applications"
        )
        if self.best.difference < top.difference:
            words += f": {top.label} is no more than two standard errors better, and less safe"
        against_top = f"against {top.label}, in nats a datum, higher is better"
        return words + (f" ({against_top}: {others})" if others else "")

    def __repr__(self) -> str:
        header = [
            "prior",
            "log density (higher is better)",
            "minus the best",
            "outside 90 %",
            "noise",
            "data",
        ]
        header += ["applications", "seconds", ""]
        lines = [header]
        for i, row in enumerate(self.rows):
            best = i == self.chosen
            less = "" if row.difference == 0 else f"{row.difference:+.3f} +- {row.standard_error:.3f}"
            lines.append(
                [
                    row.label,
                    f"{row.density:.3f}",
                    less,
                    f"{100 * row.outside:.0f} %",
                    f"{row.noise_std:.3g}",
                    str(row.count),
                    f"{row.applications:.0f}",
                    f"{row.seconds:.2f}",
                    "chosen" if best else "",
                ]
            )
        widths = [max(len(line[k]) for line in lines) for k in range(len(header))]
        text = [
            "  ".join(
                cell.ljust(w) if k == 0 else cell.rjust(w)
                for k, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join(line.rstrip() for line in text)


def against(difference: float, error: float) -> str:
    """Write a mean difference of log densities, of which more is better, with its standard error.

    Examples
    --------
    >>> against(-0.1234, 0.0456)
    '-0.12 +- 0.05'
    """
    return f"{difference:+.2g} +- {error:.1g}"


def standard_error(gain: np.ndarray) -> float:
    """Return the standard error of a mean difference.

    Examples
    --------
    >>> import numpy as np
    >>> standard_error(np.array([1.0, 3.0]))
    1.0
    """
    return float(np.std(gain, ddof=1)) / gain.size**0.5 if gain.size > 1 else float("inf")
