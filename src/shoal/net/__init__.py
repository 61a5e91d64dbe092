"""HTTP to other hosts: clients, the guarded fetcher, checks of addresses, and TLS. Imports only the kernel."""
