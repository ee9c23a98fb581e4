"""Records for those who learn from them: Parquet files, TRL, verl and RAGEN. Nothing here imports a trainer."""
