"""How many words a page of the site has, as its reader sees them."""

from html.parser import HTMLParser


# Whose text goes on in the same word, such as coloured parts of a program.
INLINE = {"a", "b", "code", "em", "i", "span", "strong", "sub", "sup", "tspan"}
UNREAD = {"script", "style", "svg"}


class Article(HTMLParser):
    """The text of the `article` of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside, self.unread = False, 0
        self.parts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        self.inside = self.inside or tag == "article"
        self.unread += tag in UNREAD
        self.parts += [] if tag in INLINE else [" "]

    def handle_endtag(self, tag) -> None:
        self.inside = self.inside and tag != "article"
        self.unread -= tag in UNREAD
        self.parts += [] if tag in INLINE else [" "]

    def handle_data(self, data) -> None:
        self.parts += [data] if self.inside and not self.unread else []


def words(page: str) -> int:
    """The words of a built page, with those of its programs and tables."""
    return len("".join(Article(page).parts).split())
