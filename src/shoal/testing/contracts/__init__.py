"""Contract suites, one per port. Each runs against every implementation of the port and its fake."""
