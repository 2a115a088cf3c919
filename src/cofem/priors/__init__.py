"""Priors: who shares a precision, and how precisions follow from second moments. One file each."""

from cofem.priors.base import Independent, Prior, RowLayout
from cofem.priors.block import Block
from cofem.priors.laplace import Laplace
from cofem.priors.multitask import MultiTask
from cofem.priors.neighbours import Neighbours
from cofem.priors.pattern import PatternCoupled
from cofem.priors.power import Power
from cofem.priors.sparser import Sparser

#: The priors by name.
PRIORS: dict[str, type[Prior]] = {
    prior.name: prior
    for prior in (Independent, MultiTask, Block, Power, Sparser, Laplace, PatternCoupled, Neighbours)
}

__all__ = [
    "PRIORS",
    "Block",
    "Independent",
    "Laplace",
    "MultiTask",
    "Neighbours",
    "PatternCoupled",
    "Power",
    "Prior",
    "RowLayout",
    "Sparser",
]
