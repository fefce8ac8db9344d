"""Fetching ahead: how fast sessions read (`consumption`), how long a fetch takes (`fetch_time`), which pieces may begin
(`choice`), and the loop that begins them (`prefetcher`)."""
