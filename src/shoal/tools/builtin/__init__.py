"""The tools that come with Shoal; they see the domain's ports, never the machinery."""
