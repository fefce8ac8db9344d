"""`forebay run`: starts a job again after a failure, on one node, for as long as it gets on.

`decision` says what is to be done after a start has ended (pure), `processes` starts programs and ends what they leave,
`supervision` is the loop between them, `command` the command line.
"""
