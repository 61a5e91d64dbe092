"""Reading, rendering and splitting Markdown; pure, imports the kernel only."""
