"""`forebay demo`: a real training run, killed and resumed with another world size, and the proof that it was exact.

Reading order: `command` (the options and what people see), `scenario` (what happens, in order), `train` (the program
that is killed), `verify` (what exact means).
"""
