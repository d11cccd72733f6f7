"""torch: aten._batch_norm_with_update, to which exported graphs lower batch_norm, takes what batch_norm refuses or handles.

One value per channel makes running_var NaN, where batch_norm raises. Without a weight the backward pass raises.
Exits with 1 where it shows, with 0 where it is mended.
"""

import sys

import torch

update = torch.ops.aten._batch_norm_with_update
running_var = torch.ones(3)
update(torch.randn(1, 3), None, None, torch.zeros(3), running_var, 0.1, 1e-5)
print(f"running_var={running_var.tolist()} after one value per channel, but should be finite or refused")
x = torch.randn(4, 3, requires_grad=True)
y = update(x, None, None, torch.zeros(3), torch.ones(3), 0.1, 1e-5)[0]
try:
    y.sum().backward()
    raised = ""
except RuntimeError as error:
    raised = str(error).partition("\n")[0]
print(f"backward without a weight: {raised or 'gradients'}, but should be gradients")
sys.exit(bool(running_var.isnan().any()) or bool(raised))
