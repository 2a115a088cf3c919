"""Checkpoints: how far a fit has come, in a file, so that a fit that was killed goes on to the same result.

A fit is a sequence of runs of the one outer loop, its *stages*: ``0/noise/1/0`` learns the noise of the first
task with the first part of the data held out, from the first start; ``0/fit`` is the fit itself. The file
holds what came out of the stages that are done, where the one under way stands (a `Record`) and the state of
the random generator. A fit that is resumed walks through the same stages, takes the ones that are done from
the file, and steps on from the record. It is an ``.npz`` file of arrays and JSON, without pickle.
"""

from cofem.inference.checkpoint.fingerprint import describe
from cofem.inference.checkpoint.keeper import Every, Keeper
from cofem.inference.checkpoint.store import CheckpointWarning, read

__all__ = ["CheckpointWarning", "Every", "Keeper", "describe", "read"]
