"""Flags of XLA under which tests run; as a script it prints them.

Programs of tests are small and run a few times: most of a test is their compilation.
One piece of code a program, and on JAX 0.10 XLA's former emitter of fused loops, take a
third of the time.  What `XLA_FLAGS` says counts more, as in
`XLA_FLAGS=--xla_cpu_use_fusion_emitters=true make test`.
"""

import importlib.metadata
import os


def flags(*more: str) -> str:
    """These flags and more, and those of the environment, which come last."""
    quick = ["--xla_cpu_parallel_codegen_split_count=1"]
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        quick += ["--xla_cpu_use_fusion_emitters=false"]  # unknown to later ones
    return " ".join([*quick, *more, os.environ.get("XLA_FLAGS", "")]).strip()


if __name__ == "__main__":
    print(flags())
