"""Models fitted to the data sets included in scikit-learn.

No minimum of these is published.  Each is the lowest value that SciPy's L-BFGS-B and
trust region found with a gradient below 1e-9 or as small as rounding lets it be.
Nonconvex ones have several; a solver that reaches another one is told by its gradient.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from .problem import Problem, like, squares


@functools.cache
def data(name, scaled=True):
    """Features and targets; if scaled, columns have mean 0 and standard deviation 1."""
    from sklearn import datasets

    features, target = getattr(datasets, f"load_{name}")(return_X_y=True)
    if scaled:
        deviation = np.std(features, 0)
        features = (features - np.mean(features, 0)) / np.where(deviation, deviation, 1)
    return features, target


def start(*sizes):
    """Small initial weights, the same everywhere."""
    return 0.3 * np.random.default_rng(0).normal(size=sum(sizes))


def logistic(scaled, penalty):
    """Logistic regression of breast cancer on 30 features and an intercept."""
    features, target = data("breast_cancer", scaled)
    features = np.c_[features, np.ones(len(target))] * (2 * target[:, None] - 1.0)

    def fun(w):
        margin = jnp.matmul(like(w, features), w)
        return jnp.mean(jax.nn.softplus(-margin)) + 0.5 * penalty * squares(w)

    return fun, np.zeros(31)


def softmax(name, scaled, penalty):
    features, target = data(name, scaled)
    features = np.c_[features, np.ones(len(target))]
    one_hot = np.eye(target.max() + 1)[target]
    shape = features.shape[1], one_hot.shape[1]

    def fun(w):
        scores = jnp.matmul(like(w, features), w.reshape(shape))
        right = jnp.sum(scores * like(w, one_hot), -1)
        loss = jnp.mean(jax.nn.logsumexp(scores, -1) - right)
        return loss + 0.5 * penalty * squares(w)

    return fun, np.zeros(np.prod(shape))


def poisson():
    """Poisson regression of diabetes progression, from 25 to 346, with a log link."""
    features, target = data("diabetes")
    features = np.c_[features, np.ones(len(target))]

    def fun(w):
        rate = jnp.matmul(like(w, features), w)
        return jnp.mean(jnp.exp(rate) - like(w, target) * rate)

    return fun, np.zeros(11)


def ridge(name, scaled, penalty):
    features, target = data(name, scaled)
    features = np.c_[features, np.ones(len(target))]

    def fun(w):
        error = jnp.matmul(like(w, features), w) - like(w, target)
        return 0.5 * jnp.mean(error**2) + 0.5 * penalty * squares(w)

    return fun, np.zeros(features.shape[1])


def student():
    """Regression on diabetes with Student t errors, 3 degrees, learned scale."""
    features, target = data("diabetes")
    features = np.c_[features, np.ones(len(target))]
    target = (target - target.mean()) / target.std()

    def fun(w):
        error = jnp.matmul(like(w, features), w[:-1]) - like(w, target)
        return w[-1] + 2 * jnp.mean(jnp.log1p((error * jnp.exp(-w[-1])) ** 2 / 3))

    return fun, np.zeros(12)


def network(name, hidden, penalty):
    """One hidden tanh layer, then softmax."""
    features, target = data(name)
    one_hot = np.eye(target.max() + 1)[target]
    sizes = features.shape[1] * hidden, hidden, hidden * one_hot.shape[1]

    def fun(w):
        first, bias, last = jnp.split(w, np.cumsum(sizes)[:-1])
        inside = jnp.matmul(like(w, features), first.reshape(-1, hidden)) + bias[None]
        scores = jnp.matmul(jnp.tanh(inside), last.reshape(hidden, -1))
        right = jnp.sum(scores * like(w, one_hot), -1)
        loss = jnp.mean(jax.nn.logsumexp(scores, -1) - right)
        return loss + 0.5 * penalty * squares(w)

    return fun, start(*sizes)


def gaussian_process(points=100):
    """Marginal likelihood of diabetes: a length for each feature, signal and noise.

    Rasmussen and Williams, 2006, Gaussian processes for machine learning, (5.8).
    """
    features, target = data("diabetes")
    features, target = features[:points], target[:points]
    target = (target - target.mean()) / target.std()
    apart = (features[:, None] - features[None]) ** 2

    def fun(w):
        distances = jnp.tensordot(like(w, apart), jnp.exp(-2 * w[:10]), 1)
        noise = (jnp.exp(2 * w[11]) + 1e-5) * jnp.eye(points, dtype=w.dtype)
        root = jnp.linalg.cholesky(jnp.exp(2 * w[10] - 0.5 * distances) + noise)
        y = jax.scipy.linalg.solve_triangular(root, like(w, target), lower=True)
        return 0.5 * squares(y) + jnp.sum(jnp.log(jnp.diagonal(root)))

    return fun, np.r_[np.ones(10), 0, -1]


def factorisation(rank, penalty):
    """Of the first 200 digits."""
    images = data("digits", False)[0][:200] / 16
    sizes = 200 * rank, rank * 64

    def fun(w):
        left, right = jnp.split(w, [sizes[0]])
        product = jnp.matmul(left.reshape(200, rank), right.reshape(rank, 64))
        return 0.5 * squares(product - like(w, images)) + 0.5 * penalty * squares(w)

    return fun, start(*sizes)


def principal_components(rank):
    """The subspace of digits by its projector; Oja, 1982, DOI 10.1007/BF00275687."""
    features = data("digits")[0]
    covariance = features.T @ features / len(features)

    def fun(w):
        w = w.reshape(64, rank)
        gram = jnp.matmul(w.T, w)
        c = like(w, covariance)
        # |C - W W'|^2 without the constant |C|^2.
        return 0.25 * squares(gram) - 0.5 * jnp.sum(w * jnp.matmul(c, w))

    return fun, start(64 * rank)


def mixture(components):
    """A mixture of Gaussians with diagonal covariances, on irises."""
    features = data("iris")[0]
    d = features.shape[1]

    def fun(w):
        means, scales = w[: 2 * components * d].reshape(2, 1, components, d)
        weights = jax.nn.log_softmax(w[2 * components * d :])
        z = (like(w, features)[:, None] - means) * jnp.exp(-scales)
        logs = weights[None] - jnp.sum(0.5 * z**2 + scales, -1)
        # A prior on the scales: without it a component at one point is unbounded.
        return -jnp.mean(jax.nn.logsumexp(logs, -1)) + 0.05 * squares(scales)

    means = features[:: len(features) // components][:components].ravel()
    return fun, np.r_[means, np.zeros(components * d + components)]


def scaling():
    """Two coordinates for each iris, whose distances are those of the features.

    Takane, Young and de Leeuw, 1977, DOI 10.1007/BF02293745: squared stress.
    """
    features = data("iris")[0]
    apart = np.sum((features[:, None] - features[None]) ** 2, -1)

    def fun(w):
        at = w.reshape(-1, 2)
        found = jnp.sum((at[:, None] - at[None]) ** 2, -1)
        return squares(found - like(w, apart)) / apart.size

    return fun, start(2 * len(features))


def kernel_logistic(penalty):
    """Of the diagnosis of breast cancers, a weight for each of them."""
    features, target = data("breast_cancer")
    apart = np.sum((features[:, None] - features[None]) ** 2, -1)
    kernel, sign = np.exp(-apart / 60), 2.0 * target - 1

    def fun(w):
        scores = jnp.matmul(like(w, kernel), w)
        loss = jnp.mean(jax.nn.softplus(-like(w, sign) * scores))
        return loss + 0.5 * penalty * jnp.dot(w, scores)

    return fun, np.zeros(len(target))


def neural_ode(hidden=8, steps=20):
    """A network is the velocity, fitted to the spiral of Chen et al. 2018.

    arXiv:1806.07366, section 5.1 and its code's cubic field; fourth order Runge-Kutta.
    """
    matrix = np.array([[-0.1, 2.0], [-2.0, -0.1]])
    h = 0.05

    def step(field, y):
        a = field(y)
        b = field(y + h / 2 * a)
        c = field(y + h / 2 * b)
        return y + h / 6 * (a + 2 * b + 2 * c + field(y + h * c))

    y, path = np.array([2.0, 0.0]), []
    for _ in range(steps):
        y = step(lambda y: y**3 @ matrix, y)
        path.append(y)
    path = np.stack(path)
    sizes = 2 * hidden, hidden, 2 * hidden

    def fun(w):
        first, bias, last = jnp.split(w, np.cumsum(sizes)[:-1])
        first, last = first.reshape(2, hidden), last.reshape(hidden, 2)
        field = lambda y: jnp.matmul(jnp.tanh(jnp.matmul(y, first) + bias), last)
        move = lambda y, _: (step(field, y),) * 2
        found = jax.lax.scan(move, like(w, [2.0, 0.0]), None, steps)[1]
        return jnp.mean((found - like(w, path)) ** 2) + 1e-5 * squares(w)

    return fun, start(*sizes)


# Name, how it is made, the lowest value found.
TABLE = [
    ("logistic, breast cancer", lambda: logistic(True, 1e-3), 0.05982947188181),
    (
        "logistic, breast cancer, unscaled",
        lambda: logistic(False, 1e-5),
        0.06156081766584,
    ),
    ("kernel logistic, breast cancer", lambda: kernel_logistic(1e-3), 0.1703322183193),
    ("softmax, iris", lambda: softmax("iris", True, 1e-3), 0.113986602636),
    ("softmax, iris, unscaled", lambda: softmax("iris", False, 1e-4), 0.06333156841025),
    ("softmax, wine", lambda: softmax("wine", True, 1e-3), 0.02666492573796),
    ("softmax, wine, unscaled", lambda: softmax("wine", False, 1e-3), 0.05380288226245),
    ("softmax, digits", lambda: softmax("digits", True, 1e-3), 0.08752898364164),
    ("poisson, diabetes", poisson, -622.3926522593),
    ("ridge, diabetes", lambda: ridge("diabetes", True, 1e-3), 1443.418963559),
    (
        "ridge, breast cancer, unscaled",
        lambda: ridge("breast_cancer", False, 1e-3),
        0.03251357218218,
    ),
    ("student, diabetes", student, 0.1027151139214),
    ("network, wine", lambda: network("wine", 8, 1e-3), 0.01752789583255),
    ("network, digits", lambda: network("digits", 16, 1e-3), 0.07486005320624),
    ("gaussian process, diabetes", gaussian_process, 29.53845408972),
    ("factorisation, digits", lambda: factorisation(5, 0.1), 207.3888700126),
    ("principal components, digits", lambda: principal_components(3), -28.60863322276),
    ("mixture, iris", lambda: mixture(3), -0.2085345757338),
    ("scaling, iris", scaling, 0.1697282343311),
    ("neural ode, spiral", neural_ode, 0.001002221109618),
]
SOURCE = "scikit-learn's data; the minimum is the lowest value found by tight runs"


def collect() -> list[Problem]:
    found = []
    for name, make, minimum in TABLE:
        fun, x0 = make()
        found.append(Problem(name, fun, x0, minimum, SOURCE))
    return found
