"""Flags of XLA under which tests run; as a script it prints them.

Programs of tests are small and run a few times: most of a test is their compilation,
which XLA's former emitter of fused loops does in half the time.  What `XLA_FLAGS` says
counts more, as in `XLA_FLAGS=--xla_cpu_use_fusion_emitters=true make test`.
"""

import importlib.metadata
import os


def flags(*more: str) -> str:
    """These flags and more, and those of the environment, which come last."""
    is_known = importlib.metadata.version("jaxlib").startswith("0.10.")
    quick = ["--xla_cpu_use_fusion_emitters=false"] if is_known else []
    return " ".join([*quick, *more, os.environ.get("XLA_FLAGS", "")]).strip()


if __name__ == "__main__":
    print(flags())
