"""What a project that builds optimizers from configuration offers to be run.

Each file in `projects` is one project, and imports it inside of its functions only;
these are called in the folder of its sources:

    PROJECT: a `Project`, where it is and what it needs
    optimizers() -> {name: maker}: each maker builds an optimizer by the project's own
        factory, from one of its default configurations
    schedules() -> {name: maker}: the same for learning rate schedules (optional)
    patch(): mends what of its environment is missing, before anything else is imported,
        the same with Optax and with Stepax, and listed in `PROJECT.patched` (optional)
    train(optimizer) -> tree of arrays: trains a small model 20 steps, if optimizers are
        no pairs of `init` and `update` as Optax's, or take other trees (optional)

`python -m benchmarks.downstream --library NAME --sources FOLDER --python PYTHON` runs
it on sources that lie in FOLDER/NAME, with packages that are installed already.
"""

import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import NamedTuple


STEPS = 20


class Project(NamedTuple):
    """A project, and how it is run.

    repository, commit: on GitHub.
    packages: what it needs, as `pip` takes it, beside JAX, Optax 0.2.8 and pytest.
    python: the version that it needs; the running one by default.
    path: folder of its sources from which its modules are imported.
    tests: its own tests of optimizers, as pytest takes them; files or options.
    patched: what of its environment `patch` mends, one sentence each.
    stubs: packages that it imports and does not use here, replaced by empty ones.
    explained: why results differ by more than 1e-5, by the name of an optimizer, or
        why a test fails, by its name.
    """

    repository: str
    commit: str
    packages: str = ""
    path: str = "."
    python: str = ""
    tests: tuple[str, ...] = ()
    patched: tuple[str, ...] = ()
    stubs: tuple[str, ...] = ()
    explained: Mapping[str, str] = MappingProxyType({})

    @property
    def address(self) -> str:
        return f"https://github.com/{self.repository}"


class _Names(type):
    """Of a class whose attributes are such classes, too."""

    def __getattr__(cls, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return _Names(name, (_Empty,), {})


class _Empty:
    """What is called, and has attributes, without effect."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args, **kwargs):
        return self


class _Stub(ModuleType):
    """An empty package, whose names are classes and whose modules are empty."""

    __path__ = []
    __version__ = "0"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, _Names(name, (_Empty,), {}))
        return vars(self)[name]


class _Finder:
    """Finds stubs, and the modules below them."""

    def __init__(self, names: tuple[str, ...]):
        self.names = names

    def find_spec(self, fullname, path=None, target=None):
        found = any(fullname == x or fullname.startswith(f"{x}.") for x in self.names)
        return ModuleSpec(fullname, self, is_package=True) if found else None

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        pass


def put_replicated() -> None:
    """Put `jax.device_put_replicated`, which JAX removed, back."""
    import jax
    import jax.numpy as jnp

    def replicated(tree, devices):
        copies = lambda x: jnp.broadcast_to(x, (len(devices), *jnp.shape(x)))
        return jax.tree.map(copies, tree)

    jax.device_put_replicated = replicated


def stub(names: tuple[str, ...]) -> None:
    """Make these packages empty ones."""
    sys.meta_path.insert(0, _Finder(names))
