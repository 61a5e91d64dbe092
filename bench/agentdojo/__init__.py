"""Run AgentDojo's tasks and injections against a running Shoal: `python -m bench.agentdojo`. See README.md."""
