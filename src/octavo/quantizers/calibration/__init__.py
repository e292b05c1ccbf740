"""What a model's products are given over a text: statistics of their inputs, and Hessians."""

from octavo.quantizers.calibration.channels import ChannelStatistics
from octavo.quantizers.calibration.factor import Factor, factorize
from octavo.quantizers.calibration.hessian import CrossHessian, Hessian

__all__ = ["ChannelStatistics", "CrossHessian", "Factor", "Hessian", "factorize"]
