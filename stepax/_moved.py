"""Where modules have gone to, for pickles that name them as they were called then.

A pickle holds each class and function by its name and its module.  When one of these is
moved, states and optimizers that were saved before must still load.  A finder, last on
`sys.meta_path`, answers for a module that is no more with one that has no content: each
name is looked up in its new home.  It is asked only when all others have found nothing,
so it costs nothing until an old pickle is read.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


# Old to new, below `stepax`.  A module comes first; a name in it needs a row of its own
# only if it is called otherwise now, or is not in the new home of its module:
#
#     "_engine.recipe._titled": "_engine.factories.recipe.retitled",
#
# Modules are missing that define nothing that a pickle could hold.
MOVED = {
    "_engine.apply": "_engine.trees.apply",
    "_engine.chain": "_wrappers.chain",
    "_engine.describe": "_engine.inspect.describe",
    "_engine.hyper": "_wrappers.inject",
    "_engine.migrate": "_engine.trees.migrate",
    "_engine.numerics": "_engine.arrays.numerics",
    "_engine.packed": "_engine.trees.packed",
    "_engine.packing": "_engine.trees.pack",
    "_engine.partition": "_wrappers.partition",
    "_engine.protocol": "_engine.base.protocol",
    "_engine.recipe": "_engine.factories.recipe",
    "_engine.reduce": "_engine.trees.reduce",
    "_engine.search": "_engine.trees.search",
    "_engine.stateful": "_engine.base.stateful",
    "_engine.strict": "_engine.inspect.keywords",
    "_engine.tree_means": "_engine.trees.running_means",
    "_engine.values": "_engine.inspect.hyperparams",
    "_optimizers.lookahead": "_wrappers.lookahead",
    "_optimizers.mechanic": "_wrappers.mechanic",
    "_optimizers.sam": "_wrappers.sam",
    "_transforms.accumulate": "_wrappers.accumulate",
    "_transforms.average": "_wrappers.average",
    "_transforms.conditional": "_wrappers.conditional",
    "_transforms.finite": "_wrappers.finite",
    "_transforms.layout": "_wrappers.flatten",
    "_transforms.loss_scale": "_wrappers.loss_scale",
    "_transforms.master": "_wrappers.master",
    "_transforms.monitor": "_wrappers.monitor",
    "_transforms.spikes": "_wrappers.spikes",
    "_transforms.split_complex": "_wrappers.split_complex",
    "_transforms.state_dtypes": "_wrappers.state_dtypes",
    "_transforms.stochastic": "_wrappers.stochastic",
}


class _Moved(ModuleType):
    """Stands in for a module that has moved."""

    def __getattr__(self, name: str) -> object:
        old = self.__name__.partition(".")[2]
        new = MOVED.get(f"{old}.{name}", f"{MOVED[old]}.{name}")
        home, _, attribute = f"stepax.{new}".rpartition(".")
        return getattr(import_module(home), attribute)


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of `MOVED`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        package, _, old = name.partition(".")
        is_known = package == "stepax" and old in MOVED
        return ModuleSpec(name, self) if is_known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Moved(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it has no content."""


sys.meta_path.append(_Finder())
