"""Types for a wished size: what each tensor may become, what that would cost, and the cheapest that fits."""

from octavo.quantizers.fit.fit import GUESSED, MEASURED, Fit, Fitted, Target, fit_types, parse_size, quantize_to_size

__all__ = ["GUESSED", "MEASURED", "Fit", "Fitted", "Target", "fit_types", "parse_size", "quantize_to_size"]
