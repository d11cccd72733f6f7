"""torch: InstanceNorm with tracked statistics counts no batches, averages nothing at momentum=None, and updates when told not to.

Exits with 1 where the faults show, with 0 where they are mended.
"""

import sys

import torch

x = 3 + torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
counting = torch.nn.InstanceNorm2d(3, track_running_stats=True)
counting(x)
counting(x)
print(f"num_batches_tracked after two batches={int(counting.num_batches_tracked)}, but should be 2")

averaging = torch.nn.InstanceNorm2d(3, track_running_stats=True, momentum=None)
averaging(x)
mean = x.mean((0, 2, 3))
print(f"running_mean of the cumulative average={averaging.running_mean.tolist()}, but should be {mean.tolist()}")

switched = torch.nn.InstanceNorm2d(3, track_running_stats=True)
switched.track_running_stats = False
switched(x)
print(f"running_mean with tracking switched off={switched.running_mean.tolist()}, but should be [0.0, 0.0, 0.0]")
shown = int(counting.num_batches_tracked) != 2 or bool((averaging.running_mean == 0).any()) or bool(switched.running_mean.any())
sys.exit(shown)
