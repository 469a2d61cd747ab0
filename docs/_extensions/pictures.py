"""A picture leads to itself: on a narrow screen it is opened and enlarged, as on the code host."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.osutil import relative_uri


def _link(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    for image in list(doctree.findall(nodes.image)):
        name = app.env.images.get(image["uri"], (None, None))[1]
        if name is None or isinstance(image.parent, nodes.reference):
            continue
        url = relative_uri(app.builder.get_target_uri(docname), f"_images/{name}")
        link = nodes.reference("", "", refuri=url, internal=True)
        image.replace_self(link)
        link += image


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", _link)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
