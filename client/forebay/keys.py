"""Names under which a batch carries what the loader knows of its samples, when asked for by `extras=`."""

SAMPLE_ID = "forebay.sample_id"
"""int64[n]: index of each sample in the manifest's order."""

POSITION = "forebay.position"
"""int64[n]: position of each sample in the epoch's order."""

IS_PAD = "forebay.is_pad"
"""bool[n]: True for a sample that fills up a last step and was handed out before."""

SOURCE = "forebay.source"
"""int64[n]: number of the source of each sample of a mixture, in the order of `Mixture.names`; 0 of other datasets."""

EXTRAS = (SAMPLE_ID, POSITION, IS_PAD, SOURCE)
