"""Programs that train without an error, and worse than they should.

`docs/mistakes.md` and the tests share this table: `python -m tests.museum`
measures what each cure does better, and writes the page.
"""
