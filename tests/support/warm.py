"""What processes of :mod:`processes` begin with: imported once, with what a fit imports late."""

import torch
from fitting import QUICK, blobs, pair
from pyroccam import guides, inference, models
from torch import nn

torch.set_num_threads(1)
inference.fit(*pair(blobs()), blobs(), **QUICK)
NET = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
MODEL = models.BayesianNetwork(NET, blobs(), prior=models.priors.Normal(1.0))
inference.fit(MODEL, guides.MeanField(MODEL), blobs(), **QUICK)
