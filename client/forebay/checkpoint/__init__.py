"""The trainer's side of checkpoints. Nothing here is imported by `import forebay`: a name is loaded when it is used.

From the bottom: `state` names the tensors of models and optimizers, `ownership` says which rank writes what, `staging`
copies that into kept buffers, `saving` writes it with `writer` as plain files of torch's distributed checkpoints, and
`reader` reads them back, checked.
"""
