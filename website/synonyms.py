"""Words that users of other libraries search by, and that a page does not contain.

The search finds what has all words of a query, so that one strange word finds nothing.
"""

SYNONYMS = {
    "accumulation/": "effective batch size",
    "averages/": "exponential moving average, Polyak averaging, target network",
    "bounds/": "projected gradient, proximal gradient, penalty method, barrier",
    "checkpoints/": "load_state_dict, ModelCheckpoint, pickle, Orbax",
    "clipping/": "exploding gradients, clip_grad_norm_",
    "distributed/": "multi GPU, multiple GPUs, TPU, pmap, data parallel, FSDP, ZeRO,"
    " zero redundancy",
    "faq/": "tree structure mismatch, error message",
    "from_optax/": "Haiku, mypy, pyright, type hints",
    "from_pytorch/": "optimizer.step(), loss.backward(), param_groups, requires_grad",
    "from_scipy/": "OptimizeResult, Nelder-Mead, differential evolution, simulated "
    "annealing, dual_annealing, basinhopping, curve fitting, minimize_scalar",
    "gauss_newton/": "natural gradient, KFAC",
    "how/": "EarlyStopping, patience",
    "limits/": "derivative-free: Nelder-Mead, differential evolution",
    "logging/": "wandb, TensorBoard, MLflow",
    "masks/": "transfer learning, fine-tuning, frozen layers, "
    "different learning rates, LoRA",
    "memory/": "out of memory, OOM, mu_dtype, quantization",
    "minimize/": "trust region, quasi-Newton, convergence tolerance, gtol, ftol",
    "precision/": "fp16, bf16, half precision, autocast, AMP, dtype of the moments",
    "rates/": "different, discriminative learning rates, layerwise lr decay",
    "reference/losses/": "MSE, mean squared error, MAE, L1 loss",
    "reference/optimizers/": "optimiser",
    "reference/solving/": "proximal gradient, ISTA, FISTA, lasso",
    "schedules/": "cosine annealing, warm restarts, learning rate scheduler",
    "solving/": "Levenberg-Marquardt, root finding, zeros of a function, "
    "trust region, covariance, implicit differentiation",
    "support/": "GitHub, bug report",
    "sweep/": "hyperparameter tuning, hyperparameter search",
    "which/": "optimiser, best optimizer, LLM, GAN",
    "with_keras/": "model.compile, model.fit",
}
# In the title of a card, which is the name of a function.
NAMES = {
    "cards/adamw/": "Adam with decoupled weight decay",
    "cards/lbfgs/": "limited-memory BFGS",
    "cards/rprop/": "resilient backpropagation",
    "cards/sgd/": "SGD with momentum",
}
