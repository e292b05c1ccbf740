"""Architectures for Octavo that models are no longer released with: a short file each, as in `octavo.models`."""
