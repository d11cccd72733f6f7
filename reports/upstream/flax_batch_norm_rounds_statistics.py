"""flax: nnx.BatchNorm(dtype=bfloat16) rounds its float32 running statistics to 16 bit before it subtracts the mean.

linen.BatchNorm keeps them in float32. Where the mean is large beside the deviation, the rounding moves a channel by many
deviations in evaluation. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import jax.numpy as jnp
from flax import linen, nnx

mean, var = jnp.full(1, 1000.75, jnp.float32), jnp.ones(1, jnp.float32)
x = jnp.full((2, 1), 1000.0, jnp.bfloat16)

layer = nnx.BatchNorm(1, use_running_average=True, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
layer.mean, layer.var = nnx.BatchStat(mean), nnx.BatchStat(var)
got = float(layer(x)[0, 0])
state = {"params": {"scale": jnp.ones(1), "bias": jnp.zeros(1)}, "batch_stats": {"mean": mean, "var": var}}
other = float(linen.BatchNorm(use_running_average=True, dtype=jnp.bfloat16).apply(state, x)[0, 0])
print(f"y={got} for x=1000, running mean 1000.75 and variance 1, but should be about -0.75; linen gives {other}")
sys.exit(abs(got + 0.75) > 0.01)
