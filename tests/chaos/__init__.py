"""Real Shoal processes under failures, and checks that no message is lost and no work is done twice."""
