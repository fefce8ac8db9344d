"""`forebay doctor`: what a node has for reading datasets, checked from the side of a trainer and of its daemon.

`facts` and `asking` gather, `local_verdicts` and `remote_verdicts` judge, `command` is the command line and the table.
"""
