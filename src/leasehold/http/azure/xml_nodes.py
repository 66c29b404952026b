"""Reading structured bodies: properties, access policies, key requests."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.http.azure.errors import Fault
from leasehold.http.azure.xml_in import Element, invalid_document


def children_by_name(node: Element, known: Sequence[str]) -> dict[str, Element]:
    """Return the children of *node* by name, each of them in *known* and there once.

    Raises:
        Fault: A child is unknown or repeated, or there is text between the children.
    """
    found: dict[str, Element] = {}
    for child in node.children():
        if child.name not in known:
            raise Fault("UnsupportedXmlNode", (("XmlNodeName", child.name),))
        if child.name in found:
            raise invalid_document(f"The element {child.name} is repeated", at=child)
        found[child.name] = child
    if node.has_own_text():
        raise invalid_document(f"The element {node.name} must not hold text", at=node)
    return found


def child_texts(node: Element, known: Sequence[str]) -> dict[str, str]:
    """Return the text of each child of *node* by name, without the white space around it.

    Raises:
        Fault: As for :func:`children_by_name`, or a child holds elements itself.
    """
    texts = {}
    for name, child in children_by_name(node, known).items():
        for inner in child.children():
            raise Fault("UnsupportedXmlNode", (("XmlNodeName", inner.name),))
        texts[name] = child.text().strip(" \t\r\n")
    return texts


def missing_node(name: str) -> Fault:
    """Return the fault of a body that lacks an element."""
    return Fault("MissingRequiredXmlNode", (("XmlNodeName", name),))


def invalid_value(node: Element, reason: str, *, value: str | None = None) -> Fault:
    """Return the fault of an element whose value makes no sense."""
    text = node.text() if value is None else value
    return Fault(
        "InvalidXmlNodeValue",
        (("XmlNodeName", node.name), ("XmlNodeValue", text), ("Reason", reason)),
    )
