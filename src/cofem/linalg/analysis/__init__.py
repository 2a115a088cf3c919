"""The posterior where the unknown itself is not sparse, but what an operator makes of it is."""

from cofem.linalg.analysis.rows import RowPart, Rows
from cofem.linalg.analysis.system import AnalysisSystem

__all__ = ["AnalysisSystem", "RowPart", "Rows"]
