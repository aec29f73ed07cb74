"""Removes configured secrets from text that goes into messages."""

from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "[secret]"
_SHORTEST: Final = 6  # a shorter value would hide parts of ordinary words


class Scrubber:
    """Replaces the secrets that it was given. It shows none of them in its `repr`."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = tuple(sorted({each for each in secrets if len(each) >= _SHORTEST}, key=len, reverse=True))

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def including(self, secret: str | None) -> "Scrubber":
        """A scrubber that knows one more secret."""
        return Scrubber((*self._secrets, secret)) if secret else self
