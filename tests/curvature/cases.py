"""Small nets in float64 with trained-looking weights, and their matrices written out."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev

from trueup import losses

FOCAL = ("cross-entropy", "focal:0.5", "focal:1", "focal:3")


def mlp():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 4))


def relu_mlp():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))


def cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.Conv1d(4, 4, 2), nn.Flatten(), nn.Linear(8, 4)
    )


def batch_norm():
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.GELU(), nn.Linear(6, 4))


def tied():
    return Tied()


class Tied(nn.Module):
    """One matrix used twice: a net of linear steps that is not linear in it."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x):
        return self.outer(self.inner(torch.relu(self.inner(x))))


def wide_mlp():
    return nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 4))


def wide_cnn():
    return nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 12, 3), nn.ReLU(), nn.Conv1d(12, 10, 2), nn.Flatten(), nn.Linear(20, 4)
    )


def wide_batch_norm():
    return nn.Sequential(nn.Linear(5, 36), nn.BatchNorm1d(36), nn.GELU(), nn.Linear(36, 4))


NETS = {"mlp": mlp, "relu-mlp": relu_mlp, "cnn": cnn, "batch-norm": batch_norm, "tied": tied}
WIDE = {"wide-mlp": wide_mlp, "wide-cnn": wide_cnn, "wide-batch-norm": wide_batch_norm}
"""With more parameters than the largest space that a trace is exact in."""
SAMPLES = 30


@functools.cache
def case(name="mlp", seed=0, dtype=torch.float64):
    """(model in train mode, batches of unlike sizes), fitted for some steps so that samples are sure and unsure."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, 5, generator=generator, dtype=torch.float64)
    y = (x[:, :4] + 0.7 * torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)).argmax(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = (NETS | WIDE)[name]().double().train()
        optimiser = torch.optim.Adam(model.parameters(), 0.03)
        for _ in range(60):
            optimiser.zero_grad()
            losses.CrossEntropy()(model(x), y).backward()
            optimiser.step()
        optimiser.zero_grad()
    x = x.to(dtype)
    return model.to(dtype), [(x[:17], y[:17]), (x[17:], y[17:])]


def written_out(model, loss, data, matrix="hessian"):
    """(P, P) float64 from the definition: torch.func over all samples at once."""
    was = model.training
    model.eval()
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    sizes = [w.numel() for w in weights.values()]
    flat = torch.cat([w.reshape(-1) for w in weights.values()])

    def network(vector):
        parts = zip(weights, vector.split(sizes), strict=True)
        return functional_call(model, {k: part.reshape(weights[k].shape) for k, part in parts}, (x,))

    if matrix == "hessian":
        found = hessian(lambda vector: loss(network(vector), y))(flat)
    else:
        logits, jacobian = network(flat), jacrev(network)(flat)
        if matrix == "fisher":
            p = logits.softmax(1)
            blocks = (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)) / len(x)
            found = torch.einsum("nkp,nkl,nlq->pq", jacobian, blocks, jacobian)
        else:
            inner = hessian(lambda z: loss(z, y))(logits)
            found = torch.einsum("nkp,nkml,mlq->pq", jacobian, inner, jacobian)
    model.train(was)
    return found


class Dense:
    """A matrix that is there, behind the interface of one that is not."""

    def __init__(self, entries):
        self.entries, self.size, self.device = entries, len(entries), entries.device
        self.products = 0

    def rows(self, vectors):
        self.products += len(vectors)
        return vectors @ self.entries


def with_spectrum(eigenvalues, seed=0):
    generator = torch.Generator().manual_seed(seed)
    values = torch.as_tensor(eigenvalues, dtype=torch.float64)
    q = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)).Q
    return Dense((q * values) @ q.T)
