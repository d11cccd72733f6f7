"""torch on CPU: under vmap group_norm, batch_norm in evaluation and instance_norm round between their steps in 16 bit.

The ordinary call rounds once. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import batch_norm, group_norm, instance_norm

generator = torch.Generator().manual_seed(0)
x = torch.randn(3, 2, 32, 8, generator=generator).bfloat16() + 2
w, b, mean = (torch.randn(32, generator=generator).bfloat16() for _ in range(3))
var = torch.rand(32, generator=generator).bfloat16() + 0.5

norms = {
    "group_norm": lambda x, w, b, mean, var: group_norm(x, 4, w, b),
    "batch_norm in evaluation": lambda x, w, b, mean, var: batch_norm(x, mean, var, w, b),
    "instance_norm in evaluation": lambda x, w, b, mean, var: instance_norm(x, mean, var, w, b, use_input_stats=False),
}
shown = False
for name, norm in norms.items():
    exact = torch.stack([norm(*(a.double() for a in (row, w, b, mean, var))) for row in x])
    size = exact.abs().clamp(min=1)
    plain = torch.stack([norm(row, w, b, mean, var) for row in x])
    mapped = torch.vmap(lambda row, norm=norm: norm(row, w, b, mean, var))(x)
    error = [((y.double() - exact).abs() / size).max().item() for y in (mapped, plain)]
    print(f"{name} bfloat16: error under vmap={error[0]:.2g}, but should be {error[1]:.2g} as without")
    shown |= error[0] > 1.5 * error[1]
w, b = torch.ones(32), torch.zeros(32)
dtype = torch.vmap(lambda row: instance_norm(row, weight=w, bias=b))(x).dtype
print(
    f"instance_norm with float32 weights: dtype under vmap={dtype}, but should be {instance_norm(x[0], weight=w, bias=b).dtype}"
)
sys.exit(shown or dtype != torch.bfloat16)
