"""Matrix optimizers in plain PyTorch: transcriptions of the authors' equations.

Each steps one matrix, in place where PyTorch has such an operation.  `python -m
studies.matrix_torch --check` replays the authors' trajectories with them.
"""

from collections.abc import Callable
from typing import Any

import torch


STEPS = (3.4445, -4.775, 2.0315)


def orthogonal(x: torch.Tensor, eps: float) -> torch.Tensor:
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (x.norm() + eps)
    a, b, c = STEPS
    for _ in range(5):
        s = x @ x.T
        x = torch.addmm(x, torch.addmm(s, s, s, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


class Muon:
    """For matrices of (inputs, outputs), as in JAX."""

    def __init__(self, p, rate=0.02, b1=0.95, decay=0.0, eps=1e-7):
        self.p, self.rate, self.b1, self.decay, self.eps = p, rate, b1, decay, eps
        self.mu = torch.zeros_like(p)
        self.factor = max(1, p.shape[1] / p.shape[0]) ** 0.5

    def direction(self, g):
        self.mu.lerp_(g, 1 - self.b1)
        return orthogonal(g.lerp(self.mu, self.b1), self.eps)

    def step(self, g):
        u = self.direction(g)
        self.p.mul_(1 - self.rate * self.decay).add_(u, alpha=-self.rate * self.factor)


class NorMuon(Muon):
    def __init__(self, p, rate=0.02, b1=0.95, b2=0.95, decay=0.0):
        super().__init__(p, rate, b1, decay)
        self.b2, self.nu = b2, torch.zeros_like(p[0])

    def direction(self, g):
        o = super().direction(g)
        self.nu.lerp_(o.square().mean(0), 1 - self.b2)
        u = o / (self.nu.sqrt() + 1e-10)
        return u.mul_(o.norm() / (u.norm() + 1e-10))


class Soap:
    """With both of Adam's means in the eigenbases: fewer products than the authors'."""

    def __init__(
        self, p, rate=3e-3, b1=0.95, b2=0.95, decay=0.01, every=10, most=10000
    ):
        self.p, self.rate, self.decay, self.every = p, rate, decay, every
        self.b1, self.b2, self.t = b1, b2, 0
        self.axes = [k for k in range(p.ndim) if p.ndim > 1 and p.shape[k] <= most]
        self.mu, self.nu = torch.zeros_like(p), torch.zeros_like(p)
        square = lambda k: p.new_zeros(p.shape[k], p.shape[k])
        self.stats = {k: square(k) for k in self.axes}
        self.bases = {k: square(k) for k in self.axes}

    def turned(self, x, is_back=False):
        for k, q in self.bases.items():
            q = q.T if is_back else q
            x = q.T @ x if k == 0 else x @ q
        return x

    def renewed(self, g):
        for k, s in self.stats.items():
            s.lerp_(g @ g.T if k == 0 else g.T @ g, 1 - self.b2)

    def step(self, g):
        if self.t == 0:
            self.t = 1
            self.renewed(g)
            for k, s in self.stats.items():
                self.bases[k] = torch.linalg.eigh(s)[1].flip(1)
            return
        x, b1, b2, t = self.turned(g), self.b1, self.b2, self.t
        self.mu.lerp_(x, 1 - b1)
        self.nu.mul_(b2).addcmul_(x, x, value=1 - b2)
        u = self.turned(self.mu / self.nu.sqrt().add_(1e-8), is_back=True)
        size = self.rate * (1 - b2**t) ** 0.5 / (1 - b1**t)
        self.p.add_(u, alpha=-size).mul_(1 - self.rate * self.decay)
        self.renewed(g)
        if t % self.every == 0:
            self.turn()
        self.t += 1

    def turn(self):
        mu = self.turned(self.mu, is_back=True)
        for k, s in self.stats.items():
            q = self.bases[k]
            order = torch.argsort((q * (s @ q)).sum(0), descending=True)
            self.nu = self.nu.index_select(k, order)
            self.bases[k] = torch.linalg.qr(s @ q[:, order])[0]
        self.mu = self.turned(mu)


class Shampoo:
    """Distributed Shampoo's equations, grafted to Adam."""

    def __init__(self, p, rate=1e-2, b1=0.9, b2=0.999, eps=1e-10, decay=0.0, every=10):
        self.p, self.rate, self.decay, self.every = p, rate, decay, every
        self.b1, self.b2, self.eps, self.t = b1, b2, eps, 0
        self.mu, self.nu = torch.zeros_like(p), torch.zeros_like(p)
        square = lambda n: p.new_zeros(n, n)
        self.stats = [square(n) for n in p.shape]
        self.roots = [torch.eye(n, dtype=p.dtype) for n in p.shape]

    def step(self, g):
        self.t += 1
        t, b1, b2 = self.t, self.b1, self.b2
        self.stats[0].lerp_(g @ g.T, 1 - b2)
        self.stats[1].lerp_(g.T @ g, 1 - b2)
        if t % self.every == 0 or t == 1:
            self.roots = [self.root(s, 1 - b2**t) for s in self.stats]
        f = self.mu.lerp(g, 1 - b1) / (1 - b1**t)
        self.mu.lerp_(g, 1 - b1)
        self.nu.mul_(b2).addcmul_(g, g, value=1 - b2)
        like = f / (self.nu / (1 - b2**t)).sqrt_().add_(1e-8)
        u = self.roots[0] @ f @ self.roots[1]
        u.mul_(like.norm() / (u.norm() + 1e-16)).add_(self.p, alpha=self.decay)
        self.p.add_(u, alpha=-self.rate)

    def root(self, s, correction):
        values, vectors = torch.linalg.eigh(s / correction)
        values = values - values[0].clamp(max=0) + self.eps
        return (vectors * values**-0.25) @ vectors.T


class Kron:
    """PSGD with two triangular factors, which are fitted in each step."""

    def __init__(self, p, rate=3e-4, b1=0.9, decay=0.0, draw=torch.randn):
        self.p, self.rate, self.b1, self.decay, self.t = p, rate, b1, decay, 0
        self.mu, self.draw = torch.zeros_like(p), draw
        self.factors = [torch.eye(n, dtype=p.dtype) for n in p.shape]

    def step(self, g):
        self.t += 1
        self.mu.lerp_(g, 1 - self.b1)
        x = self.mu / (1 - self.b1**self.t)
        v = self.draw(x.shape, dtype=x.dtype)
        x.add_(v * x.abs().mean(), alpha=2**-11.5)
        left, right = self.factors
        a = left @ x @ right.T
        solve = torch.linalg.solve_triangular
        b = solve(left.T, v, upper=False)
        b = solve(right.T, b.T, upper=False).T
        pairs = (a @ a.T, b @ b.T), (a.T @ a, b.T @ b)
        self.factors = [
            q - 0.1 / _bound(s + r) * torch.triu(s - r) @ q
            for q, (s, r) in zip(self.factors, pairs, strict=True)
        ]
        left, right = self.factors
        u = left.T @ (left @ x @ right.T) @ right
        rms = u.square().mean().sqrt()
        u.mul_((1.1 / (rms + 1e-12)).clamp(max=1)).add_(self.p, alpha=self.decay)
        self.p.add_(u, alpha=-self.rate)


def _bound(s):
    top = s.abs().max()
    s = s / top
    x = s @ s[:, s.square().sum(0).argmax()]
    return (s @ (x / x.norm())).norm() * top


MADE: dict[str, Callable[..., Any]] = {
    "muon": Muon,
    "normuon": NorMuon,
    "soap": Soap,
    "shampoo": Shampoo,
    "psgd_kron": Kron,
}
