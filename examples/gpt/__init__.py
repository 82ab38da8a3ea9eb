"""A small GPT, in Flax nnx and in Equinox, trained by Muon and by AdamW.

    python -m examples.gpt

from the root of the repository; `--help` lists the options.
"""
