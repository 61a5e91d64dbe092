"""HTTP to other hosts: the client, the guarded fetcher, allowed addresses and TLS. Imports only the kernel."""
