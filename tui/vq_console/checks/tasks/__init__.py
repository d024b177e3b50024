"""Task items with answers that a program can check, made from seeds by own code, and the checks themselves.

Nothing here sends requests. Items never come from a public data set: they cannot have been in anyone's training data,
and no licence comes with them.
"""
