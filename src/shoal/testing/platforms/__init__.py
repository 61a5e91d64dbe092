"""Chat platforms as wire-level fakes on loopback: strict about what the real ones refuse, with troubles on order."""
