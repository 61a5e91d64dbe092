"""A cluster of real processes under fire, and a check afterwards that nothing was lost and nothing was done twice."""
