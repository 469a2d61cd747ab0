"""What a page's content security policy says of the script and the style in the page itself."""

import base64
import hashlib


def source_of(text: str) -> str:
    """Returns how a policy names a script or a style that may be in the page, by its hash.

    >>> source_of("")
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
    """
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
