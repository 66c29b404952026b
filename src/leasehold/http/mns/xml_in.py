"""Reading documents.

The namespace does not matter: some SDKs send it with a slash at its end, others without, one sends
none at all. Elements that the service does not name are left alone, as newer SDKs may send more.
"""

from __future__ import annotations

from typing import Final

from leasehold.http.mns.errors import Fault, invalid_argument
from leasehold.http.xml_tree import Element, XmlError, parse_tree

_BLANKS: Final = " \t\r\n"


def read_root(body: bytes) -> Element:
    """Parse a document and return its root.

    Raises:
        Fault: It is not well-formed, or holds what is never taken.
    """
    try:
        return parse_tree(body)
    except XmlError as error:
        text = f"{error.reason} (line {error.line}, column {error.column})."
        raise Fault("MalformedXML", text) from None


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
