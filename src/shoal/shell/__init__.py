"""Analyze what a shell command would run, read and write, from its text alone.

reader          splits a command into its simple commands, or refuses it if its meaning is uncertain
survey, words   facts about the whole command, and its words
commands        one simple command: canonical spelling and effect
known_commands  what known programs do with their arguments
options         how programs parse their options, from `programs.txt`

It imports nothing else from Shoal, so other programs can use it.
"""
