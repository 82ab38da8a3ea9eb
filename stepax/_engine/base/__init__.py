"""What a transformation is: the door to `protocol`."""

from .protocol import *  # noqa: F403 (all of its public names)
