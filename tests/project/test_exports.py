"""`make format` sorts the lists of public names."""

from loops import each

from benchmarks.exports import files, formatted


def test_a_new_name_may_stand_anywhere():
    old = '__all__ = [\n    "b", "C",\n    "a"\n]  # fmt: skip\n'
    new = '__all__ = [\n    "C", "a", "b",\n]  # fmt: skip\n'
    assert formatted(old) == formatted(new) == new
    assert formatted("__all__ = []\n") == "__all__ = []\n"


@each(files())
def test_lists_are_sorted(file):
    source = file.read_text()
    assert formatted(source) == source, f"run `make format`, which sorts {file.name}"
