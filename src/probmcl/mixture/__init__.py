"""Stage 4: from a feature to a Gaussian mixture, and how alike two mixtures are."""

from probmcl.mixture.density import IsotropicMixture
from probmcl.mixture.network import MixtureDensityNetwork
from probmcl.mixture.similarity import aligned_correlation, correlation

__all__ = ["IsotropicMixture", "MixtureDensityNetwork", "aligned_correlation", "correlation"]
