"""Files and folders of any kind: walking, mounts, and image headers; imports the kernel only."""
