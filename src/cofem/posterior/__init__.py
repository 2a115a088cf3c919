"""What a fit returns: moments, intervals, samples, covariances, prediction, and its file."""

from cofem.posterior.posterior import Posterior
from cofem.posterior.tasks import join_tasks, split_tasks

__all__ = ["Posterior", "join_tasks", "split_tasks"]
