"""Set before jax starts: four devices, quick compilations that are kept, strictness that catches mistakes."""

import os
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
jax.config.update("jax_numpy_rank_promotion", "raise")
