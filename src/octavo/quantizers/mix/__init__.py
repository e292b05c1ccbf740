"""Which type each tensor of a model gets, by presets and rules."""
