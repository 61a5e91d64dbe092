"""Analyze what a shell command would run, read and write, from its text alone.

reader          splits a command into its simple commands, or refuses it if its meaning is uncertain
survey, words   collect facts about the whole command, and parse its words
commands        gives the canonical spelling and the effect of one simple command
known_commands  describes the effects of known programs and their arguments
options         describes how programs parse their options, from `programs.txt`

The package imports nothing else from Shoal, so other programs can use it.
"""
