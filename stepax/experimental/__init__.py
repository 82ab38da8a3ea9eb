"""What may still change: names only."""

from . import aggregating as aggregating
