"""A cluster of real processes under failures, and a check afterwards that nothing was lost or done twice."""
