"""Files and folders of any kind: walking, mounts, and image headers. Imports only the kernel."""
