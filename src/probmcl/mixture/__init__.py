"""Gaussian mixtures predicted from features, and the similarity of two mixtures."""

from probmcl.mixture.aligned import aligned_correlation
from probmcl.mixture.density import IsotropicMixture, MixtureDensityNetwork
from probmcl.mixture.kernels import KernelHeads, KernelMixture, kernel_bhattacharyya
from probmcl.mixture.similarity import SimilarityPlan, bhattacharyya, correlation, plan

__all__ = [
    "IsotropicMixture",
    "KernelHeads",
    "KernelMixture",
    "MixtureDensityNetwork",
    "SimilarityPlan",
    "aligned_correlation",
    "bhattacharyya",
    "correlation",
    "kernel_bhattacharyya",
    "plan",
]
