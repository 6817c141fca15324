# Written by scripts/derive_sync.py from _async/page.py: do not edit.
"""Lists that come in pages."""

from __future__ import annotations

from typing import Any, Iterator, Callable, Generic, Optional, TypeVar

T = TypeVar("T")


class Page(Generic[T]):
    """One page of a list. ``for item in page`` walks this page and all that follow.

    Attributes:
        data: The items of this page.
        next_cursor: Where the next page begins, or None on the last one.
    """

    def __init__(
        self, data: list[T], next_cursor: Optional[str], fetch: Callable[[str], Page[T]]
    ) -> None:
        self.data = data
        self.next_cursor = next_cursor
        self._fetch = fetch

    @property
    def has_more(self) -> bool:
        """Whether a page follows."""
        return self.next_cursor is not None

    def next_page(self) -> Optional[Page[T]]:
        """The page after this one, or None."""
        return self._fetch(self.next_cursor) if self.next_cursor is not None else None

    def __iter__(self) -> Iterator[T]:
        page: Optional[Page[T]] = self
        while page is not None:
            for item in page.data:
                yield item
            page = page.next_page()

    def to_list(self, limit: int = 10000) -> list[T]:
        """The items of this page and all that follow, at most `limit`."""
        items: list[T] = []
        for item in self:
            if len(items) >= limit:
                break
            items.append(item)
        return items

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.data)} items, has_more={self.has_more})"


def page_of(answer: Any, wrap: Callable[[Any], T], fetch: Callable[[str], Page[T]]) -> Page[T]:
    """A page from the API's form of it."""
    cursor = answer.get("nextCursor")
    return Page([wrap(item) for item in answer.get("data") or ()], cursor or None, fetch)
