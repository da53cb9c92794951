"""Four CPU devices, and strictness that catches mistakes: set before jax starts."""

import jax

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
