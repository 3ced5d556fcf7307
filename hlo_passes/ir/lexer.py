"""Tokens of the textual form, with their positions for error messages."""

from __future__ import annotations

import json
import re
from typing import NamedTuple, NoReturn

from hlo_passes.errors import ParseError

_TOKEN = re.compile(
    r"""
      (?P<space>(?:\s|//[^\n]*)+)
    | (?P<type>tensor<(?:[^<>]|<\w*>)*>)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<value>%[\w.$-]+)
    | (?P<symbol>@(?:[\w.$-]+|"(?:[^"\\\n]|\\.)*"))
    | (?P<number>-?(?:0x[0-9a-fA-F]+|(?:inf|nan)\b|\d+(?:\.\d*)?(?:e[+-]?\d+)?))
    | (?P<attribute>\#\w+)
    | (?P<word>[A-Za-z_][\w.]*)
    | (?P<mark>[()\[\]{}<>=,:])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """A piece of text, its class and where it starts."""

    kind: str
    text: str
    offset: int


class Lexer:
    """Read tokens one after another; every expectation that fails names line and column.

    Args:
      text: the whole text.

    Raises:
      ParseError: a character starts no token.
    """

    def __init__(self, text: str) -> None:
        """Split the text into tokens."""
        self._text = text
        self._tokens = self._split()
        self._at = 0

    def _split(self) -> list[Token]:
        tokens: list[Token] = []
        offset = 0
        while offset < len(self._text):
            match = _TOKEN.match(self._text, offset)
            if match is None:
                self._fail(Token("", self._text[offset], offset), "a name, value, type, number or mark")
            kind = match.lastgroup or ""
            if kind != "space":
                tokens.append(Token(kind, match[0], offset))
            offset = match.end()
        tokens.append(Token("end", "", offset))
        return tokens

    @property
    def next(self) -> Token:
        """The token that would be read next."""
        return self._tokens[self._at]

    def take(self, kind: str, expected: str) -> Token:
        """Read a token of ``kind``; ``expected`` describes it in the error."""
        token = self.next
        if token.kind != kind:
            self.fail(expected)
        self._at += 1
        return token

    def mark(self, text: str) -> Token:
        """Read one particular mark or word."""
        if not self.sees(text):
            self.fail(repr(text))
        self._at += 1
        return self._tokens[self._at - 1]

    def sees(self, text: str) -> bool:
        """Whether the next token is this mark or word."""
        token = self.next
        return token.kind in ("mark", "word") and token.text == text

    def accept(self, text: str) -> bool:
        """Read a mark or word if it is next; say whether it was."""
        if not self.sees(text):
            return False
        self._at += 1
        return True

    def string(self, expected: str = "a quoted string") -> str:
        """Read a quoted string and return its value."""
        return self._unquote(self.take("string", expected), 0)

    def symbol(self) -> str:
        """Read ``@name`` and return the name."""
        token = self.take("symbol", "a name such as @main")
        return self._unquote(token, 1) if token.text.startswith('@"') else token.text[1:]

    def integer(self, expected: str = "an integer") -> int:
        """Read a decimal integer."""
        token = self.take("number", expected)
        try:
            return int(token.text)
        except ValueError:
            self.fail(expected, token)

    def fail(self, expected: str, token: Token | None = None) -> NoReturn:
        """Raise ``ParseError`` at ``token``, by default the next one."""
        self._fail(token or self.next, expected)

    def _unquote(self, token: Token, skip: int) -> str:
        try:
            return json.loads(token.text[skip:])
        except ValueError:
            self.fail("a string with JSON escapes", token)

    def _fail(self, token: Token, expected: str) -> NoReturn:
        line = self._text.count("\n", 0, token.offset) + 1
        column = token.offset - self._text.rfind("\n", 0, token.offset)
        got = repr(token.text) if token.text else "the end of the text"
        raise ParseError(line, column, expected, got)
