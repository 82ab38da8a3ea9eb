"""FermiNet: training runs of small atoms by its first-order optimizers.

Walkers are moved by a Markov chain between steps.
"""

import tempfile
from functools import partial
from pathlib import Path

from ..project import STEPS, Project, put_replicated


PROJECT = Project(
    repository="google-deepmind/ferminet",
    commit="0ce3411104542e30723731c77e65c36977fb4d81",
    packages="attrs chex dm-haiku distrax folx h5py immutabledict ml_collections "
    "kfac_jax@git+https://github.com/google-deepmind/kfac-jax pandas pyblock pyscf "
    "tfp-nightly",
    patched=("`jax.device_put_replicated`, which JAX removed, is an array of copies",),
    tests=(
        "ferminet/tests/train_test.py",
        "-k",
        "test_training_step16 or test_training_step17 or test_training_step18",
    ),
)
ATOMS = ("H", "Li")
NAMES = ("adam", "lamb")


def patch():
    put_replicated()


def optimizers():
    return {
        f"{name}, {atom}": partial(settings, name, atom)
        for name in NAMES
        for atom in ATOMS
    }


def settings(name, atom):
    from ferminet.configs.atom import get_config

    config = get_config()
    config.system.atom = atom
    config.network.ferminet.hidden_dims = ((16, 4),) * 2
    config.network.determinants = 2
    config.batch_size = 32
    config.pretrain.iterations = 10
    config.mcmc.burn_in = 5
    config.optim.optimizer = name
    config.optim.iterations = STEPS
    config.debug.deterministic = True
    return config


def train(config):
    """The checkpoint at its end, and the energies."""
    import numpy as np
    from ferminet import base_config, checkpoint
    from ferminet.train import train as run

    with tempfile.TemporaryDirectory() as folder:
        config.log.save_path = folder
        config.log.save_frequency = 0  # minutes
        run(base_config.resolve(config))
        last = checkpoint.find_last_checkpoint(folder)
        params = checkpoint.restore(last, config.batch_size)[2]
        table = Path(folder, "train_stats.csv")
        energies = np.genfromtxt(table, delimiter=",", names=True)["energy"]
    return {"params": params, "energies": energies}
