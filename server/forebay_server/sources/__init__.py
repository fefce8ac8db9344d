"""Where the data comes from: stores, what they hold, and how it is read. Nothing here knows of pieces on disk or of
sessions."""
