"""The exhibits, by the codes of `diagnose`."""

from .programs_of_numbers import NUMBERS, SCHEDULES
from .programs_of_parameters import DECAYS, LAYERS, MATRIX, PATTERNS
from .programs_of_steps import CLIPS, RATES


EXHIBITS = RATES + CLIPS + MATRIX + LAYERS + DECAYS + PATTERNS + NUMBERS + SCHEDULES
