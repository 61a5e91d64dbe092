"""Analyze what a shell command would run, read and write, from its text alone.

reader          splits a command into simple commands, or rejects it if its meaning is uncertain
survey, words   collect facts about the complete command, and parse its words
commands        computes the canonical spelling and the effect of a simple command
known_commands  computes the effects of known programs from their arguments
options         parses the options of known programs, as `programs.txt` describes them

The package imports nothing else from Shoal, so other programs can use it.
"""
