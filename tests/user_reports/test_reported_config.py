"""What users report of optimizers that are made from configuration files."""

import json

import pytest
from library import optax


row = pytest.mark.row


@row("Optimizers as configuration", optax="fails")
def test_an_optimizer_is_data_and_comes_back():
    # facebookresearch/hydra#1715, ecmwf/anemoi-core#588, google-deepmind/optax#577
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-3, 100, 1000)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.95))
    assert optax.from_config(json.loads(json.dumps(optax.to_config(tx)))) == tx


@row("Optimizers as configuration", optax="fails")
def test_a_configuration_runs_no_other_code():
    with pytest.raises(ValueError, match="not a name in the registry"):
        optax.from_config({"_target_": "os.system", "_args_": ["true"]})
