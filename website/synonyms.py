"""Words that users of other libraries search by, and that a page does not contain.

The search finds what has all words of a query, so that one strange word finds nothing.
"""

SYNONYMS = {
    "bounds/": "projected gradient, proximal gradient",
    "checkpoints/": "load_state_dict",
    "clipping/": "exploding gradients, clip_grad_norm_",
    "distributed/": "multi GPU, multiple GPUs, TPU, pmap, data parallel, FSDP, ZeRO",
    "faq/": "tree structure mismatch, error message",
    "from_pytorch/": "optimizer.step(), loss.backward(), param_groups, requires_grad",
    "from_scipy/": "OptimizeResult, Nelder-Mead, differential evolution, simulated "
    "annealing, global optimization",
    "limits/": "derivative-free: Nelder-Mead, differential evolution",
    "logging/": "wandb, TensorBoard, MLflow",
    "masks/": "transfer learning, fine-tuning, different learning rates, LoRA",
    "memory/": "out of memory, OOM, mu_dtype",
    "minimize/": "trust region, quasi-Newton",
    "precision/": "fp16, bf16, half precision, autocast, AMP, dtype of the moments",
    "rates/": "different, discriminative learning rates",
    "reference/optimizers/": "optimiser",
    "reference/solving/": "proximal gradient, ISTA, FISTA, lasso",
    "schedules/": "cosine annealing, warm restarts, learning rate scheduler",
    "solving/": "root finding, zeros of a function, trust region, covariance, "
    "implicit differentiation",
    "sweep/": "hyperparameter tuning, hyperparameter search",
    "which/": "optimiser, best optimizer",
}
# In the title of a card, which is the name of a function.
NAMES = {
    "cards/lbfgs/": "limited-memory BFGS",
    "cards/rprop/": "resilient backpropagation",
    "cards/sgd/": "SGD with momentum",
}
