"""torch: activation checkpointing runs the forward pass twice, and BatchNorm updates its running statistics each time.

Output and gradients are right. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.utils.checkpoint import checkpoint

x = torch.tensor([[2.0], [4.0]], requires_grad=True)
plain, again = torch.nn.BatchNorm1d(1), torch.nn.BatchNorm1d(1)
plain(x).square().sum().backward()
checkpoint(again, x, use_reentrant=False).square().sum().backward()
mean, count = again.running_mean.item(), int(again.num_batches_tracked)
print(f"running_mean={mean}, but should be {plain.running_mean.item()}; num_batches_tracked={count}, but should be 1")
sys.exit(mean != plain.running_mean.item() or count != 1)
