"""The fingerprint of the protocol of a comparison, a part of every line of results.jsonl."""

import msgspec


class ProtocolFingerprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A hash of each part of a protocol, and of `all` parts. Only results with equal hashes are comparable."""

    data: str
    split: str
    encoder: str
    augmentation: str
    budget: str
    all: str

    def differing(self, other: "ProtocolFingerprint") -> list[str]:
        """Return the parts in which another protocol differs."""
        parts = [name for name in self.__struct_fields__ if name != "all"]
        return [part for part in parts if getattr(self, part) != getattr(other, part)]
