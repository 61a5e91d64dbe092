"""Extensions: platforms, providers, tools and sandboxes that installed packages offer as entry points."""
