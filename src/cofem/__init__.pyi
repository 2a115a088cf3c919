from . import experiments as experiments
from . import operators as operators
from . import plotting as plotting
from ._fit import fit as fit
from ._packing import packable as packable
from .estimators import RVMRegressor as RVMRegressor
from .estimators import SBLRegressor as SBLRegressor
from .inference.amp import AMP as AMP
from .inference.checkpoint import CheckpointWarning as CheckpointWarning
from .inference.covariance_free import CoFEM as CoFEM
from .inference.em import EM as EM
from .inference.irls import IRLS as IRLS
from .inference.record import FitInterrupted as FitInterrupted
from .inference.seq import Seq as Seq
from .inference.vi import VI as VI
from .operators import as_operator as as_operator
from .posterior import Posterior as Posterior
from .posterior.file import load as load
from .priors import Block as Block
from .priors import Independent as Independent
from .priors import MultiTask as MultiTask
from .priors import PatternCoupled as PatternCoupled
from .status import ConvergenceWarning as ConvergenceWarning
from .status import Status as Status
from .status import StatusCode as StatusCode

__version__: str
