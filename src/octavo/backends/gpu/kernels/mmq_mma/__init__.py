"""Products with some tokens by `mma.sync`: the kernel, what a lane decodes, and the instructions."""
