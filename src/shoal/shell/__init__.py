"""What a shell command would run, read and write, from its text alone.

reader          the command taken apart into its simple commands, or nothing where it cannot be read for sure
survey, words   what is known of the whole command before it is read, and its words
commands        one simple command: its canonical spelling and its effect
known_commands  what known programs do with their words
options         how programs read their options, from `programs.txt`

It imports nothing else of Shoal, so that other programs can use it.
"""
