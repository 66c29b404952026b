"""Reading documents.

The namespace does not matter: some SDKs send it with a slash at its end, others without, one sends
none at all. Elements that the service does not name are left alone, as newer SDKs may send more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leasehold.http.mns.errors import Fault, invalid_argument
from leasehold.http.xml import (
    PROLOGS,
    Element,
    XmlError,
    escape,
    has_plain_characters,
    plain_text,
    read,
    read_long,
)

_BLANKS: Final = " \t\r\n"
_SPACES: Final = (
    b"",
    b' xmlns="http://mns.aliyuncs.com/doc/v1/"',
    b' xmlns="http://mns.aliyuncs.com/doc/v1"',
)
_ROOTS: Final = {
    name.encode() + space: name
    for name in ("Message", "Messages", "ReceiptHandles")
    for space in _SPACES
}
_INNER: Final = {
    name.encode(): name
    for name in (
        *("Message", "MessageBody", "DelaySeconds", "Priority", "MessageGroupId"),
        *("UserProperties", "PropertyValue", "SystemProperties", "SystemPropertyValue"),
        *("Name", "Value", "Type", "ReceiptHandle"),
    )
}
_MOST_TAGS: Final = 512
_DEEPEST: Final = 8
"""Both more than a batch needs, and less than the parser takes."""


def read_root(body: bytes) -> Element:
    """Parse a document and return its root.

    Raises:
        Fault: It is not well-formed, or holds what is never taken.
    """
    return read(body, plain_root, _malformed)


async def read_long_root(body: bytes) -> Element:
    """Do what :func:`read_root` does, and let others have their turn.

    Raises:
        Fault: As there.
    """
    return await read_long(body, plain_root, _malformed)


def _malformed(error: XmlError) -> Fault:
    text = f"{error.reason} (line {error.line}, column {error.column})."
    return Fault("MalformedXML", text)


def plain_root(body: bytes) -> Element | None:
    """Return the root of a document of messages in the form that the SDKs send, or None.

    None says nothing about the document. An answer has the names and texts that the parser finds,
    in a fraction of its time; only the places of the elements are missing.
    """
    tags = body.split(b"<", _MOST_TAGS)
    if len(tags) > _MOST_TAGS or not has_plain_characters(body):
        return None
    prolog = tags.pop(0)
    if tags and tags[0][:1] == b"?":
        prolog += b"<" + tags.pop(0)
    if not tags or prolog not in PROLOGS:
        return None
    name, closed, text = tags.pop(0).partition(b">")
    root_name = _ROOTS.get(name)
    if root_name is None or not closed:
        return None
    root = Element(root_name, 0, 0)
    return root if _fill(root, text, tags) else None


def _fill(root: Element, text: bytes, tags: list[bytes]) -> bool:
    """Put what is behind the tag of *root* inside; tell whether that was possible."""
    element, around = root, [root]
    for tag in tags:
        if text:
            plain = plain_text(text)
            if plain is None:
                return False
            element.content.append(plain.decode())
        name, closed, text = tag.partition(b">")
        if not closed or not around:
            return False
        if name[:1] == b"/":
            if name[1:].decode() != element.name:
                return False
            around.pop()
            if around:
                element = around[-1]
        else:
            known = _INNER.get(name)
            if known is None or len(around) > _DEEPEST:
                return False
            inner = Element(known, 0, 0)
            element.content.append(inner)
            around.append(inner)
            element = inner
    return not around and not text.strip(b"\n")


def local_name(element: Element) -> str:
    """Return the name of an element without a prefix."""
    return element.name.rpartition(":")[2]


def check_root(root: Element, *names: str) -> str:
    """Return the name of the root.

    Raises:
        Fault: It is none of *names*.
    """
    name = local_name(root)
    if name not in names:
        raise invalid_argument(f"The root element must be {' or '.join(names)}.")
    return name


def fields_of(element: Element) -> dict[str, Element]:
    """Return the elements directly inside by name.

    Raises:
        Fault: One is there twice.
    """
    fields: dict[str, Element] = {}
    for part in element.content:
        if isinstance(part, str):
            continue
        name = local_name(part)
        if name in fields:
            raise invalid_argument(f"The element {name} is repeated.")
        fields[name] = part
    return fields


def children_named(element: Element, name: str) -> list[Element]:
    """Return the elements directly inside, which must all be called *name*.

    Raises:
        Fault: One is called otherwise.
    """
    children = list(element.children())
    for child in children:
        if local_name(child) != name:
            raise invalid_argument(f"The element {local_name(element)} may hold {name} only.")
    return children


def raw_text(element: Element) -> str:
    """Return the text of an element, with the white space around it.

    Raises:
        Fault: There are elements inside.
    """
    content = element.content
    if not content:
        return ""
    if len(content) == 1 and isinstance(content[0], str):
        return content[0]
    for part in content:
        if not isinstance(part, str):
            raise invalid_argument(f"The element {local_name(element)} must hold text only.")
    return element.text()


def text_of(element: Element) -> str:
    """Return the text of an element without the white space around it.

    Raises:
        Fault: There are elements inside.
    """
    return raw_text(element).strip(_BLANKS)


# --- xml out -----------------------------------------------------------------------------------
#
# Writing documents, in the form that the service is known to send: indented by two spaces.
#
# The namespace has no slash at its end. Java's SDK knows an error by that, though the service's
# own pages print one.


_PROLOG: Final = b'<?xml version="1.0" ?>\n'
_SPACE: Final = b' xmlns="http://mns.aliyuncs.com/doc/v1"'


def document(name: bytes, *parts: bytes) -> bytes:
    """Write a document; *parts* are elements already, indented by two spaces, with line ends."""
    return b"%b<%b%b>\n%b</%b>\n" % (_PROLOG, name, _SPACE, b"".join(parts), name)


def element(name: str, text: str, indent: bytes = b"  ") -> bytes:
    """Write an element that holds text only."""
    return b"%b<%b>%b</%b>\n" % (indent, name.encode(), escape(text), name.encode())


def elements(pairs: Iterable[tuple[str, str]], indent: bytes = b"  ") -> bytes:
    """Write several of them."""
    return b"".join([element(name, text, indent) for name, text in pairs])


def parent(name: str, inner: bytes, indent: bytes = b"  ") -> bytes:
    """Write an element around others, which are indented by two spaces more."""
    tag = name.encode()
    return b"%b<%b>\n%b%b</%b>\n" % (indent, tag, inner, indent, tag)
