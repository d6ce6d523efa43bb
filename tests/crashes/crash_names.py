"""Names of crashing kernels, for tests to parametrize over without importing Triton."""

# And the stage in which they end the process.
DEADLY = {"too-many-constraints": "llir", "unknown-operand": "ptx", "narrow-register": "ptx", "read-here": "ptx"}
