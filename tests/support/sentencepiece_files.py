"""SentencePiece `.model` files written by hand: protobuf of pieces, trainer and normaliser."""

import struct
from collections.abc import Sequence

NORMAL, UNKNOWN, CONTROL = 1, 2, 3


def write_model(
    pieces: Sequence[tuple[str, float, int]],
    *,
    model_type: int = 1,
    unk_id: int = 0,
    charsmap: bytes = b"",
    byte_fallback: bool = False,
) -> bytes:
    """Return the content of a `.model` file; a piece is its text, score and type."""
    trainer = number(3, model_type) + number(35, int(byte_fallback)) + number(40, unk_id)
    parts = [
        message(1, message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + number(3, kind))
        for text, score, kind in pieces
    ]
    return b"".join([*parts, message(2, trainer), message(3, message(2, charsmap) if charsmap else b"")])


def number(field: int, value: int) -> bytes:
    """Return a field with a whole number."""
    return _varint(field << 3) + _varint(value)


def message(field: int, content: bytes) -> bytes:
    """Return a field with bytes."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def charsmap(replacements: dict[str, str]) -> bytes:
    """Return the compiled normalisation of single characters: a double array over UTF-8 bytes, then the replacements.

    The layout is Darts' (https://github.com/s-yata/darts-clone): a unit is a label, a leaf flag and an offset.
    """
    texts, starts = b"", dict[str, int]()
    for target in replacements.values():
        starts.setdefault(target, len(texts))
        texts += target.encode() + b"\0"
    units = _double_array({key.encode(): starts[target] for key, target in replacements.items()})
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + texts


def _double_array(keys: dict[bytes, int]) -> list[int]:
    units, taken = [0] * 4096, {0}

    def place(node: int, prefix: bytes) -> None:
        labels = sorted(
            {key[len(prefix)] for key in keys if key.startswith(prefix) and len(key) > len(prefix)}
        )
        slots = [0, *labels] if prefix in keys else labels
        base = next(b for b in range(1, 4096) if not any((node ^ b ^ slot) in taken for slot in slots))
        taken.update(node ^ base ^ slot for slot in slots)
        units[node] |= base << 10 | (256 if prefix in keys else 0)
        if prefix in keys:
            units[node ^ base] = 1 << 31 | keys[prefix]
        for label in labels:
            child = node ^ base ^ label
            units[child] = label
            place(child, prefix + bytes([label]))

    place(0, b"")
    return units


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])
