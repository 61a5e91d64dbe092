"""Operations on files and folders of any kind: traversal, mounts, and image headers. Imports only the kernel."""
