"""torch on CPU: running statistics that are kept in 16 bit are updated in 16-bit arithmetic, not rounded once.

Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch

module = torch.nn.BatchNorm1d(1).bfloat16()
module.running_mean.fill_(4.0)
x = torch.full((24, 1), 0.7).bfloat16()
module(x)
exact = 0.9 * 4.0 + 0.1 * x.double().mean().item()
rounded = torch.tensor(exact, dtype=torch.float64).to(torch.bfloat16).item()
print(f"running_mean={module.running_mean.item()}, but should be {rounded}, the rounding of {exact:.6g}")
sys.exit(module.running_mean.item() != rounded)
