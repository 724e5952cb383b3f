"""A reader of the text format of protocol buffers, without the messages' definitions."""

from __future__ import annotations

import re
import typing

from .._errors import JobError
from ._tree import Note, Section

# The deepest nesting of messages, so that a hostile file cannot exhaust the stack.
DEEPEST = 64

TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+|\#[^\n]*)
  | (?P<line>\n)
  | (?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
  | (?P<word>[-+.\w/]+)
  | (?P<mark>[{}<>\[\]:;,])
    """,
    re.VERBOSE | re.ASCII,
)
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


class Token(typing.NamedTuple):
    """A token with its line."""

    kind: str
    text: str
    line: int


def read(text: str, file: str, notes: typing.List[Note]) -> Section:
    """Returns the message that ``text`` describes. ``file`` is its name in errors and notes."""
    reader = Reader(text, file)
    root = Section(file, "", 1, notes)
    reader.fill(root, None, 0)
    return root


def unescape(text: str) -> str:
    """Returns the text that a literal without its quotes stands for."""

    def replace(match: typing.Match[str]) -> str:
        code = match.group(1)
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8))
        return SIMPLE.get(code, code)

    return ESCAPE.sub(replace, text)


def split(text: str, file: str) -> typing.List[Token]:
    """Splits a text into tokens."""
    tokens, at, line = [], 0, 1
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise JobError(f"{file}:{line}: {text[at]!r} is not expected here; correct the file")
        kind = match.lastgroup or ""
        if kind == "line":
            line += 1
        elif kind != "space":
            tokens.append(Token(kind, match.group(), line))
        at = match.end()
    return tokens


class Reader:
    """The state of reading a text."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.tokens = split(text, file)
        self.at = 0

    def error(self, token: typing.Optional[Token], wanted: str) -> JobError:
        if token is None:
            line = self.tokens[-1].line if self.tokens else 1
            return JobError(f"{self.file}:{line}: the file ends where {wanted} is expected")
        return JobError(
            f"{self.file}:{token.line}: {token.text!r} stands where {wanted} is expected; "
            "correct the file"
        )

    def peek(self) -> typing.Optional[Token]:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def next(self, wanted: str) -> Token:
        token = self.peek()
        if token is None:
            raise self.error(None, wanted)
        self.at += 1
        return token

    def skip(self, *marks: str) -> bool:
        token = self.peek()
        if token is not None and token.kind == "mark" and token.text in marks:
            self.at += 1
            return True
        return False

    def fill(self, section: Section, end: typing.Optional[str], depth: int) -> None:
        """Reads the fields of a message up to its end."""
        while True:
            token = self.peek()
            if token is None and end is None:
                return
            if end is not None and self.skip(end):
                return
            name = self.next("a field" if end is None else f"a field or {end!r}")
            if name.kind != "word":
                raise self.error(name, "the name of a field")
            has_colon = self.skip(":")
            section.add(name.text, self.value(section, name, has_colon, depth), name.line)
            self.skip(";", ",")

    def value(self, section: Section, name: Token, has_colon: bool, depth: int) -> typing.Any:
        """Reads a value, a list or a message."""
        if depth > DEEPEST:
            raise JobError(f"{self.file}:{name.line}: values are nested more than {DEEPEST} deep")
        if self.skip("["):
            values: typing.List[typing.Any] = []
            while not self.skip("]"):
                values.append(self.value(section, name, True, depth + 1))
                token = self.peek()
                if not self.skip(",") and not (token is not None and token.text == "]"):
                    raise self.error(token, "',' or ']'")
            return values
        for begin, end in ("{", "}"), ("<", ">"):
            if self.skip(begin):
                child = section.child(name.text, name.line)
                self.fill(child, end, depth + 1)
                return child
        token = self.next("a value")
        if not has_colon or token.kind == "mark":
            raise self.error(token, "':' or '{'" if not has_colon else "a value")
        if token.kind == "word":
            return {"true": True, "false": False, "True": True, "False": False}.get(
                token.text, token.text
            )
        parts = [token.text]
        # Texts that follow each other are one.
        while (more := self.peek()) is not None and more.kind == "text":
            parts.append(self.next("a text").text)
        return "".join(unescape(part[1:-1]) for part in parts)
