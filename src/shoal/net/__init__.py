"""Connections to other hosts: which addresses are allowed, whom TLS trusts, why one failed; imports the kernel only."""
