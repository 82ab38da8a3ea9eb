"""The public modules of Stepax, and those that Optax has, too."""

import pkgutil

import stepax


PUBLIC = sorted(
    module.name
    for module in pkgutil.walk_packages(stepax.__path__, "stepax.")
    if "._" not in module.name
)
PUBLIC.insert(0, "stepax")

# The ends of names that both libraries have.
MODULES = [
    "",
    ".assignment",
    ".contrib",
    ".losses",
    ".microbatching",
    ".perturbations",
    ".projections",
    ".schedules",
    ".second_order",
    ".transforms",
    ".tree",
    ".tree_utils",
]
