"""torch on CPU: its norms accept a negative eps, and NaN; rows whose variance is smaller than -eps become NaN, others look right.

batch_norm refuses what is negative and accepts NaN. Exits with 1 where the fault shows, with 0 where it is mended.
"""

import sys

import torch
from torch.nn.functional import batch_norm, group_norm, instance_norm, layer_norm, normalize, rms_norm

x = torch.tensor([0.1, 0.5, 1.0, 3.0])[:, None] * torch.tensor([1.0, -1.0, 1.0, -1.0])
calls = {
    "layer_norm": lambda eps: layer_norm(x, (4,), eps=eps),
    "rms_norm": lambda eps: rms_norm(x, (4,), eps=eps),
    "group_norm": lambda eps: group_norm(x[:, None], 1, eps=eps),
    "instance_norm": lambda eps: instance_norm(x[:, None], eps=eps),
    "normalize": lambda eps: normalize(x, eps=eps),
    "batch_norm": lambda eps: batch_norm(x.t(), None, None, training=True, eps=eps),
    "torch.nn.LayerNorm": lambda eps: torch.nn.LayerNorm(4, eps=eps)(x),
}
shown = False
for name, call in calls.items():
    for eps in (-1.0, float("nan")):
        try:
            lost = int((~torch.isfinite(call(eps).detach())).any(-1 if name != "batch_norm" else 0).sum())
        except (ValueError, RuntimeError) as error:
            print(f"{name}: eps={eps} is refused: {error}")
            continue
        print(f"{name}: eps={eps} is accepted, {lost} of 4 rows are not finite; it should be refused")
        shown = True
sys.exit(shown)
