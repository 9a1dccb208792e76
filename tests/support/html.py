"""A strict reader of HTML: every element is closed, and ids are unique."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = frozenset(("meta", "link", "br", "img", "input"))


class Document(HTMLParser):
    """The elements with their attributes, and the text; that of scripts and styles is `raw`."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.raw: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"not closed: {self._open}"
        ids = [values["id"] for _, values in self.elements if "id" in values]
        assert len(ids) == len(set(ids)), "an id is used twice"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element of SVG that has no content."""
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which must be of this name."""
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        """Collect text."""
        if self._open and self._open[-1] in ("script", "style"):
            self.raw.append((self._open[-1], data))
        else:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of all elements of a name."""
        return [values for name, values in self.elements if name == tag]
