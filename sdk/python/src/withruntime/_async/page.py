"""Lists that come in pages."""

from __future__ import annotations

from typing import Any, AsyncIterator, Awaitable, Callable, Generic, Optional, TypeVar

T = TypeVar("T")


class AsyncPage(Generic[T]):
    """One page of a list. ``async for item in page`` walks this page and all that follow.

    Attributes:
        data: The items of this page.
        next_cursor: Where the next page begins, or None on the last one.
    """

    def __init__(
        self, data: list[T], next_cursor: Optional[str], fetch: Callable[[str], Awaitable[AsyncPage[T]]]
    ) -> None:
        self.data = data
        self.next_cursor = next_cursor
        self._fetch = fetch

    @property
    def has_more(self) -> bool:
        """Whether a page follows."""
        return self.next_cursor is not None

    async def next_page(self) -> Optional[AsyncPage[T]]:
        """The page after this one, or None."""
        return await self._fetch(self.next_cursor) if self.next_cursor is not None else None

    async def __aiter__(self) -> AsyncIterator[T]:
        page: Optional[AsyncPage[T]] = self
        while page is not None:
            for item in page.data:
                yield item
            page = await page.next_page()

    async def to_list(self, limit: int = 10000) -> list[T]:
        """The items of this page and all that follow, at most `limit`."""
        items: list[T] = []
        async for item in self:
            if len(items) >= limit:
                break
            items.append(item)
        return items

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.data)} items, has_more={self.has_more})"


def page_of(answer: Any, wrap: Callable[[Any], T], fetch: Callable[[str], Awaitable[AsyncPage[T]]]) -> AsyncPage[T]:
    """A page from the API's form of it."""
    cursor = answer.get("nextCursor")
    return AsyncPage([wrap(item) for item in answer.get("data") or ()], cursor or None, fetch)
