"""Whether a text is one that UTF-8, and so a tokenizer, can hold."""


def is_unicode(text: str) -> bool:
    r"""Tell whether a text has no lone surrogate.

    UTF-8 itself cannot hold one, but json may: "\ud800", half of a pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
