"""Living beside other libraries: one module for each, imported where it is needed."""
