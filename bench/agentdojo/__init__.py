"""`python -m bench.agentdojo`: AgentDojo's tasks and injections against a running Shoal; README.md explains it."""
